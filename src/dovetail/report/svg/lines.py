"""A level's line charts as inline SVG, in the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from math import ceil, floor, log2

from dovetail.core.results.charts import Chart
from dovetail.report.document import WIDE, card, for_widths
from dovetail.report.look import digits, number, ticks, unit_for
from dovetail.report.svg.bands import Axis, Line, Point, band_chart
from dovetail.report.svg.charts import staircase

_POINTS = 40  # with more of them, a line is drawn without its points


def line_charts(charts: Sequence[Chart]) -> str:
    """A card for each chart, side by side; one that has a single place to show says nothing, and is left out."""
    shown = [chart for chart in charts if len({x for series in chart.series for x, _ in series.points}) > 1]
    cards = "".join(card(chart.title, for_widths(partial(line_chart, chart))) for chart in shown)
    return f'<div class="two">{cards}</div>' if cards else ""


def line_chart(chart: Chart, width: float = WIDE) -> str:
    """The lines of a chart with their points; the value of each point is told where the mouse rests on it."""
    if not any(series.points for series in chart.series):
        return f'<p class="lead">{escape(chart.title)}: there are no points.</p>'

    marks = _marks(chart)

    def text(x: float) -> str:
        return tick(x, chart.log_x, digits(marks))

    lines = []
    for i, series in enumerate(chart.series):
        few = len(series.points) <= _POINTS
        points = [
            Point(x, y, open=True, told=f"{series.name}: {number(y)} {chart.y} at {text(x)} ({chart.x})" if few else "")
            for x, y in series.points
        ]
        lines.append(Line(series.name, i, points))
    names = [series.name for series in chart.series] if len(chart.series) > 1 else []
    x_axis = Axis(chart.x, steep=chart.log_x, tight=True, marks=marks, text=text)
    return band_chart(x_axis, Axis(chart.y), lines, chart.title, names, width=width)


def cumulative(
    names: Sequence[str], runs: Sequence[Sequence[float]], response: str, links: Sequence[str], width: float
) -> str:
    """The share of jobs completed within a time, one line per run, which leads to it."""
    longest_s = max((max(values, default=0.0) for values in runs), default=0.0)
    unit = unit_for(longest_s)
    lines = []
    for i, values_s in enumerate(runs):
        points, before = [], 0.0
        for at_s, share in staircase(values_s) if values_s else ():
            points += [Point(at_s / unit.seconds, 100 * y) for y in (before, share)]
            before = share
        lines.append(Line(names[i], i, points, link=links[i]))
    x = Axis(f"{response} time, {unit.name}", marks=ticks(longest_s / unit.seconds, 9 if width > WIDE else 5))
    y = Axis(f"{response.capitalize()} times: share completed within, %", 100.0)
    return band_chart(x, y, lines, "Share completed within a time, one line per run", names, width=width, links=links)


def _marks(chart: Chart, most: int = 12) -> list[float]:
    """Where the horizontal axis is labelled: at points if they are few, else at round values."""
    every = sorted({x for series in chart.series for x, _ in series.points})
    if len(every) <= _POINTS:
        return every[:: -(-len(every) // most)]
    if not chart.log_x:
        step = ticks(every[-1] - every[0], 8)[1]
        return [i * step for i in range(ceil(every[0] / step - 1e-9), floor(every[-1] / step + 1e-9) + 1)]
    low, high = ceil(log2(every[0])), floor(log2(every[-1]))
    powers = [2.0**i for i in range(low, high + 1)]
    if len(powers) < 3:
        return [every[0], every[len(every) // 2], every[-1]]
    return powers[:: -(-len(powers) // most)]


def tick(x: float, log: bool, most: int = 4) -> str:
    """A value on an axis; on a logarithmic one, parts of one as fractions.

    >>> tick(0.25, True), tick(4.0, True), tick(0.25, False)
    ('1/4', '4', '0.25')
    """
    return f"1/{number(1 / x)}" if log and x < 1 else number(x, most)
