"""Whoever comes is served, if only with one core."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.registry import policy
from dovetail.host.policies.base import Assignment, MachineView, count
from dovetail.host.program import Program


@policy("always_attend", level="host")
class AlwaysAttend(Assignment):
    """A program starts as soon as its least number of cores is free, and grows to what it asked for, oldest first."""

    def take(self, program: Program, view: MachineView) -> int:
        if view.free >= program.least:
            return min(program.asked, view.free)
        return program.least if view.spare >= program.least else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return program.least - view.spare

    def frees(self, program: Program, view: MachineView) -> int:
        return view.low(program)

    def must_start(self, program: Program, view: MachineView) -> bool:
        return program.least <= view.free

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        return {p.id: view.high(p, p.asked) for p in view.running}

    def spread(self, view: MachineView) -> Mapping[str, int]:
        widths = {p.id: min(view.widths[p.id], view.high(p, p.asked)) for p in view.running}
        free = view.free + sum(view.widths.values()) - sum(widths.values())
        lows = {p.id: view.low(p) for p in view.running}
        oldest_first = sorted(view.running, key=lambda p: p.seq)
        while free < 0:  # somebody was admitted at the others' expense: the widest give
            widest = max(reversed(oldest_first), key=lambda p: (widths[p.id] > lows[p.id], widths[p.id]))
            widths[widest.id] -= 1
            free += 1
        for program in oldest_first:
            more = min(max(view.high(program, program.asked) - widths[program.id], 0), free)
            widths[program.id] += more
            free -= more
        return widths

    def refusal(self, program: Program, view: MachineView) -> str:
        return f"needs at least {count(program.least)}, {view.free} free"
