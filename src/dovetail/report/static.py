"""The same pictures for papers and slides: PNG and SVG, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dovetail.core.errors import MissingExtraError
from dovetail.core.results.charts import Chart
from dovetail.report import look
from dovetail.report.data.bars import FAILED
from dovetail.report.data.collect import QUEUE, RUN, SETUP, Story
from dovetail.report.data.devices import own_names
from dovetail.report.svg.lines import tick
from dovetail.report.usage import uses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCENT, SOFT, BOUND, SETUP_COLOUR, GROUND = "#2b6cb0", "#a9c6e4", "#b4460f", "#dfe3e8", "#f0f2f6"
_RASTER_ABOVE = 3000  # bars; an SVG with more of them as paths is slow to open
_DOTS = 5000  # the page's width in dots: what is narrower cannot be seen, and hatching it takes long
_NAMED = 40  # kinds that the legend names
_STYLE = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#586273",
    "axes.labelcolor": "#586273",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": "#586273",
    "ytick.color": "#586273",
    "text.color": "#1a1f27",
    "hatch.linewidth": 0.8,
    "hatch.color": "#8d96a3",
    "svg.hashsalt": "dovetail",
    "svg.fonttype": "none",
}


def draw(stories: Sequence[Story], format: Literal["png", "svg"] = "png", dpi: int = 150) -> bytes:
    """The picture of one run, or the comparison of several, as the bytes of a file."""
    matplotlib = require()
    with matplotlib.rc_context(_STYLE):
        figure = run_figure(stories[0]) if len(stories) == 1 else comparison_figure(stories)
        out = io.BytesIO()
        # By the name it may be written again; without the date the same run gives the same bytes.
        metadata = {"Date": None, "Creator": "dovetail"} if format == "svg" else {"Software": "dovetail"}
        figure.savefig(out, format=format, dpi=dpi, facecolor="white", metadata=metadata)
    return out.getvalue()


def require() -> Any:
    """Matplotlib, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("plot", "matplotlib", "drawing a PNG or SVG") from None
    return matplotlib


def _figure(width: float, height: float) -> Figure:
    """A figure of its own: pyplot's list of figures would keep it alive."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# --- one run --------------------------------------------------------------------------------------


def run_figure(story: Story) -> Figure:
    """Gantt chart, curves over time, response times and utilisation."""
    devices = len(story.header.pool)
    gantt_height = min(max(0.34 * devices, 1.6), 12.0)
    legend_height = 0.2 * -(-(min(len(story.kinds), _NAMED) + 2) // _legend_columns(story)) + 0.1
    schedule = [gantt_height, legend_height, 0.8, 0.8] if story.scheduled else []
    plots: list[Callable[[Axes], None]] = [lambda axes: _responses(axes, story)]
    plots += [lambda axes: _devices(axes, story)] if story.scheduled else []
    plots += [partial(_chart, chart=chart) for chart in story.charts]
    heights = [*schedule, *[2.8] * -(-len(plots) // 2)]
    figure = _figure(13.0, sum(heights) + 1.6)
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    if story.scheduled:
        gantt = figure.add_subplot(grid[0, :])
        _gantt(gantt, story)
        _legend(figure.add_subplot(grid[1, :]), story)
        _curves(figure.add_subplot(grid[2, :], sharex=gantt), figure.add_subplot(grid[3, :], sharex=gantt), story)
    for i, plot in enumerate(plots):
        plot(figure.add_subplot(grid[len(schedule) + i // 2, i % 2]))
    figure.suptitle(_title(story), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _title(story: Story) -> str:
    title = f"{_plain(story.name)}: policy {_plain(story.header.policy)} on {_plain(look.pool_text(story.header.pool))}"
    return title if story.ended else f"{title} (did not end)"


def _plain(text: str) -> str:
    """Text without matplotlib's mathematics, cut to a length that fits."""
    text = text.replace("$", r"\$")
    return text if len(text) <= 48 else text[:47] + "…"


def _gantt(axes: Axes, story: Story) -> None:
    from matplotlib.collections import PolyCollection

    names, colours = look.device_names(story), look.colours([story])
    unit = look.unit_for(story.to_s - story.from_s)
    raster = len(story.bars) > _RASTER_ABOVE
    edge = 0.25 if len(story.bars) <= _RASTER_ABOVE // 5 else 0.0  # around many thin bars it would be all that is seen
    runs: dict[str, list[Any]] = {}
    setups: list[Any] = []
    failed: list[Any] = []
    seen = (story.to_s - story.from_s) / unit.seconds / _DOTS
    for bar in story.bars:
        start, middle, end = (t / unit.seconds for t in (bar.start_s, bar.setup_end_s, bar.end_s))
        for first, count in look.runs_of(bar.devices):
            tall = (count - 0.12) / bar.sharing
            low = first - 0.44 + bar.place * tall
            high = low + tall
            if middle - start > seen:
                setups.append(_box(start, middle, low, high))
            runs.setdefault(bar.kind, []).append(_box(middle, end, low, high))
            if bar.state == FAILED:
                failed.append(_box(start, end, low, high))
    for kind, boxes in runs.items():
        axes.add_collection(
            PolyCollection(boxes, facecolors=colours[kind], edgecolors="white", linewidths=edge, rasterized=raster)
        )
    axes.add_collection(
        PolyCollection(
            setups, facecolors=SETUP_COLOUR, edgecolors="#8d96a3", linewidths=0.2, hatch="//////", rasterized=raster
        )
    )
    axes.add_collection(PolyCollection(failed, facecolors="none", edgecolors="#c0262d", linewidths=1.2))
    count = len(story.header.pool)
    axes.set_ylim(count - 0.4, -0.6)
    low, high = story.from_s / unit.seconds, story.to_s / unit.seconds
    axes.set_xlim(low, high if high > low else low + 1)
    every = max(1, -(-count // 48))
    shown = story.header.pool.devices[::every]
    types = ["" if names[d.id] == d.type else f"  {_plain(d.type)}" for d in shown]  # of one kind each: said once
    axes.set_yticks([d.id for d in shown], [f"{_plain(names[d.id])}{t}" for d, t in zip(shown, types, strict=True)])
    axes.tick_params(axis="y", length=0)
    axes.set_facecolor(GROUND)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    bound_s, at_s = story.claim("bound_makespan_s"), story.bound_at_s
    if bound_s and at_s and story.from_s <= at_s <= story.to_s:
        axes.axvline(at_s / unit.seconds, color=BOUND, linestyle="--", linewidth=1.3)
        axes.annotate(
            f"lower bound {look.seconds(bound_s)}",
            (at_s / unit.seconds, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            color=BOUND,
            fontweight="bold",
            ha="center",
        )
    axes.set_xlabel(f"time, {unit.name}")


def _box(x0: float, x1: float, y0: float, y1: float) -> list[tuple[float, float]]:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def _legend(axes: Axes, story: Story) -> None:
    from matplotlib.patches import Patch

    colours = look.colours([story])
    handles = [Patch(facecolor=colours[k.kind], label=_plain(k.kind)) for k in story.kinds[:_NAMED]]
    setup = story.words.setup
    if setup:
        handles.append(Patch(facecolor=SETUP_COLOUR, edgecolor="#8d96a3", hatch="//////", linewidth=0.2, label=setup))
    if any(bar.state == FAILED for bar in story.bars):
        handles.append(Patch(facecolor="none", edgecolor="#c0262d", label="failed"))
    axes.axis("off")
    columns = min(_legend_columns(story), len(handles))
    axes.legend(handles=handles, loc="upper center", ncols=columns, frameon=False, handlelength=1.2)


def _legend_columns(story: Story) -> int:
    """As many as there is room for."""
    longest = max((len(_plain(kind.kind)) for kind in story.kinds[:_NAMED]), default=0)
    return max(1, min(6, int(12.0 / (0.5 + 0.075 * longest))))


def _curves(busy: Axes, queue: Axes, story: Story) -> None:
    words, strip = story.words, story.strip
    unit = look.unit_for(story.to_s - story.from_s)
    edges = np.array([strip.from_s + i * strip.bin_s for i in range(len(strip.means[RUN]) + 1)])
    edges = np.minimum(edges, max(story.end_s, strip.from_s)) / unit.seconds
    run, setup = np.array(strip.means[RUN]) * 100, np.array(strip.means[SETUP]) * 100
    if len(run):
        busy.stairs(run, edges, fill=True, color=ACCENT)
        busy.stairs(
            run + setup,
            edges,
            baseline=run,
            fill=True,
            facecolor=SETUP_COLOUR,
            edgecolor="#8d96a3",
            hatch="//////",
            linewidth=0,
        )
        queue.stairs(strip.means[QUEUE], edges, fill=True, color=SOFT)
    doing = f": running and {words.setup}" if words.setup else ""
    busy.set_title(f"{words.devices} in use{doing}, %", fontsize=9)
    queue.set_title(f"{words.waiting.capitalize()} waiting", fontsize=9)
    busy.set_ylim(0, 100)
    queue.set_ylim(bottom=0)
    for axes in (busy, queue):
        axes.set_facecolor(GROUND)
    busy.tick_params(labelbottom=False)


def _responses(axes: Axes, story: Story) -> None:
    words = story.words
    values = np.sort(np.asarray(story.responses_s))
    axes.set_title(f"{words.response.capitalize()} times")
    if not len(values):
        axes.text(0.5, 0.5, f"no {words.job} was completed", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    unit = look.unit_for(float(values[-1]))
    axes.hist(values / unit.seconds, bins=min(48, max(8, len(values))), color=SOFT, edgecolor="white", linewidth=0.4)
    axes.set_ylabel(words.jobs)
    axes.set_xlabel(f"{words.response} time, {unit.name}")
    share = axes.twinx()
    share.step(values / unit.seconds, np.arange(1, len(values) + 1) / len(values) * 100, where="post", color=ACCENT)
    share.set_ylim(0, 100)
    share.set_ylabel("completed within, %")
    share.spines["right"].set_visible(True)
    spread = story.figures.response_s
    marks = [("P50", spread.median, "#1a1f27", "-"), ("P99", spread.p99, "#1a1f27", "-.")]
    marks += [(name, bound_s, BOUND, "--") for name, bound_s in look.bounds_of_responses(story)]
    for name, at, colour, line in marks:
        axes.axvline(at / unit.seconds, color=colour, linestyle=line, linewidth=1.1, label=f"{name} {look.seconds(at)}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=len(marks), frameon=False)


def _devices(axes: Axes, story: Story) -> None:
    words, found = story.words, uses(story)
    setup = np.array([use.setup for use in found]) * 100
    run = np.array([use.run for use in found]) * 100
    at = np.arange(len(found))
    axes.bar(at, run, color=ACCENT, label="running")
    if words.setup:
        ink = "#8d96a3"
        axes.bar(
            at, setup, bottom=run, color=SETUP_COLOUR, edgecolor=ink, hatch="//////", linewidth=0, label=words.setup
        )
    axes.set_ylim(0, 100)
    axes.set_facecolor(GROUND)
    axes.set_title(f"Utilisation, % (mean {look.percent(story.figures.utilisation)})")
    every = max(1, -(-len(found) // 24))
    own = own_names(story.header)
    each = len(found) == len(story.header.pool)
    axes.set_xticks(at[::every], [_plain(found[i].name) if own or not each else str(i) for i in at[::every]])
    if own and each:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(words.device if each else f"{words.devices} by type")
    axes.legend(loc="upper left", bbox_to_anchor=(0.45, 1.13), ncols=2, frameon=False)


def _chart(axes: Axes, chart: Chart) -> None:
    """A chart that the level put into the journal."""
    for i, series in enumerate(chart.series):
        colour = look.PALETTE[i % len(look.PALETTE)]
        xs, ys = ([point[side] for point in series.points] for side in (0, 1))
        marker = "o" if len(xs) <= 40 else ""
        axes.plot(xs, ys, color=colour, marker=marker, markersize=3.5, linewidth=1.7, label=_plain(series.name))
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: tick(x, True))
    elif all(x == int(x) for series in chart.series for x, _ in series.points):
        axes.locator_params(axis="x", integer=True)  # nobody has half a device
    axes.set_ylim(bottom=0)
    axes.grid(color="#e2e6ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(_plain(chart.title))
    axes.set_xlabel(_plain(chart.x))
    axes.set_ylabel(_plain(chart.y))
    if len(chart.series) > 1:
        axes.legend(frameon=False)


# --- several runs ---------------------------------------------------------------------------------


def comparison_figure(stories: Sequence[Story]) -> Figure:
    """Makespan, mean and P99 of each run, with the lower bound, and the distributions in one plot."""
    names = [_plain(name) for name in look.names(stories)]
    figure = _figure(13.0, 3.6 + 0.36 * len(stories))
    grid = figure.add_gridspec(2, 3, height_ratios=[0.6 + 0.36 * len(stories), 3.0])
    for i, each in enumerate(zip(*map(look.headlines, stories), strict=True)):
        values = [h.value_s if story.ended else None for h, story in zip(each, stories, strict=True)]
        _panel(figure.add_subplot(grid[0, i]), each[0].name, names, values, [h.bound_s for h in each])
    _distributions(figure.add_subplot(grid[1, :]), stories, names)
    figure.suptitle(f"{len(stories)} runs compared", x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def _panel(
    axes: Axes, title: str, names: Sequence[str], values: Sequence[float | None], bounds: Sequence[float | None]
) -> None:
    """One bar per run; a value is None where a run did not end."""
    known = [value for value in values if value is not None]
    unit = look.unit_for(max(known, default=0.0))
    best = min(known, default=None)
    at = np.arange(len(values))
    scaled = [(value or 0.0) / unit.seconds for value in values]
    axes.barh(at, scaled, height=0.62, color=[ACCENT if v == best else SOFT for v in values])
    labelled = False
    for i, (value, bound) in enumerate(zip(values, bounds, strict=True)):
        text = "did not end" if value is None else look.seconds(value)
        axes.annotate(text, (scaled[i], i), xytext=(4, 0), textcoords="offset points", va="center")
        if bound:
            x = [bound / unit.seconds] * 2
            label = None if labelled else "lower bound"
            axes.plot(x, [i - 0.42, i + 0.42], color=BOUND, linestyle="--", linewidth=1.5, label=label)
            labelled = True
    if labelled:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), frameon=False, labelcolor=BOUND)
    axes.set_yticks(at, names)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, max(max(scaled), 1e-9) * 1.22)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(unit.name)
    axes.set_title(title)


def _distributions(axes: Axes, stories: Sequence[Story], names: Sequence[str]) -> None:
    longest = max((max(s.responses_s, default=0.0) for s in stories), default=0.0)
    unit = look.unit_for(longest)
    styles = ("-", "--", ":", "-.")
    for i, (story, name) in enumerate(zip(stories, names, strict=True)):
        values = np.sort(np.asarray(story.responses_s)) / unit.seconds
        share = np.arange(1, len(values) + 1) / max(len(values), 1) * 100
        colour = look.PALETTE[i % len(look.PALETTE)]
        axes.step(values, share, where="post", color=colour, linestyle=styles[i % 4], linewidth=1.7, label=name)
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.grid(color="#e2e6ec", linewidth=0.8)
    axes.set_axisbelow(True)
    response = stories[0].words.response
    axes.set_title(f"{response.capitalize()} times: share completed within, %")
    axes.set_xlabel(f"{response} time, {unit.name}")
    axes.legend(loc="lower right", frameon=True, facecolor="white", edgecolor="none")
