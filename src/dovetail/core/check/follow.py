"""Follows a run step by step and names what cannot be. What it accepts as physically possible it passes on to its
followers (the metrics, a level's own rules), so these meet no nonsense.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.check.clock import Allowance
from dovetail.core.check.jobs import JobRules
from dovetail.core.events import (
    Arrived,
)
from dovetail.core.findings import Findings, check_bounds, compare
from dovetail.core.journal import Ended, Header, Observer
from dovetail.core.metrics import Figures, Metrics, recount


class _Record(Struct):
    n: int
    t: float
    event: Any

    @property
    def about(self) -> tuple[str, str] | None:
        """The task that it tells of, if it tells of one."""
        task = getattr(self.event, "task", None)
        return None if task is None else (self.event.job, task)


class Check:
    """Judges when things happened, and lets the rules of jobs judge what; `finish` says what only the end can tell.

    `exact` says that everything takes as long as was expected: no noise, no real executor. The bounds that a run claims
    hold, unless the level says that they do not, or not for this run.
    """

    def __init__(
        self,
        header: Header,
        faults: Findings | None = None,
        followers: Sequence[Observer] = (),
        exact: bool = True,
        bounds_hold: bool = True,
    ) -> None:
        self.faults = faults if faults is not None else Findings()
        self._header = header
        self._metrics = Metrics(header.pool, from_first_arrival=header.from_first_arrival)
        self._followers = (self._metrics, *followers)
        self._bounds_hold = bounds_hold
        self._t = -inf
        self._allowance = Allowance(header.clock)
        self._rules = JobRules(header, self.faults, self._allowance, exact)
        self._held: list[_Record] = []  # not possible yet: stamps may be early by as much as the clock may be wrong
        self._sound: list[_Record] = []
        self._ended: Ended | None = None

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.faults.at(n, t)
        early = t < self._t and not told_late(self._header, events)
        if early and not self._allowance.exceeded(t, self._t):
            self._allowance.used(self._t - t)
            early = False
        if early or not -inf < t < inf:
            self.faults.add("time", "", f"found {t}, expected a time from {self._t} on")
        if t == t and (early or t > self._t):
            self._t = t
        if self._ended is not None:
            self.faults.add("end", "", "the run goes on after its end")
        if self._header.clock.error_s <= 0:
            self._tell(n, t, [event for event in events if self._handle(n, t, event)])
            return
        self._rules.holders.look(t)
        self._give_up_waiting(t)
        for event in events:
            self._see(_Record(n, t, event))
        self._tell_all()

    def _handle(self, n: int, t: float, event: Any) -> bool:
        if isinstance(event, Ended):
            if self._ended is not None:
                self.faults.add("end", "", "the run ended before")
            self._ended = event
        return self._rules.handle(n, t, event)

    def _tell(self, n: int, t: float, sound: Sequence[Any]) -> None:
        for follower in self._followers:
            follower.step(n, t, sound)

    # --- records whose stamps may be wrong --------------------------------------------------------

    def _see(self, record: _Record) -> None:
        """Take a record that is possible, and then those that waited for it; let others wait."""
        if self._is_early(record):
            self._held.append(record)
            return
        self._take(record)
        while (possible := next((each for each in self._held if not self._is_early(each)), None)) is not None:
            self._allowance.used(record.t - possible.t)
            self._held.remove(possible)
            self._take(possible)

    def _take(self, record: _Record) -> None:
        self.faults.at(record.n, record.t)
        if self._handle(record.n, record.t, record.event):
            self._sound.append(record)

    def _give_up_waiting(self, t: float) -> None:
        """What waited for longer than the clock may be wrong is the fault that it looks like."""
        while self._held and self._allowance.exceeded(self._held[0].t, t):
            late, *waiting = self._held
            self._held = []
            self._take(late)
            for each in waiting:
                self._see(each)

    def _tell_all(self) -> None:
        sound, self._sound = self._sound, []
        for (n, t), records in groupby(sound, key=lambda record: (record.n, record.t)):
            self._tell(n, t, [record.event for record in records])

    def _is_early(self, record: _Record) -> bool:
        """Whether a record may be possible later. What was written about one task is taken in that order."""
        about = record.about
        if about is not None and any(each.n < record.n and each.about == about for each in self._held):
            return True
        return self._rules.is_early(record.event)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def finish(self, torn: bool = False, may_go_on: bool = False) -> Figures:
        """Check what only the end can tell; gives the figures as recounted. A run without an end is one fault, or a
        note if it may still go on: what is open then is none."""
        faults = self.faults
        if self._ended is not None:
            self._give_up_waiting(inf)
            self._tell_all()
        faults.nowhere()
        if self._ended is None:
            figures = self._metrics.figures()
            unfinished = self._header.unfinished(figures.completed, len(self._rules.open))
            self._interrupted(unfinished, torn, may_go_on)
            return figures
        if torn:
            faults.add("end", "", "a torn line follows the end of the run")
        for job, task in self._rules.running:
            faults.add("running", f"{job}/{task}", "still runs at the end")
        for id in self._rules.preparing:
            faults.add("running", f"preload {id}", "has not ended at the end")
        for name in self._rules.open:
            faults.add("unclosed", name, "arrived, but was neither completed nor rejected")
        figures = self._metrics.figures()
        counted = recount(figures)
        compare(self._ended.summary, counted, faults)
        if self._bounds_hold:
            check_bounds(self._header.facts | self._ended.summary, counted, faults, self._header.clock.error_s)
        if (note := self._allowance.note()) is not None:
            faults.notes.append(note)
        return figures

    def _interrupted(self, unfinished: int, torn: bool, may_go_on: bool) -> None:
        self.faults.interrupted = True
        if may_go_on and not torn:
            self.faults.notes.append("the run had not ended when this was written: what is open is no fault")
            return
        self.faults.add("end", "", did_not_end(self._header, unfinished, torn))


def did_not_end(header: Header, unfinished: int, torn: bool = False) -> str:
    """What is said of a run that was interrupted, in the words of its level."""
    words = header.words
    what = f"did not end: {unfinished} {words.job if unfinished == 1 else words.jobs} unfinished"
    return what + (", its last line is torn" if torn else "") + (f"; {words.resume}" if words.resume else "")


def told_late(header: Header, events: Sequence[Any]) -> bool:
    """Whether a step only says who arrived: a level that decides in rounds tells it with the next round."""
    return not header.graphs and all(type(event) is Arrived for event in events)
