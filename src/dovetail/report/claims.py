"""The figures that a run's journal claims at its end, as a table: one column per run."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.words import Claim, Unit
from dovetail.report import look
from dovetail.report.data.collect import Story
from dovetail.report.document import card
from dovetail.report.tables import TableColumn, table


def claims_card(stories: Sequence[Story], names: Sequence[str]) -> str:
    """A card with the figures that the level of the first run names; nothing if it names none or no run ended."""
    longest_s = max((story.figures.makespan_s for story in stories), default=0.0)
    shown = [row for claim in stories[0].words.claims for row in _rows(claim, stories, longest_s)]
    if not shown:
        return ""
    heads = list(names) if len(stories) > 1 else ["value"]
    columns = [TableColumn("figure", style="name"), *(TableColumn(head, number=True) for head in heads)]
    lead = "What the journal claims at its end; <code>dovetail check</code> counts it again."
    return card("Figures", table(columns, shown), lead)


def _rows(claim: Claim, stories: Sequence[Story], longest_s: float) -> list[list[str]]:
    """A row for a number, or one for each name that has one; none where no run has it, or a bound that says nothing."""
    found = [story.summary.get(claim.key) for story in stories]
    keys = list(dict.fromkeys(key for value in found if isinstance(value, dict) for key in value))
    if keys:
        rows = [[value.get(key) if isinstance(value, dict) else None for value in found] for key in keys]
        return [
            [f"{claim.name}, {key}", *(_text(v, claim.unit, longest_s) for v in row)]
            for key, row in zip(keys, rows, strict=True)
        ]
    values = [story.claim(claim.key) for story in stories]
    if all(value is None for value in values) or not any(story.summary for story in stories):
        return []
    if claim.key.startswith("bound_") and not any(values):
        return []
    return [[claim.name, *(_text(value, claim.unit, longest_s) for value in values)]]


def _text(value: object, unit: Unit, longest_s: float) -> str:
    """Hours stand beside hours: what took a minute or more is told in the unit of the whole run."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if unit == "s":
        return look.seconds(value, longest_s if value >= 60 else 0.0)
    if unit == "share":
        return look.percent(value)
    return f"{value:,.0f}" if unit == "count" else look.number(value)
