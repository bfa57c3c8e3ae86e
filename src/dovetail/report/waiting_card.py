"""What tasks waited for, in words and as a table whose rows sum to the total."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.words import Words
from dovetail.report import look
from dovetail.report.data.collect import Story
from dovetail.report.data.waiting import Waited
from dovetail.report.document import card
from dovetail.report.tables import TableColumn, table


def said(kinds: Sequence[Waited], words: Words) -> str:
    """The waiting in a sentence or two; nothing where nobody waited.

    >>> words = Words(tasks="nodes", devices="GPUs", setups="switches")
    >>> print(said([Waited("chat", 3, 6.0, 2.0, 2.0, 4), Waited("draw", 1, 10.0)], words).replace(". ", ".\\n"))
    Waiting came to 20 s over 4 nodes, 50 % of it for chat's 4 GPUs.
    Meanwhile the GPUs that they then got ran other work for 80 %, were in switches for 10 % and idle for 10 %.
    """
    every = _sum(kinds)
    if not every.total_s > 0:
        return ""
    first = f"Waiting came to {look.seconds(every.total_s)} over {every.tasks:,} {words.tasks}"
    if len(kinds) > 1:
        most = kinds[0]
        on = f"'s {most.devices} {words.devices}" if most.devices > 1 else ""
        first += f", {look.percent(most.total_s / every.total_s)} of it for {most.kind}{on}"
    ran, set_up, idle = look.shares([every.running_s, every.setup_s, every.idle_s])
    did = (
        f"ran other work for {ran}, were in {words.setups} for {set_up} and"
        if words.setup
        else f"ran for {ran} and were"
    )
    return f"{first}. Meanwhile the {words.devices} that they then got {did} idle for {idle}."


def waiting_card(story: Story) -> str:
    """A row for each kind; left out where nobody waited, or where one kind has the sentence for itself."""
    words, kinds = story.words, story.waits
    every = _sum(kinds)
    if not every.total_s > 0 or len(kinds) < 2:
        return ""
    rows = [
        [
            each.kind,
            look.seconds(each.total_s, every.total_s),
            look.percent(each.total_s / every.total_s),
            look.seconds(each.running_s, every.total_s),
            *([look.seconds(each.setup_s, every.total_s)] if words.setup else []),
            look.seconds(each.idle_s, every.total_s),
            f"{each.tasks:,}",
        ]
        for each in (*kinds, every)
    ]
    heads = ["waiting", "share", "running", *([words.setup] if words.setup else []), "idle", words.tasks]
    columns = [TableColumn(words.kind, style="name"), *(TableColumn(name, number=True) for name in heads)]
    lead = (
        f"From ready to start, and what the {words.devices} that a {words.task} then got did meanwhile: run other "
        + (f"work, be in a {words.setup} " if words.setup else "work ")
        + "or stand idle. Each second counts once."
    )
    return card("Waiting", table(columns, rows), lead)


def _sum(kinds: Sequence[Waited]) -> Waited:
    total = Waited("all")
    for kind in kinds:
        total.tasks += kind.tasks
        total.running_s += kind.running_s
        total.setup_s += kind.setup_s
        total.idle_s += kind.idle_s
    return total
