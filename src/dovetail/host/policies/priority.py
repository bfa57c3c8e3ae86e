"""The most urgent first; with preemption the less urgent are paused, with ageing the waiting grow more urgent."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.host.policies.base import MachineView, Planning
from dovetail.host.program import Program


@policy("priority", level="host")
class Priority(Planning):
    """The most urgent (0) goes first, of those the oldest; a less urgent one can be paused for it."""

    by_priority = True

    def order(self, view: MachineView) -> list[Program]:
        return sorted(view.waiting, key=lambda p: (view.urgency(p), p.seq))

    def may_pause(self, program: Program, view: MachineView) -> list[Program]:
        """The less urgent, as they were when they started: who started because of its age is not paused at once."""
        if not view.options.preemptive:
            return []
        urgency = view.urgency(program)
        less = [p for p in view.running if p.rank > urgency]
        if view.options.victim == "smallest":
            return sorted(less, key=lambda p: (p.asked, -_ran(p, view), p.seq))
        return sorted(less, key=lambda p: (-_ran(p, view), p.asked, p.seq))

    def look_s(self, view: MachineView) -> float | None:
        return view.next_age_s()


def _ran(program: Program, view: MachineView) -> float:
    """Rounded: two that ran equally long, in other pieces, are not told apart by the last digit of a sum."""
    return round(program.ran_s(view.now), 6)
