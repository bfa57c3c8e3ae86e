"""Backfilling: when the first that could not start will, and who may start meanwhile without delaying it."""

from __future__ import annotations

from math import inf

from dovetail.host.policies.base import MachineView
from dovetail.host.program import WAITING, Program


class Reservation:
    """What is free when enough running programs have ended for a program that needs so many cores.

    `at_s` is that time by their expected ends: infinite if nobody knows, and then nobody may go before it.
    """

    def __init__(self, program: Program, need: int, view: MachineView) -> None:
        self._program, self._need, self._view = program, need, view
        self._cores, self._gpus = view.free, view.gpus.copy()
        self._mib = inf if view.options.memory_mib is None else view.options.memory_mib - view.memory_mib
        self.at_s = inf
        ends = [(p.ends_s(view.widths[p.id], view.now), p) for p in view.running]
        for ends_s, other in sorted(ends, key=lambda pair: (pair[0], pair[1].seq)):
            self._cores += view.widths[other.id]
            self._mib += other.ask.memory_mib
            self._gpus.end(other)
            if self._fits():
                self.at_s = ends_s
                return

    def admits(self, other: Program, cores: int) -> bool:
        """Whether another may start now with so many cores: it has ended by then, or both have room."""
        if self.at_s == inf:
            return False
        if other.ends_s(cores, self._view.now) <= self.at_s + 1e-9:
            return True
        before = self._cores, self._mib, self._gpus
        self._cores, self._mib, self._gpus = self._cores - cores, self._mib - _new_mib(other), self._gpus.copy()
        self._gpus.take(other, self._view.gpus.room(other) or ())
        if self._fits():
            return True
        self._cores, self._mib, self._gpus = before
        return False

    def _fits(self) -> bool:
        program = self._program
        return self._cores >= self._need and self._mib >= _new_mib(program) and not self._gpus.lacks(program)

    def __str__(self) -> str:
        when = f"at {self.at_s:.2f} s" if self.at_s < inf else "once others have ended, and nobody knows when"
        return f"would delay {self._program.id}, which is to start {when}"


def _new_mib(program: Program) -> int:
    """The memory that a start takes; a paused program has its own."""
    return program.ask.memory_mib if program.state == WAITING else 0
