"""First come, first served."""

from __future__ import annotations

from operator import attrgetter

from dovetail.core.registry import policy
from dovetail.host.policies.base import MachineView, Planning
from dovetail.host.program import Program


@policy("fcfs", level="host")
class FirstComeFirstServed(Planning):
    """First come, first served: the oldest goes first."""

    def order(self, view: MachineView) -> list[Program]:
        return list(view.waiting) if view.by_arrival else sorted(view.waiting, key=attrgetter("seq"))
