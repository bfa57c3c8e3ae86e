"""A schedule as inline SVG: a lane for each device, a bar for each stretch of work, for where no script can run."""

from __future__ import annotations

from html import escape

from dovetail.report import look
from dovetail.report.data.bars import FAILED, Bar
from dovetail.report.data.collect import Story
from dovetail.report.svg.bands import apart
from dovetail.report.svg.charts import CHARACTER, label

WIDTH, _RIGHT, _ABOVE, _BELOW, _TALL = 960.0, 14.0, 24.0, 40.0, 480.0
_NAMES = 24  # lanes that are named
_KEYS = 12  # kinds that are named
_PER_CHARACTER = 6.6


def gantt(story: Story, to_s: float | None = None, colours: dict[str, str] | None = None, width: float = WIDTH) -> str:
    """The chart. Set-ups are grey, what failed has a red edge; a bar tells what it is where the mouse rests on it.
    Charts that are to be compared have a common end and common colours."""
    to_s = story.to_s if to_s is None else to_s
    names, words = look.device_names(story), story.header.words
    lanes = max(len(names), 1)
    pitch = min(22.0, max(_TALL / lanes, 1.0))
    every = max(-(-lanes // _NAMES), 1)
    longest = 22 if width > 500 else 12
    left = 12 + _PER_CHARACTER * min(max((len(name) for name in names[::every]), default=0), longest)
    floor = _ABOVE + pitch * lanes
    unit = look.unit_for(to_s - story.from_s or 1.0)
    scale = (width - left - _RIGHT) / ((to_s - story.from_s) or 1.0)

    def x(t: float) -> float:
        return left + (min(max(t, story.from_s), to_s) - story.from_s) * scale

    colours = look.colours([story]) if colours is None else colours
    keys, rows = _keys(story, colours, left if width > 500 else 8.0, floor + 52, width)
    height = floor + _BELOW + 22 * rows
    title = f"{len(story.bars):,} bars on {lanes:,} {words.devices}, {look.seconds(story.to_s - story.from_s)}"
    out = [f'<svg viewBox="0 0 {width:g} {height:g}" role="img" class="chart full"><title>{escape(title)}</title>']
    steps = look.ticks((to_s - story.from_s) / unit.seconds, width // 90)
    instants = [at + story.from_s / unit.seconds for at in steps]
    marks = []
    for at, instant in zip(steps, instants, strict=True):
        place, text = left + at * unit.seconds * scale, look.number(instant, look.digits(instants))
        out.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{_ABOVE}" y2="{floor:.1f}"/>')
        if place + CHARACTER * len(text) / 2 <= width:
            marks.append((place, text))
    out += [label(place, floor + 16, text, "middle") for place, text in apart(marks)]
    out.append(label((left + width - _RIGHT) / 2, floor + 32, f"time, {unit.name}", "middle"))
    for lane in range(0, len(names), every):
        middle = _ABOVE + pitch * lane + pitch / 2 + 4
        out.append(label(left - 6, middle, _cut(names[lane], longest), "end"))
    for bar in story.bars:
        for first, count in look.runs_of(bar.devices):
            high = (pitch * count - min(2.0, pitch / 4)) / bar.sharing
            top = _ABOVE + pitch * first + min(1.0, pitch / 8) + high * bar.place
            out += _bar(bar, x(bar.start_s), x(bar.setup_end_s), x(bar.end_s), top, high, colours[bar.kind])
    return "".join([*out, *keys]) + "</svg>"


def _bar(bar: Bar, begin: float, ready: float, end: float, top: float, high: float, colour: str) -> list[str]:
    count = f", {bar.merged} of them" if bar.merged > 1 else ""
    told = (
        f"{bar.job}/{bar.task} ({bar.kind}{count}), {look.number(bar.start_s)} to {look.number(bar.end_s)} s: {bar.why}"
    )
    edge = ' stroke="#c0262d" stroke-width="1.5"' if bar.state == FAILED else ""
    place = f'y="{top:.1f}" height="{max(high, 0.5):.1f}"'
    drawn = []
    if ready - begin > 0.2:
        drawn.append(f'<rect x="{begin:.1f}" {place} width="{ready - begin:.1f}" fill="#8d96a3"/>')
    drawn.append(
        f'<rect x="{ready:.1f}" {place} width="{max(end - ready, 0.5):.1f}" fill="{colour}"{edge}>'
        f"<title>{escape(told)}</title></rect>"
    )
    return drawn


def _keys(story: Story, colours: dict[str, str], left: float, y: float, width: float) -> tuple[list[str], int]:
    """What the colours mean, in as many rows as it takes."""
    out: list[str] = []
    setup = story.header.words.setup if any(bar.setup_s for bar in story.bars) else ""
    named = [(kind.kind, colours[kind.kind]) for kind in story.kinds[:_KEYS]] + ([(setup, "#8d96a3")] if setup else [])
    x, rows = left, 1 if named else 0
    for name, colour in named:
        text = _cut(name, 28)
        if x > left and x + 20 + _PER_CHARACTER * len(text) > width - _RIGHT:
            x, y, rows = left, y + 20, rows + 1
        out.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(label(x + 17, y, text, "start"))
        x += 17 + _PER_CHARACTER * len(text) + 18
    return out, rows


def _cut(name: str, longest: int) -> str:
    """A long name without its middle: what tells devices apart is often the last word."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - 1 - half]}…{name[-half:]}"
