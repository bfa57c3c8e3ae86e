"""Round Robin: everybody in turn, for a quantum of time."""

from __future__ import annotations

from operator import attrgetter

from dovetail.core.registry import policy
from dovetail.host.policies.base import MachineView, Planning
from dovetail.host.program import Program


@policy("rr", level="host")
class RoundRobin(Planning):
    """Everybody in turn: after its quantum a program goes to the end of the queue, if somebody waits."""

    def order(self, view: MachineView) -> list[Program]:
        return sorted(view.waiting, key=attrgetter("place"))

    def over(self, view: MachineView) -> list[Program]:
        """In the order in which their turns began: of those that end together, who was first is first in line again."""
        over = [p for p in view.running if p.turn_s + view.options.quantum_s <= view.now]
        return sorted(over, key=lambda p: p.place)

    def look_s(self, view: MachineView) -> float | None:
        return min((p.turn_s + view.options.quantum_s for p in view.running), default=None)
