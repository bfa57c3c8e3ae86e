"""Exactly what was asked for, or nothing yet; and what nobody needs, for those who said that they can use it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.registry import policy
from dovetail.host.policies.base import Assignment, MachineView
from dovetail.host.policies.shares import give_where_it_gains
from dovetail.host.program import Program


@policy("strict", level="host")
class Strict(Assignment):
    """A program gets the cores it asks for, all of them, or waits; one that says it can use more is lent idle ones.

    These are given back as soon as somebody else can start on them: they delay nobody.
    """

    def most(self, program: Program, view: MachineView) -> int:
        return max(program.most, program.asked) if self._may_borrow(program, view) else program.asked

    def _may_borrow(self, program: Program, view: MachineView) -> bool:
        """Whether it said so itself, and nothing forbids that cores are given back, or that they go to others first."""
        options, ask = view.options, program.ask
        return ask.most is not None and ask.malleable and options.shrink is not False and options.first == "admission"

    def keeps(self, program: Program, view: MachineView) -> int:
        return program.asked

    def take(self, program: Program, view: MachineView) -> int:
        return program.asked if program.asked <= view.free else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return program.asked - view.free

    def must_start(self, program: Program, view: MachineView) -> bool:
        """Lent cores count as free."""
        return program.asked <= view.free + self.lent(view)

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        """All that it asked for, if all that it lacks is free; who has that, one more, if it can use one."""
        return {p.id: self._least(p, view) for p in view.running}

    def _least(self, program: Program, view: MachineView) -> int:
        has, asked = view.widths[program.id], view.high(program, program.asked)
        if has < asked:
            return asked if asked - has <= view.free else has
        return has + (program.curve.gain(has, view.high(program, self.most(program, view))) > 1e-9)

    def spread(self, view: MachineView) -> Mapping[str, int]:
        """Who asks for less gives at once, who asks for more gets it when all of it is free; what is left is lent."""
        widths = {p.id: min(view.widths[p.id], view.high(p, p.asked)) for p in view.running}
        free = view.free + sum(view.widths.values()) - sum(widths.values())
        for program in view.running:
            more = view.high(program, program.asked) - widths[program.id]
            if 0 < more <= free:
                widths[program.id] += more
                free -= more
        able = [p for p in view.running if self._may_borrow(p, view) and widths[p.id] >= p.asked]
        give_where_it_gains(able, widths, {p.id: view.high(p, self.most(p, view)) for p in able}, free)
        return widths

    def reason(self, program: Program, cores: int, view: MachineView) -> str:
        lent = cores - program.asked
        return f"{cores}, of which {lent} lent while idle" if lent > 0 else f"{cores} of {program.asked} asked"
