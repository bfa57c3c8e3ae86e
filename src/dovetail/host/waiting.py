"""Who waits, kept from one decision to the next: of a long queue little changes, and nobody goes through all of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter

from dovetail.host.program import RUNNING, Program

_seq = attrgetter("seq")
_NAMED = 3  # of those that one waits for


def waits_for(names: Iterable[str]) -> str:
    """For whom one waits, in words; nothing if for nobody.

    >>> waits_for(["1", "2"]), waits_for("abcd"), waits_for([])
    ('waits for 1, 2', 'waits for a, b, c and others', '')
    """
    left = list(islice(names, _NAMED + 1))
    return f"waits for {', '.join(left[:_NAMED])}{' and others' if left[_NAMED:] else ''}" if left else ""


class WaitingPrograms:
    """Programs that nothing but others keeps from running (`may_run`), in the order of their arrivals. All others are
    looked at before each decision, which are few unless they wait for each other."""

    def __init__(self) -> None:
        self._ready: list[Program] = []
        self._others: dict[str, Program] = {}
        self._near: dict[str, Program] = {}  # those of whom more is to be said than that they are far behind

    def look_again(self, program: Program) -> None:
        """It has come, or something has changed about it."""
        self._drop(program)
        self._others[program.id] = program

    def leave(self, program: Program) -> None:
        self._drop(program)
        self._others.pop(program.id, None)

    def _drop(self, program: Program) -> None:
        if program.may_run:
            program.may_run = False
            del self._ready[bisect_left(self._ready, program.seq, key=_seq)]
            self._near.pop(program.id, None)

    def ready(self, may_run: Callable[[Program], bool]) -> list[Program]:
        """All that may run now."""
        for program in sorted(self._others.values(), key=_seq):
            if may_run(program):
                del self._others[program.id]
                program.may_run = True
                self._ready.insert(bisect_left(self._ready, program.seq, key=_seq), program)
                self._near[program.id] = program
        return list(self._ready)

    def told(self, program: Program, far: bool) -> None:
        """It was said why it waits."""
        if far:
            self._near.pop(program.id, None)
        elif program.may_run:
            self._near[program.id] = program

    def to_tell(self, waits: Iterable[Program], paused: Iterable[Program]) -> list[Program]:
        """Of whom it is to be said why they wait: those who wait for something that is known, those of whom nothing was
        said yet, and those who were near; in the order of arrivals, then those who have been paused."""
        last = list(paused)
        late = {program.id for program in last}
        found = self._near | {program.id: program for program in waits}
        early = sorted((p for p in found.values() if p.id not in late), key=_seq)
        return [program for program in (*early, *last) if program.state != RUNNING]
