"""One round of decisions: who starts, who is paused for it, who must wait and why."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.host.policies.base import Assignment, MachineView, Planning
from dovetail.host.policies.reservation import Reservation
from dovetail.host.program import WAITING, Program

_NEAR = 3  # so many from the front of the queue are told whom they wait for: for all, each start would be told to all
FAR = ("behind", f"{_NEAR} or more others wait before it")


class Admission:
    """`starts` are to start or to go on, in this order; `pauses` come before them; `waits` are codes and reasons."""

    def __init__(self, view: MachineView, plan: Planning, assign: Assignment) -> None:
        self.view, self._plan, self._assign = view, plan, assign
        self.starts: list[Program] = []
        self.pauses: list[tuple[Program, str]] = []
        self.waits: dict[str, tuple[str, str]] = {}
        self.gpus: dict[str, tuple[int, ...]] = {}  # of those that start
        self._reservation: Reservation | None = None  # of the first that could not start
        self._blocked: Program | None = None
        self._closed = False  # whether nobody may start any more in this round
        self._lacking = False  # whether somebody needs memory or GPUs that a paused program may hold
        self._tried: set[str] = set()

    def pause(self, program: Program, why: str) -> None:
        """A running program goes back to the queue."""
        self.pauses.append((program, why))
        self.view.running.remove(program)
        del self.view.widths[program.id]
        self.view.gpus.pause(program)
        self.view.waiting.append(program)
        self.view.by_arrival = False
        self._count(program, -1)
        program.place = 1 << 60 | len(self.pauses)  # the end of the queue, in the order of the pauses
        program.queued_s = self.view.now

    def short_pauses(self) -> list[Program]:
        """Who is paused and goes on at once with as many cores."""
        return [p for p, _ in self.pauses if p in self.starts and self.view.widths[p.id] == len(p.cores)]

    def forget_short_pauses(self) -> None:
        """They are better left alone."""
        same = self.short_pauses()
        self.pauses = [(p, why) for p, why in self.pauses if p not in same]
        self.starts = [p for p in self.starts if p not in same]

    def run(self) -> None:
        view, assign = self.view, self._assign
        for other in view.running:  # who has more than it asks for gives that back before anybody takes
            view.widths[other.id] = min(view.widths[other.id], view.high(other, assign.keeps(other, view)))
        if view.options.first == "growth":
            view.widths = dict(assign.spread(view))
        for program in self._queue():
            full = view.lacks_place(program)
            if full and not self._makes_place(program):  # it keeps nobody back: what it waits for is no core
                self._tried.discard(program.id)  # if one of its group is paused, it is its turn again
                if len(self.waits) < _NEAR:
                    self.waits[program.id] = (full, full)  # the words are the key: told anew when a number changes
                continue
            cores = 0
            if self._blocked is None or self._may_overtake(program):
                cores = self._take(program)
            if cores:
                self.starts.append(program)
                view.running.append(program)
                view.widths[program.id] = cores
                self._count(program, 1)
                view.memory_mib += program.ask.memory_mib if program.state == WAITING else 0
                self.gpus[program.id] = gpus = view.gpus.room(program) or ()
                view.gpus.take(program, gpus)
            else:
                self._block(program)
                if self._is_over():
                    break
        view.widths = dict(assign.spread(view))

    def _count(self, program: Program, more: int) -> None:
        if program.ask.group in self.view.members:
            self.view.members[program.ask.group] += more

    def _queue(self) -> Iterator[Program]:
        """Each waiting program once, in the planning's order, which is asked for again when somebody is paused."""
        pauses = -1
        while pauses < len(self.pauses):
            pauses = len(self.pauses)
            for program in self._plan.order(self.view):
                if program.id not in self._tried and program.id not in self.view.widths:
                    self._tried.add(program.id)
                    yield program
                    if pauses < len(self.pauses):
                        break

    def _take(self, program: Program) -> int:
        """The cores for a waiting program, if need be from others that are paused for it."""
        view, assign = self.view, self._assign
        if lacks := view.lacks_memory(program):
            self.waits[program.id] = ("memory", lacks)
            self._lacking = True
            return 0
        cores, lacks = assign.take(program, view), view.gpus.lacks(program)
        if cores and not lacks:
            return cores
        self.waits[program.id] = ("gpus", lacks) if lacks else ("cores", assign.refusal(program, view))
        victims = self._victims(program)
        self._give_way(program, victims)
        self._lacking = self._lacking or bool(lacks and not victims)
        return assign.take(program, view) if victims else 0

    def _makes_place(self, program: Program) -> bool:
        """Whether less urgent ones of its full group, and others if need be, are paused for a program."""
        victims = [] if self.view.lacks_memory(program) else self._victims(program)
        if victims and (self._blocked is None or self._may_overtake(program)):
            self._give_way(program, victims)
            return True
        return False

    def _give_way(self, program: Program, victims: list[Program]) -> None:
        for other in victims:
            ran_s = other.ran_s(self.view.now)
            self.pause(other, f"gives way to {program.id}, which is more urgent (ran {ran_s:.6g} s)")

    def _victims(self, program: Program) -> list[Program]:
        """Whom to pause so that a program can start, first of its group if that is full; nobody if that does not do."""
        others = [other for other in self._plan.may_pause(program, self.view) if other not in self.starts]
        if not others:
            return []
        view, assign, gpus, group = self.view, self._assign, self.view.gpus.copy(), program.ask.group
        lack, victims = max(assign.lack(program, view), 0), []
        places = view.members[group] - view.limits[group] + 1 if view.lacks_place(program) else 0
        if places:
            others.sort(key=lambda other: other.ask.group != group)
        for other in others:
            if not lack and not places and not gpus.lacks(program):
                break
            is_place = places > 0 and other.ask.group == group
            if gpus.pause(other) or lack or is_place:
                victims.append(other)
                lack = max(lack - assign.frees(other, view), 0)
                places -= is_place
        return [] if lack or places or gpus.lacks(program) else victims

    # --- overtaking -------------------------------------------------------------------------------

    def _block(self, program: Program) -> None:
        """It cannot start, and who comes after it may have to wait for it: for the first, or for one of age."""
        if self._blocked is None:
            self._blocked = program
            if self.view.options.overtaking == "backfill":
                need = self._assign.lack(program, self.view) + self.view.free
                self._reservation = Reservation(program, need, self.view)
        if not self._closed and self.view.comes_of_age(program):
            self._blocked, self._closed = program, True

    def _is_over(self) -> bool:
        """Whether nobody that was not looked at can start."""
        shut = self._closed or self.view.options.overtaking == "none"
        return shut and not self._lacking and len(self.waits) >= _NEAR

    def _may_overtake(self, program: Program) -> bool:
        blocked, overtaking = self._blocked, self.view.options.overtaking
        assert blocked is not None
        if program.state != WAITING and self._lacking:
            return True  # it holds memory or a GPU that somebody needs, and only its end makes that free
        if overtaking == "none" or self._closed:
            behind = f"behind {blocked.id}"
            if len(self.waits) < _NEAR:
                self.waits[program.id] = (behind, f"{behind}, which {self.waits[blocked.id][1]}")
            return False
        if overtaking == "first-fit":
            return True
        cores = self._assign.take(program, self.view)
        if not cores or self.view.lacks_memory(program) or self.view.gpus.lacks(program):
            return True  # it cannot start anyway, and will be told why
        assert self._reservation is not None
        if self._reservation.admits(program, cores):
            return True
        self.waits[program.id] = (f"reserved {blocked.id}", str(self._reservation))
        return False
