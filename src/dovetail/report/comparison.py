"""Several runs of a level side by side; those on other devices, or of other work, are not ranked together."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dovetail.report import look
from dovetail.report.claims import claims_card
from dovetail.report.data.collect import Story
from dovetail.report.document import for_widths
from dovetail.report.svg import charts
from dovetail.report.svg.lines import cumulative
from dovetail.report.tables import Raw, TableColumn, table


class _Entry(NamedTuple):
    """A run, its name among those that it is compared with, and its place among the tabs."""

    story: Story
    name: str
    place: int

    @property
    def link(self) -> str:
        return f"run-{self.place}"


def comparison(stories: Sequence[Story], names: Sequence[str], places: Sequence[int]) -> str:
    """The cards. Within a facet runs go by their policies; the figures that journals claim are of all together."""
    facets = look.facets(stories)
    apart = len(facets) > 1
    parts = []
    for title, members in facets:
        of = look.names([stories[i] for i in members])
        entries = [_Entry(stories[i], name, places[i]) for i, name in zip(members, of, strict=True)]
        parts.append((f"<h3>{escape(title)}</h3>" if apart else "") + _facet(entries))
    lead = "Shorter is better; the best of each stands out. " + (
        "Runs on other devices, or of other work, stand apart: each group has its own ranking. " if apart else ""
    )
    return (
        '<section class="card comparison" aria-labelledby="comparison"><h2 id="comparison">Comparison</h2>'
        f'<p class="lead">{lead}The dashed line is the lower bound: no schedule can be shorter. '
        "Small numbers say how far above it a value lies. A bar, a name or a curve leads to its run.</p>"
        f"{''.join(parts)}</section>{claims_card(stories, names)}"
    )


def _facet(entries: Sequence[_Entry]) -> str:
    words = entries[0].story.words
    panels, columns = [], [TableColumn("run", style="name")]
    cells: list[list[Raw | str]] = [[Raw(f'<a href="#{each.link}">{escape(each.name)}</a>')] for each in entries]
    for each in zip(*(look.counted(entry.story) for entry in entries), strict=True):
        title, ended = each[0].name, [entry.story.ended for entry in entries]
        rows = zip(entries, each, ended, strict=True)
        panels.append(
            charts.panel(title, [charts.Row(o.name, h.value_s if e else None, h.bound_s, o.link) for o, h, e in rows])
        )
        best = min((h.value_s for h, e in zip(each, ended, strict=True) if e), default=None)
        columns.append(TableColumn(title, number=True))
        for row, (_, value, bound) in zip(cells, each, strict=True):
            text = f"<b>{look.seconds(value)}</b>" if value == best else look.seconds(value)
            row.append(Raw(f"{text} <small>{look.above(value, bound)}</small>"))
    setups = [words.setups, f"{words.setup} time"] if words.setup and not words.claims else []
    late = ["late"] if any(entry.story.figures.late for entry in entries) else []
    heads = ["running" if words.setup else "utilisation", *setups, "completed", words.rejected, *late]
    columns += [TableColumn(name, number=True) for name in heads]
    for row, entry in zip(cells, entries, strict=True):
        f = entry.story.figures
        row.append(look.percent(look.running(entry.story)))
        row += [f"{f.switches:,}", look.seconds(f.switch_time_s)] if setups else []
        row += [f"{f.completed:,}", f"{f.rejected:,}", *([f"{f.late:,}"] if late else [])]
    return (
        f'<div class="three">{"".join(panels)}</div>'
        + ("" if words.parts else f'<div class="scroll">{_curves(entries)}</div>')
        + f'<div class="scroll">{table(columns, cells)}</div>'
    )


def _curves(entries: Sequence[_Entry]) -> str:
    """How many of all jobs were done after which time, a curve for each run."""
    named, links = [each.name for each in entries], [each.link for each in entries]
    responses_s, response = [each.story.responses_s for each in entries], entries[0].story.words.response
    return for_widths(lambda width: cumulative(named, responses_s, response, links, width), 1100.0)
