"""Small charts as inline SVG. Colours and fonts come from the page's style sheet, so they follow light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from dovetail.report.data.collect import Story
from dovetail.report.look import PALETTE, bounds_of_responses, number, seconds, ticks, unit_for

CHARACTER, _BOLD = 6.4, 7.0  # width of a character at the charts' font size, roughly


class Mark(NamedTuple):
    """A vertical line with a name, at a response time."""

    name: str
    at_s: float
    style: str


def responses(story: Story, what: str, width: float) -> str:
    """The response times of a run, with its percentiles and their lower bounds."""
    spread = story.figures.response_s
    marks = [Mark("P50", spread.median, "mark"), Mark("P99", spread.p99, "mark")]
    marks += [Mark(name, bound_s, "bound") for name, bound_s in bounds_of_responses(story)]
    return _distribution(story.responses_s, marks, what, f"{story.words.response} time", width)


def _distribution(values_s: Sequence[float], marks: Sequence[Mark], what: str, axis: str, width: float) -> str:
    """Histogram (bars, left axis) and cumulative share (line, right axis) of response times."""
    top = 1.02 * max([*values_s, *(mark.at_s for mark in marks)]) or 1.0
    counts, _ = np.histogram(values_s, bins=min(48, max(8, len(values_s))), range=(0.0, top))
    unit = unit_for(top)
    height, left, right, bottom = 300.0, 46.0, 46.0, 44.0

    def x(at: float) -> float:
        return left + at / top * (width - left - right)

    placed = _place(marks, x, width - right)
    rows = 1 + max((row for _, _, row, _ in placed), default=-1)
    above = 14.0 + 16.0 * rows
    floor = height - bottom

    def y(share: float) -> float:
        return floor - share * (floor - above)

    peak = max(int(counts.max()), 1)
    out = [f'<svg viewBox="0 0 {width:g} {height:g}" role="img" class="chart"><title>{escape(what)}</title>']
    for tick in ticks(peak, 4):
        if tick == int(tick):
            level = f"{y(tick / peak):.1f}"
            out.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{level}" y2="{level}"/>')
            out.append(label(left - 6, y(tick / peak) + 4, f"{tick:,.0f}", "end"))
    out += [label(width - right + 6, y(i / 4) + 4, f"{i * 25} %", "start") for i in range(5)]
    out += [
        label(x(at * unit.seconds), floor + 17, number(at), "middle") for at in ticks(top / unit.seconds, width // 90)
    ]
    step = (width - left - right) / len(counts)
    for i, count in enumerate(counts):
        if count:
            low, high = i * top / len(counts), (i + 1) * top / len(counts)
            out.append(
                f'<rect class="bar" x="{left + i * step + 0.5:.1f}" y="{y(count / peak):.1f}" width="{step - 1:.1f}" '
                f'height="{floor - y(count / peak):.1f}" rx="1">'
                f"<title>{seconds(low, top)} to {seconds(high, top)}: {count:,}</title></rect>"
            )
    steps = "".join(f"H{x(at):.1f}V{y(share):.1f}" for at, share in staircase(values_s))
    out.append(f'<path class="cdf" d="M{x(min(values_s)):.1f},{y(0.0):.1f}{steps}H{width - right:g}"/>')
    texts = []  # over all lines, on ground of their own: a line that passes would strike them through
    for mark, at, row, anchor in placed:
        label_y = 12.0 + 16.0 * (rows - 1 - row)
        out.append(
            f'<line class="mark {mark.style}" x1="{at:.1f}" x2="{at:.1f}" y1="{label_y + 4:.1f}" y2="{floor:.1f}"/>'
        )
        shift = {"start": 4.0, "end": -4.0}[anchor]
        text = f"{mark.name} {seconds(mark.at_s, top)}"
        long = _BOLD * len(text) + 4
        begin = at + 2 if anchor == "start" else at - 2 - long
        texts.append(f'<rect class="ground" x="{begin:.1f}" y="{label_y - 9:.1f}" width="{long:.1f}" height="14"/>')
        texts.append(label(at + shift, label_y + 2, text, anchor, mark.style))
    out += texts
    out.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{floor}" y2="{floor}"/>')
    out.append(label((left + width - right) / 2, height - 8, f"{axis}, {unit.name}", "middle"))
    return "".join(out) + "</svg>"


def staircase(values_s: Sequence[float]) -> list[tuple[float, float]]:
    """Where the share of values so small grows, and to what, in at most 200 steps.

    >>> staircase([3.0, 1.0])
    [(1.0, 0.5), (3.0, 1.0)]
    """
    values = np.sort(np.asarray(values_s, dtype=float))
    shares = np.linspace(0.0, 1.0, min(len(values), 200) + 1)[1:]
    at = values[np.maximum(np.ceil(shares * len(values) - 1e-9).astype(int) - 1, 0)]
    return list(zip(at.tolist(), shares.tolist(), strict=True))


_DASHES = ("none", "8 4", "2 3", "10 3 2 3")


def line_style(i: int) -> str:
    return f'style="stroke:{PALETTE[i % len(PALETTE)]};stroke-dasharray:{_DASHES[i % len(_DASHES)]}"'


def marked(i: int) -> bool:
    """Whether a line needs marks, as there are more lines than dashes."""
    return i >= len(_DASHES)


def shape(i: int, x: float, y: float, fill: str = "", told: str = "") -> str:
    """The mark of a line's points: with its dashes it tells the line from the others without colour."""
    forms = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"',
        f'<path d="M{x:.1f},{y - 4.6:.1f}l4.4,8h-8.8z"',
        f'<path d="M{x - 3.4:.1f},{y - 3.4:.1f}h6.8v6.8h-6.8z"',
        f'<path d="M{x:.1f},{y - 4.8:.1f}l4.8,4.8l-4.8,4.8l-4.8,-4.8z"',
        f'<path d="M{x:.1f},{y + 4.6:.1f}l4.4,-8h-8.8z"',
    )
    colour = PALETTE[i % len(PALETTE)]
    form = forms[i // len(_DASHES) % len(forms)]
    title = f"<title>{escape(told)}</title>" if told else ""
    end = form[1 : form.index(" ")]
    return f'{form} style="fill:{fill or colour};stroke:{colour};stroke-width:1.6">{title}</{end}>'


def line_piece(i: int, x: float, y: float) -> str:
    """A piece of a line, by which a legend tells it."""
    mark = shape(i, x + 13, y) if marked(i) else ""
    return f'<path class="line" d="M{x:.1f},{y:.1f}h26" {line_style(i)}/>{mark}'


def linked(parts: str, link: str) -> str:
    """What leads to a run of the page, if it is one."""
    return f'<a href="#{link}">{parts}</a>' if link else parts


def legend(
    names: Sequence[str], left: float, right: float, y: float, links: Sequence[str] = ()
) -> tuple[list[str], int]:
    """Names with a piece of their line, in as many rows as they need."""
    out: list[str] = []
    x, rows = left, 1
    for i, name in enumerate(names):
        text = _cut(name, 40)
        length = 34 + CHARACTER * len(text) + 22
        if x + length > right and x > left:
            x, rows = left, rows + 1
        level = y + 18 * (rows - 1)
        parts = line_piece(i, x, level - 4) + label(x + 33, level, text, "start")
        out.append(linked(parts, links[i] if links else ""))
        x += length
    return out, rows


def _place(marks: Sequence[Mark], x: Callable[[float], float], edge: float) -> list[tuple[Mark, float, int, str]]:
    """Give each label a row, counted from below, in which it overlaps no other: from right to left, so that a line
    that reaches up to its label passes left of the labels below."""
    placed: list[tuple[Mark, float, int, str]] = []
    taken: list[list[tuple[float, float]]] = []
    for mark in sorted(marks, key=lambda mark: -mark.at_s):
        at = x(mark.at_s)
        length = _BOLD * len(f"{mark.name} {seconds(mark.at_s)}") + 14
        anchor = "start" if at + length <= edge + 40 else "end"
        span = (at, at + length) if anchor == "start" else (at - length, at)
        row = 0
        while row < len(taken) and any(span[0] < high and low < span[1] for low, high in taken[row]):
            row += 1
        if row == len(taken):
            taken.append([])
        taken[row].append(span)
        placed.append((mark, at, row, anchor))
    return placed


def label(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    extra = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


class Row(NamedTuple):
    """One run in a panel of the comparison; its name and bar lead to what the link names."""

    name: str
    value_s: float | None
    bound_s: float | None
    link: str


def panel(title: str, rows: Sequence[Row]) -> str:
    """One bar per run with its value, and a dashed line at its lower bound."""
    top = max([1e-12, *(v for row in rows for v in (row.value_s, row.bound_s) if v is not None)])
    finite = [row.value_s for row in rows if row.value_s is not None]
    best = min(finite, default=None)
    pitch, above = 40.0, 26.0
    width, height = 360.0, above + pitch * len(rows) + 6
    room = width - 8
    out = [f'<svg viewBox="0 0 {width:g} {height:g}" role="img" class="chart panel"><title>{escape(title)}</title>']
    out.append(label(0, 14, title, "start", "heading"))
    for i, row in enumerate(rows):
        y = above + i * pitch
        out.append(f'<a href="#{row.link}">')
        out.append(label(0, y + 12, _cut(row.name, 34), "start", "best" if row.value_s == best else ""))
        if row.value_s is None:
            out.append(label(room, y + 12, "did not end", "end") + "</a>")
            continue
        style = "bar best" if row.value_s == best else "bar"
        out.append(label(room, y + 12, seconds(row.value_s), "end", "value"))
        length = max(row.value_s / top * room, 1.0)
        out.append(f'<rect class="track" x="0" y="{y + 17:.1f}" width="{room:.1f}" height="11" rx="2"/>')
        out.append(f'<rect class="{style}" x="0" y="{y + 17:.1f}" width="{length:.1f}" height="11" rx="2"/></a>')
        if row.bound_s:
            at = row.bound_s / top * room
            out.append(
                f'<line class="bound" x1="{at:.1f}" x2="{at:.1f}" y1="{y + 15:.1f}" y2="{y + 30:.1f}">'
                f"<title>lower bound {seconds(row.bound_s)}</title></line>"
            )
    return "".join(out) + "</svg>"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
