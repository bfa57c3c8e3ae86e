"""The next core where it gains most, by each program's own speed-up curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.registry import policy
from dovetail.host.policies.base import Assignment, MachineView, count
from dovetail.host.policies.shares import give_where_it_gains
from dovetail.host.program import Program


@policy("efficient", level="host")
class Efficient(Assignment):
    """Each core goes where it adds most speed by the programs' own curves, and none beyond a program's sweet spot.

    A program waits where it would cost the others more than it gains.
    """

    exceeds = shrinks = True

    def most(self, program: Program, view: MachineView) -> int:
        """Its sweet spot."""
        return max(program.curve.sweet(program.most, view.options.efficiency), program.least)

    def take(self, program: Program, view: MachineView) -> int:
        if view.spare < program.least:
            return 0
        without, with_it = view.running, [*view.running, program]
        gained = self._speed(with_it, self._share(with_it, view)) - self._speed(without, self._share(without, view))
        return program.least if gained >= -1e-9 else 0

    def lack(self, program: Program, view: MachineView) -> int:
        return max(program.least - view.spare, 0)

    def frees(self, program: Program, view: MachineView) -> int:
        return view.low(program)

    def must_start(self, program: Program, view: MachineView) -> bool:
        """It may choose to wait, but not for nobody."""
        return view.free == view.cores and program.least <= view.free

    def must_have(self, view: MachineView) -> Mapping[str, int]:
        """Another core, as long as one makes it faster."""
        return {
            p.id: n + (p.curve.gain(n, self.most(p, view)) > 1e-9) for p in view.running for n in [view.widths[p.id]]
        }

    def spread(self, view: MachineView) -> Mapping[str, int]:
        return self._share(view.running, view)

    def _share(self, members: Sequence[Program], view: MachineView) -> dict[str, int]:
        widths = {p.id: view.low(p) if p.id in view.widths else p.least for p in members}
        most = {p.id: max(view.high(p, self.most(p, view)), widths[p.id]) for p in members if p.id in view.widths}
        most |= {p.id: self.most(p, view) for p in members if p.id not in view.widths}
        left = view.cores - view.held - sum(widths.values())
        give_where_it_gains(members, widths, most, left)
        return widths

    def _speed(self, members: Sequence[Program], widths: Mapping[str, int]) -> float:
        return sum(p.curve.speed(widths[p.id]) for p in members)

    def refusal(self, program: Program, view: MachineView) -> str:
        if view.spare < program.least:
            return f"needs at least {count(program.least)}, the others can spare {max(view.spare, 0)}"
        return "would slow the others more than it gains"

    def reason(self, program: Program, cores: int, view: MachineView) -> str:
        return f"{count(cores)} make it {program.curve.speed(cores):.3g} times as fast as one"
