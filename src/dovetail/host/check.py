"""Rules of the host level, over a journal, simulated or live: beside those that hold for every level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Complete,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
)
from dovetail.core.findings import Findings, Report, check_bounds, close, compare
from dovetail.core.journal import Ended, Header, open_journal
from dovetail.core.metrics import recount
from dovetail.host.bounds import makespan_bound_s
from dovetail.host.check_state import ProgramState
from dovetail.host.metrics import Programs
from dovetail.host.options import HostOptions
from dovetail.host.program import Ask

CODES = {
    "cores": "a program with fewer cores than its minimum, or more than its maximum",
    "idle": "a core left idle although somebody could use it",
    "limit": "an attempt that ran longer than it may",
    "overtaken": "a program that starts although one before it in line has waited for too long to be overtaken",
    "tries": "a program started again after more failures than it may have",
    "memory": "programs that need more memory than there is, paused ones included",
    "bound": "a makespan below what is possible",
    "held": "a program that runs although its user paused it, or before those that it waits for",
}
LIVE = "live"  # a header's mode, where times were measured


class HostRules:
    """Follows a run. An instant is judged when it is over: only then has everything been decided."""

    def __init__(self, header: Header, faults: Findings) -> None:
        self._faults = faults
        self._cores = len(header.pool)
        self._options = msgspec.convert(header.options, HostOptions)
        self._legacy = self._options.profile == "legacy"
        self._exact = header.mode != LIVE
        self._known: dict[str, ProgramState] = {}
        self._places = count()
        self._done: set[str] = set()
        self._arrivals: dict[str, tuple[float, Arrived]] = {}
        self._claimed: dict[str, Any] | None = None
        self._at: tuple[int, float] = (0, -inf)
        self.programs = Programs(self._cores)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        if t > self._at[1]:
            self._judge()
        self._at = (n, t)
        self._faults.at(n, t)
        self.programs.step(n, t, events)
        for event in events:
            if isinstance(event, Arrived) and event.sizes:
                self._arrivals[event.job] = (t, event)
            self._see(event, t)

    def _see(self, event: Any, t: float) -> None:
        known = self._known.get(getattr(event, "job", ""))
        match event:
            case Arrived(fault=""):
                try:
                    self._known[event.job] = ProgramState(Ask.of(event.job, event.facts), next(self._places), t)
                except InputError as error:
                    self._faults.add("cores", event.job, str(error))
            case Complete() | Reject():
                self._known.pop(event.job, None)
                if isinstance(event, Complete):
                    self._done.add(event.job)
            case Ended():
                self._claimed = event.summary
            case _ if known is not None:
                known.follow(event, next(self._places), t, self._cores)
                if isinstance(event, Start | Resume | Resize):
                    self._started(event, known)
                elif isinstance(event, Pause | Finished | Failed):
                    self._ran(event.job, known)

    def _started(self, event: Start | Resume | Resize, known: ProgramState) -> None:
        least, _, most = known.bounds(self._options, self._cores)
        if self._legacy:
            return
        if not least <= known.has <= most:
            self._faults.add("cores", event.job, f"found {known.has} cores, expected {least} to {most}")
        lacks = [other for other in known.ask.after if other not in self._done]
        if known.held or lacks:
            why = "its user paused it" if known.held else f"it waits for {lacks[0]}"
            self._faults.add("held", event.job, f"{type(event).__name__.lower()}, but {why}")
        if not isinstance(event, Resize):
            self._overtakes(event, known)
        if known.failures > known.ask.retries:
            self._faults.add(
                "tries", event.job, f"started after {known.failures} failures, expected {known.ask.retries} retries"
            )

    def _overtakes(self, event: Start | Resume, known: ProgramState) -> None:
        """Who holds memory while others lack it may: only its end makes it free."""
        options, now = self._options, self._at[1]
        mine = known.turn(options, now)
        if options.age_step_s is None or mine is None or (isinstance(event, Resume) and options.memory_mib is not None):
            return
        for job, other in self._known.items():
            theirs = other.turn(options, now)
            if other.is_of_age(options, now) and theirs is not None and theirs < mine and self._may_start(other):
                self._faults.add("overtaken", event.job, f"starts before {job}, which waits since {other.queued_s} s")

    def _ran(self, job: str, known: ProgramState) -> None:
        limit_s = known.ask.limit_s
        if limit_s is not None and self._exact and known.ran_s > limit_s and not close(known.ran_s, limit_s):
            self._faults.add("limit", job, f"ran for {known.ran_s} s, expected up to {limit_s} s")

    def _judge(self) -> None:
        """What must hold between two instants."""
        if not self._known:
            return
        self._faults.at(*self._at)
        begun = [known for known in self._known.values() if known.begun]
        memory_mib, total = sum(known.ask.memory_mib for known in begun), self._options.memory_mib
        if total is not None and memory_mib > total:
            self._faults.add("memory", "", f"found {memory_mib} MiB in use, expected up to {total} MiB")
        free = self._cores - sum(known.has for known in begun)
        if free > 0 and not self._legacy:
            self._judge_growth(free)
            self._judge_waiting(free, inf if total is None else total - memory_mib)

    def _judge_growth(self, free: int) -> None:
        for job, known in self._known.items():
            if known.has and not known.stopping and known.has < self._high(known, free):
                self._faults.add("idle", job, f"has {known.has} cores and could have more; {free} are idle")

    def _judge_waiting(self, free: int, memory_mib: float) -> None:
        """Who is first in line starts if it can; with first-fit, whoever can. An efficient one may choose to wait, but
        not for nobody."""
        options = self._options
        waiting = {job: known for job, known in self._known.items() if self._may_start(known)}
        if not waiting or (options.assign == "efficient" and free < self._cores):
            return
        if options.overtaking != "first-fit" or options.age_step_s is not None:
            turns = {job: known.turn(options, self._at[1]) for job, known in waiting.items()}
            if None not in turns.values():
                first = min(waiting, key=lambda job: turns[job] or ())
                waiting = {first: waiting[first]}
            elif len(waiting) > 1:
                return
        for job, known in waiting.items():
            least, asked, _ = known.bounds(options, self._cores)
            need = asked if options.assign == "strict" else least
            if need <= free and (known.begun or known.ask.memory_mib <= memory_mib):
                self._faults.add("idle", job, f"waits for {need} cores; {free} are idle")
                return

    def _may_start(self, known: ProgramState) -> bool:
        ready = all(other in self._done for other in known.ask.after)
        return not known.has and not known.held and not known.stopping and ready

    def _high(self, known: ProgramState, free: int) -> int:
        """The most cores that its assignment would give it; under strict, all that it asked for or nothing."""
        assign, (_, asked, most) = self._options.assign, known.bounds(self._options, self._cores)
        if assign == "max_prop":
            return most
        if assign == "efficient":
            return (
                most
                if known.curve.gain(known.has, known.curve.sweet(most, self._options.efficiency)) > 1e-9
                else known.has
            )
        more = min(asked, most) - known.has
        return known.has + more if assign == "always_attend" or more <= free else known.has

    def finish(self) -> None:
        """What only the end can tell."""
        self._judge()
        self._faults.nowhere()
        totals = self.programs.totals().as_dict()
        try:
            completed = [arrival for job, arrival in self._arrivals.items() if job in self._done]
            totals["bound_makespan_s"] = makespan_bound_s(completed, self._cores)
        except InputError:
            return  # a curve that cannot be read has its fault
        check_bounds(totals, totals, self._faults)
        if self._claimed is not None:
            compare(self._claimed, {key: value for key, value in totals.items() if key != "makespan_s"}, self._faults)


def check_journal(path: Path) -> Report:
    """Check a journal of this level by all rules."""
    reader = open_journal(path)
    faults = Findings()
    try:
        rules = HostRules(reader.header, faults)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}:1: not a usable header: options: {error}") from None
    exact = reader.header.mode != LIVE
    notes = [] if exact else ["a live run: how long programs took is not checked"]
    figures = core.check_journal(reader, faults, [rules], exact, may_go_on=not exact)
    if not faults.interrupted:
        rules.finish()
    return Report.of(str(path), "journal", faults, notes, recount(figures))
