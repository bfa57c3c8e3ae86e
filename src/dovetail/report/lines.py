"""A level's line charts as inline SVG, in the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2

from dovetail.core.charts import Chart
from dovetail.report.charts import label, legend, line_style
from dovetail.report.look import number, ticks

_POINTS = 40  # with more of them, a line is drawn without its points
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _ABOVE = 640.0, 300.0, 60.0, 16.0, 26.0


def line_charts(charts: Sequence[Chart]) -> str:
    """A card for each chart, side by side."""
    drawn = [
        f'<section class="card"><h2>{escape(chart.title)}</h2><div class="scroll">{line_chart(chart)}</div></section>'
        for chart in charts
    ]
    return f'<div class="two">{"".join(drawn)}</div>' if drawn else ""


def line_chart(chart: Chart) -> str:
    """The lines of a chart with their points; the value of each point is told where the mouse rests on it."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return f'<p class="lead">{escape(chart.title)}: there are no points.</p>'
    names = [series.name for series in chart.series]
    named, rows = legend(names, _LEFT, _WIDTH - _RIGHT, _HEIGHT - 8) if len(names) > 1 else ([], 0)
    floor = _HEIGHT - 42 - 18 * bool(rows)
    place = log2 if chart.log_x else float
    low, high = min(place(x) for x, _ in points), max(place(x) for x, _ in points)
    top = max(max(y for _, y in points), 1e-12) * 1.05

    def at_x(x: float) -> float:
        share = (place(x) - low) / (high - low) if high > low else 0.5
        return _LEFT + 8 + share * (_WIDTH - _LEFT - _RIGHT - 16)

    def at_y(y: float) -> float:
        return floor - max(y, 0.0) / top * (floor - _ABOVE)

    height = _HEIGHT + 18 * max(rows - 1, 0)
    out = [f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" class="chart">']
    out += [f"<title>{escape(chart.title)}</title>", label(_LEFT - 6, 14, chart.y, "start")]
    for y in ticks(top, 5):
        level = f"{at_y(y):.1f}"
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level}" y2="{level}"/>')
        out.append(label(_LEFT - 8, at_y(y) + 4, number(y), "end"))
    out += [label(at_x(x), floor + 17, tick(x, chart.log_x), "middle") for x in _marks(chart)]
    out.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{floor}" y2="{floor}"/>')
    for i, series in enumerate(chart.series):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in series.points)
        out.append(f'<polyline class="line" points="{path}" {line_style(i)}/>')
        for x, y in series.points if len(series.points) <= _POINTS else ():
            told = f"{series.name}: {number(y)} {chart.y} at {tick(x, chart.log_x)} ({chart.x})"
            out.append(
                f'<circle class="point" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3.5" {line_style(i)}>'
                f"<title>{escape(told)}</title></circle>"
            )
    out.append(label((_LEFT + _WIDTH - _RIGHT) / 2, floor + 35, chart.x, "middle"))
    return "".join([*out, *named]) + "</svg>"


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


def tick(x: float, log: bool) -> str:
    """A value on an axis; on a logarithmic one, parts of one as fractions.

    >>> tick(0.25, True), tick(4.0, True), tick(0.25, False)
    ('1/4', '4', '0.25')
    """
    return f"1/{number(1 / x)}" if log and x < 1 else number(x)
