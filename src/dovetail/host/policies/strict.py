"""Exactly what was asked for, or nothing yet."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.registry import policy
from dovetail.host.policies.base import Assignment, MachineView
from dovetail.host.program import Program


@policy("strict", level="host")
class Strict(Assignment):
    """A program gets the cores it asks for, all of them, or waits."""

    def take(self, program: Program, view: MachineView) -> int:
        return program.asked if program.asked <= view.free else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return program.asked - view.free

    def must_start(self, program: Program, view: MachineView) -> bool:
        return program.asked <= view.free

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        """All that it asked for, if all that it lacks is free."""
        wanted = {p.id: view.high(p, p.asked) for p in view.running}
        return {id: n if n - view.widths[id] <= view.free else view.widths[id] for id, n in wanted.items()}

    def spread(self, view: MachineView) -> Mapping[str, int]:
        """Only a program whose request was changed: less at once, more when all of it is free."""
        widths = dict(view.widths)
        for program in view.running:
            if program.asked < widths[program.id]:
                widths[program.id] = view.high(program, program.asked)
        free = view.free + sum(view.widths.values()) - sum(widths.values())
        for program in view.running:
            more = view.high(program, program.asked) - widths[program.id]
            if 0 < more <= free:
                widths[program.id] += more
                free -= more
        return widths
