"""How much of each device was used, as a table; of many devices, each type as one."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.report import look
from dovetail.report.data.collect import Story
from dovetail.report.document import card
from dovetail.report.tables import Raw, TableColumn, table

_MANY = 64


class Use(NamedTuple):
    """What a device did, or on average the devices of a type; shares are of the run's length."""

    name: str
    type: str
    run: float
    setup: float
    tasks: int


def uses(story: Story) -> list[Use]:
    """One per device, or one per type where there are many devices."""
    span, found = story.figures.makespan_s, []
    names, pool = look.device_names(story), story.header.pool.devices
    for device in story.figures.devices:
        busy = min(device.busy_s / span, 1.0) if span else 0.0
        setup = min(device.setup_s / span, busy) if span else 0.0
        found.append(Use(names[device.id], pool[device.id].type, busy - setup, setup, device.executions))
    if len(found) <= _MANY:
        return found
    groups: dict[str, list[Use]] = {}
    for use in found:
        groups.setdefault(use.type, []).append(use)
    return [
        Use(
            f"{len(group):,} x {name}",
            name,
            sum(use.run for use in group) / len(group),
            sum(use.setup for use in group) / len(group),
            sum(use.tasks for use in group),
        )
        for name, group in groups.items()
    ]


def usage_card(story: Story) -> str:
    words = story.words
    grouped = len(story.header.pool) > _MANY
    typed = not grouped and look.types_say_something(story)
    rows = []
    for use in uses(story):
        idle = 1 - use.run - use.setup
        told = f", {look.percent(use.setup)} {words.setup}" if words.setup else ""
        stack = (
            f'<div class="stack" title="{look.percent(use.run)} running{told}, '
            f'{look.percent(idle)} idle"><i class="busy" style="width:{use.run * 100:.2f}%"></i>'
            f'<i class="setup" style="width:{use.setup * 100:.2f}%"></i></div>'
        )
        shares = [look.percent(use.run), *([look.percent(use.setup)] if words.setup else []), look.percent(idle)]
        rows.append([use.name, *([use.type] if typed else []), Raw(stack), *shares, f"{use.tasks:,}"])
    columns = [TableColumn(words.devices if grouped else words.device, style="whole")]
    columns += [TableColumn("type", style="type")] if typed else []
    columns.append(TableColumn("", style="bar"))
    heads = ["running", *([words.setup] if words.setup else []), "idle", words.tasks]
    columns += [TableColumn(name, number=True) for name in heads]
    setup_key = f'<i class="swatch setup"></i> {words.setup}, ' if words.setup else ""
    what = f"the {words.devices} of each type" if grouped else f"each {words.device}"
    lead = (
        f'What {what} did until the last {words.task} ended: <i class="swatch" style="--c:var(--accent)"></i> running, '
        f'{setup_key}<i class="swatch idle"></i> idle.'
    )
    return card("Utilisation", table(columns, rows), lead)
