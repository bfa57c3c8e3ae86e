"""Lines with bands of confidence as inline SVG: what a figure does as a load grows, one line per policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from msgspec import Struct

from dovetail.report.data.units import unit_of
from dovetail.report.look import PALETTE, number, ticks
from dovetail.report.svg.charts import CHARACTER, label, legend, line_style, linked, marked, shape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _ABOVE, _BELOW = 640.0, 310.0, 62.0, 18.0, 30.0, 44.0
_WIDE = 1.6  # times the highest point: bands beyond it are cut off, so that lines can still be told apart
_SHAPES = 5  # marks of a line whose points are not told
_STEEP = 20.0  # the largest over the least value from which on a logarithmic axis reads better


class Point(Struct):
    """A mean and the half width of its confidence interval. `told` is shown where the mouse rests on it."""

    x: float
    y: float
    half: float = 0.0
    open: bool = False  # drawn hollow: to be read with care
    told: str = ""


class Line(Struct):
    """A line of points from left to right; `missing` are places without a value, and why. It may lead to a run."""

    name: str
    colour: int
    points: list[Point]
    missing: list[tuple[float, str]] = []
    link: str = ""


class Axis(Struct):
    """What an axis shows. `top` fixes where it ends; `steep` lets it be logarithmic if the values ask for it, and a
    horizontal one is. That one begins at 0, or with `tight` at its first point; `marks` are labelled by `text`."""

    name: str
    top: float | None = None
    steep: bool = False
    tight: bool = False
    marks: list[float] = []
    text: Callable[[float], str] = number


def band_chart(
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    what: str,
    names: Sequence[str] = (),
    width: float = _WIDTH,
    links: Sequence[str] = (),
) -> str:
    """The chart, with a legend of these names. Places without a value are crosses at its upper edge."""
    points = [point for line in lines for point in line.points]
    every = sorted({p.x for p in points} | {at for line in lines for at, _ in line.missing})
    if not every:
        return '<p class="lead">No run has a result.</p>'
    floor, right = _HEIGHT - _BELOW, width - _RIGHT
    at_x = _place_x(x, every, right)
    at_y, levels = _place_y(y, points)
    named, rows = legend(names, _LEFT, right, _HEIGHT + 12, links) if names else ([], 0)
    high = _HEIGHT + 18 * rows
    style = "chart full" if width > _WIDTH else "chart"
    head = f'<svg viewBox="0 0 {width:g} {high:g}" role="img" class="{style}"{_over_time(x, at_x, every)}>'
    out = [f"{head}<title>{escape(what)}</title>"]
    out.append(label(0, 14, y.name, "start"))
    for level in levels:
        height = f"{at_y(level):.1f}"
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{height}" y2="{height}"/>')
        out.append(label(_LEFT - 8, at_y(level) + 4, _level(level, levels[-1]), "end"))
    shown = apart([(at_x(at), x.text(at)) for at in x.marks or _marks(x, every)])
    marks = [label(place, floor + 18, text, "middle") for place, text in shown]
    out.append(f'<g class="marks">{"".join(marks)}</g>')
    out.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
    out.append(_under(x.name, right, width))
    drawn = [_band(line, at_x, at_y) for line in lines]
    for line in lines:
        drawn += _drawn(line, at_x, at_y)
    drawn += _crosses(lines, at_x)
    if unit_of(x.name):  # in a frame of its own, which cuts off what a chosen stretch of time leaves out
        frame = f"{_LEFT:g} 0 {right - _LEFT:g} {floor + 6:g}"
        place = " ".join(f'{k}="{v}"' for k, v in zip(("x", "y", "width", "height"), frame.split(), strict=True))
        drawn = [f'<svg {place} viewBox="{frame}">', *drawn, "</svg>"]
    out += drawn
    return "".join([*out, *named]) + "</svg>"


def _over_time(axis: Axis, at_x: Callable[[float], float], every: Sequence[float]) -> str:
    """Of a chart over time: where which second is drawn, so that a script can show a stretch of it."""
    unit = unit_of(axis.name)
    if unit is None:
        return ""
    seconds = f"{every[0] * unit.seconds:.9g} {every[-1] * unit.seconds:.9g}"
    return f' data-time="{seconds} {at_x(every[0]):.1f} {at_x(every[-1]):.1f} {unit.seconds:g}"'


def _place_x(axis: Axis, every: Sequence[float], right: float) -> Callable[[float], float]:
    place, low = (math.log10, every[0]) if axis.steep else (float, every[0] if axis.tight else 0.0)
    high = every[-1] if axis.steep or axis.tight else axis.top or every[-1]
    start, span = place(low), (place(high) - place(low)) or 1.0
    return lambda at: _LEFT + 8 + (place(at) - start) / span * (right - _LEFT - 24)


def _place_y(axis: Axis, points: Sequence[Point]) -> tuple[Callable[[float], float], list[float]]:
    """Where a value is drawn, and which values are labelled."""
    floor, values = _HEIGHT - _BELOW, [p.y for p in points if p.y > 0]
    highest = max([p.y for p in points], default=1.0)
    top = axis.top or min(max([p.y + p.half for p in points], default=1.0), _WIDE * highest) * 1.05 or 1.0
    room = floor - _ABOVE
    if axis.steep and values and max(values) > _STEEP * min(values):
        low, high = math.log10(min(values) * 0.9), math.log10(top)
        marks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        levels = [mark for mark in marks if low <= math.log10(mark) <= high]
        return lambda y: floor - (math.log10(min(max(y, 10**low), top)) - low) / (high - low) * room, levels
    return lambda y: floor - min(max(y, 0.0) / top, 1.0) * room, ticks(top, 5)


def _marks(axis: Axis, every: Sequence[float], most: int = 10) -> list[float]:
    """Where the horizontal axis is labelled: at points if they are few, else at round values."""
    if axis.steep:
        marks = [m * 10.0**e for e in range(-3, 7) for m in (1, 3)]
        return [mark for mark in marks if every[0] <= mark <= every[-1]]
    return list(every) if len(every) <= most else ticks(axis.top or every[-1], most)


def _level(level: float, top: float) -> str:
    """A value beside the vertical axis, in millions where it would not find room.

    >>> _level(1500000.0, 2e6), _level(1500.0, 2000.0)
    ('1.5 M', '1,500')
    """
    return f"{number(level / 1e6, 3)} M" if top >= 1e6 else number(level, 3)


def _under(name: str, right: float, width: float) -> str:
    """The name of the horizontal axis; one that is too long is set closer, over the whole width."""
    middle = (_LEFT + right) / 2
    if CHARACTER * len(name) <= 2 * min(middle, width - middle):
        return label(middle, _HEIGHT - 8, name, "middle")
    close = f'<text textLength="{width - 8:g}" lengthAdjust="spacingAndGlyphs" '
    return label(width / 2, _HEIGHT - 8, name, "middle").replace("<text ", close, 1)


def apart(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Every mark, or every second, third, ... so that none runs into the next.

    >>> apart([(0.0, "1,000"), (20.0, "1,200"), (40.0, "1,400")])
    [(0.0, '1,000'), (40.0, '1,400')]
    """
    for step in range(1, len(marks) + 1):
        kept = list(marks[::step])
        room = (b - a - CHARACTER * (len(s) + len(t)) / 2 for (a, s), (b, t) in pairwise(kept))
        if all(each > 4 for each in room):
            return kept
    return list(marks[:1])


def _band(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    if len(line.points) < 2 or not any(p.half for p in line.points):
        return ""
    upper = [f"{at_x(p.x):.1f},{at_y(p.y + p.half):.1f}" for p in line.points]
    lower = [f"{at_x(p.x):.1f},{at_y(p.y - p.half):.1f}" for p in reversed(line.points)]
    colour = PALETTE[line.colour % len(PALETTE)]
    return f'<polygon points="{" ".join(upper + lower)}" style="fill:{colour};fill-opacity:.14;stroke:none"/>'


def _drawn(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> list[str]:
    style = line_style(line.colour)
    path = " ".join(f"{at_x(p.x):.1f},{at_y(p.y):.1f}" for p in line.points)
    out = [f'<polyline class="line" points="{path}" {style}><title>{escape(line.name)}</title></polyline>']
    if line.link:  # a broad one that the mouse can hit
        out.append(f'<polyline class="line target" points="{path}"><title>{escape(line.name)}</title></polyline>')
    shown = [p for p in line.points if p.told]
    if not shown and marked(line.colour):  # not where the marks of others are
        every = max(len(line.points) // _SHAPES, 1)
        shown = line.points[3 * line.colour % every :: every]
    fill = {True: "var(--card)", False: ""}
    out += [shape(line.colour, at_x(p.x), at_y(p.y), fill[p.open], p.told or line.name) for p in shown]
    return [linked("".join(out), line.link)]


def _crosses(lines: Sequence[Line], at_x: Callable[[float], float]) -> list[str]:
    """Places without a value, those of several lines beside each other."""
    at: dict[float, list[tuple[Line, str]]] = {}
    for line in lines:
        for x, why in line.missing:
            at.setdefault(x, []).append((line, why))
    out = []
    for x, crosses in at.items():
        for i, (line, why) in enumerate(crosses):
            left = at_x(x) + (i - (len(crosses) - 1) / 2) * 10 - 3
            colour = PALETTE[line.colour % len(PALETTE)]
            out.append(
                f'<path d="M{left:.1f},{_ABOVE - 9:.1f}l6,6m0,-6l-6,6" style="stroke:{colour};stroke-width:2;'
                f'fill:none"><title>{escape(f"{line.name}: {why}")}</title></path>'
            )
    return out
