"""One self-contained page of a sweep: every figure against the load, one line per policy, and distributions.

It reads the means over seeds that a sweep gives, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

from msgspec import Struct

from dovetail.core.results.confidence import Mean
from dovetail.report.document import card, document, for_widths
from dovetail.report.look import number
from dovetail.report.svg.bands import Axis, Line, Point, band_chart
from dovetail.report.svg.charts import line_piece
from dovetail.report.tables import TableColumn, table
from dovetail.version import __version__


class Figure(Struct, frozen=True):
    """A figure that is drawn: its key, its name, what it is divided by, and where its axis ends."""

    key: str
    name: str
    unit: float = 1.0
    top: float | None = None
    steep: bool = False
    lead: str = ""


_JCT = Figure("avg_jct_s", "average JCT, hours", 3600.0, steep=True, lead="From arrival to completion.")
_P95 = Figure("p95_jct_s", "P95 JCT, hours", 3600.0, steep=True, lead="One job in twenty takes longer.")
_MAKESPAN = Figure("makespan_s", "makespan, hours", 3600.0, steep=True, lead="Until the last job is done.")
_USE = Figure("utilization", "utilisation, %", 0.01, 100.0, lead="Share of accelerator time that jobs held.")
_COST = Figure("cost_per_job", "cost per completed job", lead="Of accelerator time that jobs held, at its price.")
_RHO = Figure(
    "rho_mean", "mean rho", steep=True, lead="Completion time over that with an equal share; below 1: better off."
)
_JAIN = Figure("jain", "Jain's index", 1.0, 1.0, lead="Of 1/rho: 1 if all jobs were treated alike.")
_ENVY = Figure(
    "envy", "envious pairs, %", 0.01, 100.0, lead="Pairs of jobs where one would rather have the other's task."
)
_LATE = Figure("late", "missed deadlines, %", 0.01, 100.0, lead="Of the jobs that have one.")


class SweepPoint(Protocol):
    """The runs of one policy at one load, which differ only in their seed."""

    cluster: str
    line: str
    load: float
    static: bool
    seeds: list[int]
    status: str
    reason: str
    means: dict[str, Mean]
    quantiles_s: list[float]


def sweep_page(found: Sequence[SweepPoint], title: str) -> str:
    """The whole page."""
    static = all(point.static for point in found)
    clusters = list(dict.fromkeys(group.cluster for group in found))
    seeds = sorted({seed for point in found for seed in point.seeds})
    facts = (
        f"{sum(len(g.seeds) for g in found):,} runs · {len({g.line for g in found})} lines · "
        f"seeds {', '.join(map(str, seeds))} · {len({g.load for g in found})} loads · clusters {', '.join(clusters)}"
    )
    body = [
        f'<header><div class="brand">Dovetail · cluster sweep</div><h1>{escape(title)}</h1>'
        f'<p class="facts">{escape(facts)}</p>{_notes(found)}</header>'
    ]
    body += [_cluster(name, [g for g in found if g.cluster == name], static) for name in clusters]
    body.append(
        f"<footer>Made by dovetail {__version__}. Lines are means over seeds, bands their 95 % confidence intervals "
        "(Student's t). A hollow point: the queue kept growing, so longer runs would give worse figures. A cross at "
        "the upper edge: a run was stopped as unstable, took too long, or failed.</footer>"
    )
    return document(title, "".join(body))


def _notes(found: Sequence[SweepPoint]) -> str:
    counts = {status: sum(g.status == status for g in found) for status in ("unstable", "timeout", "failed")}
    words = {"unstable": "unstable", "timeout": "not done in time", "failed": "failed"}
    notes = [f"{count} of {len(found)} points {words[status]}" for status, count in counts.items() if count]
    return f'<div class="notes" role="note"><p>{"; ".join(notes)}: see the table.</p></div>' if notes else ""


def _cluster(name: str, found: Sequence[SweepPoint], static: bool) -> str:
    lines = list(dict.fromkeys(group.line for group in found))
    pieces = (f'<svg width="26" height="12" class="chart panel">{line_piece(i, 0, 6)}</svg>' for i in range(len(lines)))
    named = "".join(f'<li class="key">{piece}{escape(line)}</li>' for piece, line in zip(pieces, lines, strict=True))
    key = f'<ul class="keys" aria-label="Lines">{named}</ul>'
    x = "jobs, all there at the start" if static else "jobs per hour"
    figures = [_MAKESPAN, _JCT] if static else [_JCT, _P95]
    figures += [figure for figure in (_USE, _COST, _RHO, _JAIN, _ENVY) if any(figure.key in g.means for g in found)]
    if any(group.means.get("late", Mean(0.0)).value for group in found):
        figures.append(_LATE)
    cards = [_card(figure, found, lines, x) for figure in figures] if any(g.means for g in found) else []
    return (
        f'<section class="run"><h2>{escape(name)}</h2>{key}<div class="two">{"".join(cards)}</div>'
        f"{_distributions(found, lines, static)}{_table(found, figures, static)}</section>"
    )


def _card(figure: Figure, found: Sequence[SweepPoint], lines: Sequence[str], x: str) -> str:
    drawn = []
    for i, name in enumerate(lines):
        points: list[Point] = []
        missing = []
        for group in sorted((g for g in found if g.line == name), key=lambda g: g.load):
            value = group.means.get(figure.key)
            if not group.means:
                missing.append((group.load, f"{group.status} at {number(group.load)}: {group.reason}"))
                continue
            if value is None:  # the runs are fine but have no such figure: a gap in the line
                drawn.append(Line(name, i, points))
                points = []
                continue
            y, half = value.value / figure.unit, value.half / figure.unit
            told = f"{name}: {_text(value, figure)} ({figure.name}) at {number(group.load)} {x}"
            told += f"; unstable: {group.reason}" if group.status == "unstable" else ""
            points.append(Point(group.load, y, half, group.status != "done", told))
        drawn.append(Line(name, i, points, missing))
    across, up, what = Axis(x), Axis(figure.name, figure.top, figure.steep), f"{figure.name} against {x}"
    chart = for_widths(lambda width: band_chart(across, up, drawn, f"{what}, one line per policy", width=width))
    heading = figure.name.partition(",")[0]
    return card(heading[0].upper() + heading[1:], chart, escape(figure.lead))


def _text(value: Mean, figure: Figure) -> str:
    text = number(value.value / figure.unit, 3)
    return f"{text} ± {number(value.half / figure.unit, 2)}" if value.half else text


def _distributions(found: Sequence[SweepPoint], lines: Sequence[str], static: bool) -> str:
    """Completion times at the lightest and the heaviest load that every line has results for; others are folded up."""
    loads = sorted({g.load for g in found if len(g.quantiles_s) > 1})
    if not loads:
        return ""
    complete = [at for at in loads if sum(g.load == at and len(g.quantiles_s) > 1 for g in found) == len(lines)]
    first = (complete or loads)[:: max(len(complete or loads) - 1, 1)]
    unit = "jobs" if static else "jobs per hour"
    charts = {
        at: f'<div><h3>{number(at)} {unit}</h3><div class="scroll">{_distribution(found, lines, at)}</div></div>'
        for at in loads
    }
    shown = "".join(charts[at] for at in first)
    others = "".join(chart for at, chart in charts.items() if at not in first)
    folded = f'<details><summary>Other loads</summary><div class="two">{others}</div></details>' if others else ""
    return (
        '<section class="card"><h2>Completion times</h2><p class="lead">Share of jobs completed within a time, '
        f'quantiles averaged over seeds.</p><div class="two">{shown}</div>{folded}</section>'
    )


def _distribution(found: Sequence[SweepPoint], lines: Sequence[str], load: float) -> str:
    drawn = []
    for group in found:
        if group.load == load and len(group.quantiles_s) > 1:
            last = len(group.quantiles_s) - 1
            points = [Point(max(q, 1.0) / 3600, 100 * i / last) for i, q in enumerate(group.quantiles_s)]
            drawn.append(Line(group.line, lines.index(group.line), points))
    x = Axis("completion time, hours", steep=True)
    y, what = Axis("share of jobs, %", 100.0), "Share of jobs completed within a time"
    return for_widths(lambda width: band_chart(x, y, drawn, what, width=width))


def _table(found: Sequence[SweepPoint], figures: Sequence[Figure], static: bool) -> str:
    load = TableColumn("jobs" if static else "jobs per hour", number=True)
    columns = [TableColumn("policy", style="name"), load, TableColumn("seeds", number=True)]
    columns += [*(TableColumn(figure.name, number=True) for figure in figures), TableColumn("status", style="whole")]
    rows, reasons = [], []
    for group in sorted(found, key=lambda g: (g.line, g.load)):
        values = [_text(group.means[f.key], f) if f.key in group.means else "" for f in figures]
        rows.append([group.line, number(group.load), str(len(group.seeds)), *values, group.status])
        if group.reason:
            reasons.append([group.line, number(group.load), group.status, group.reason])
    out = card("All figures", table(columns, rows))
    columns = [
        TableColumn("policy", style="name"),
        load,
        TableColumn("status", style="whole"),
        TableColumn("why", style="why"),
    ]
    return out + (card("Not done", table(columns, reasons)) if reasons else "")
