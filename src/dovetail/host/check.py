"""Rules of the host level, over a journal, simulated or live: beside those that hold for every level."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core import check as core
from dovetail.core.check import Faults, Report, compare
from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
)
from dovetail.core.journal import Ended, Header, open_journal
from dovetail.core.metrics import recount
from dovetail.host.bounds import makespan_bound_s
from dovetail.host.curves import curve
from dovetail.host.metrics import Programs
from dovetail.host.options import Options
from dovetail.host.program import Ask

CODES = {
    "cores": "a program with fewer cores than its minimum, or more than its maximum",
    "idle": "a core left idle although somebody could use it",
    "memory": "programs that need more memory than there is, paused ones included",
    "bound": "a makespan below what is possible",
    "held": "a program that runs although its user paused it, or before those that it waits for",
}
LIVE = "live"  # a header's mode, where times were measured


class _Known:
    """A program that has arrived and is not closed."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.asked = ask.cores
        self.has = 0
        self.begun = self.held = self.stopping = False


class Rules:
    """Follows a run. An instant is judged when it is over: only then has everything been decided."""

    def __init__(self, header: Header, faults: Faults) -> None:
        self._faults = faults
        self._cores = len(header.pool)
        self._options = msgspec.convert(header.options, Options)
        self._legacy = self._options.profile == "legacy"
        self._known: dict[str, _Known] = {}
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
                self._arrivals[event.work] = (t, event)
            self._see(event)

    def _see(self, event: Any) -> None:
        known = self._known.get(getattr(event, "work", ""))
        match event:
            case Arrived(fault=""):
                try:
                    self._known[event.work] = _Known(Ask.of(event.work, event.facts))
                except InputError as error:
                    self._faults.add("cores", event.work, str(error))
            case Complete() | Reject():
                self._known.pop(event.work, None)
                if isinstance(event, Complete):
                    self._done.add(event.work)
            case Ended():
                self._claimed = event.summary
            case _ if known is not None:
                self._change(event, known)

    def _change(self, event: Any, known: _Known) -> None:
        match event:
            case Start() | Resume() | Resize():
                known.has, known.begun = len(event.devices), True
                self._bounds(event, known)
            case Pause():
                known.has = 0
            case Stop():
                known.stopping = True
            case Finished() | Failed():
                known.has, known.begun, known.stopping = 0, False, False
            case Asked(what="pause"):
                known.held = True
            case Asked(what="resume" | "cancel" | "requeue"):
                known.held = False
            case Asked(what="resize", value=float() | int() as value):
                known.asked = max(min(int(value), self._cores), known.ask.least)

    def _bounds(self, event: Start | Resume | Resize, known: _Known) -> None:
        least, most = self._range(known)
        if not least <= known.has <= most and not self._legacy:
            self._faults.add("cores", event.work, f"found {known.has} cores, expected {least} to {most}")
        lacks = [other for other in known.ask.after if other not in self._done]
        if known.held or lacks:
            why = "its user paused it" if known.held else f"it waits for {lacks[0]}"
            self._faults.add("held", event.work, f"{type(event).__name__.lower()}, but {why}")

    def _range(self, known: _Known) -> tuple[int, int]:
        options, ask = self._options, known.ask
        least = min(max(ask.least, options.min_cores), known.asked)
        most = min(ask.most or self._cores, options.max_cores or self._cores, self._cores)
        if options.assign in ("strict", "always_attend"):
            most = min(most, max(known.asked, ask.cores))
        return least, max(most, least)

    def _judge(self) -> None:
        """What must hold between two instants."""
        if not self._known:
            return
        self._faults.at(*self._at)
        begun = [known for known in self._known.values() if known.begun]
        if self._options.memory_mib is not None:
            used = sum(known.ask.memory_mib for known in begun)
            if used > self._options.memory_mib:
                self._faults.add(
                    "memory", "", f"found {used} MiB in use, expected up to {self._options.memory_mib} MiB"
                )
        free = self._cores - sum(known.has for known in begun)
        if free > 0 and not self._legacy:
            self._judge_idle(free)

    def _judge_idle(self, free: int) -> None:
        for work, known in self._known.items():
            if known.has and not known.stopping and known.ask.malleable and known.has < self._high(known, free):
                self._faults.add("idle", work, f"has {known.has} cores and could have more; {free} are idle")
        waiting = {work: self._needs(known) for work, known in self._known.items() if self._may_start(known)}
        if not waiting or self._options.assign == "efficient" or self._options.memory_mib is not None:
            return
        passing = self._options.overtaking == "first-fit" and self._options.age_step_s is None
        if (any if passing else all)(need <= free for need in waiting.values()):
            work = min(waiting, key=lambda work: waiting[work])
            self._faults.add("idle", work, f"waits for {waiting[work]} cores; {free} are idle")

    def _may_start(self, known: _Known) -> bool:
        ready = all(other in self._done for other in known.ask.after)
        return not known.has and not known.held and not known.stopping and ready

    def _needs(self, known: _Known) -> int:
        return known.asked if self._options.assign == "strict" else self._range(known)[0]

    def _high(self, known: _Known, free: int) -> int:
        """The most cores that its assignment would give it; under strict, all that it asked for or nothing."""
        assign, most = self._options.assign, self._range(known)[1]
        if assign == "max_prop":
            return most
        if assign == "efficient":
            curved = curve(known.ask.curve)
            return most if curved.gain(known.has, curved.sweet(most, self._options.efficiency)) > 1e-9 else known.has
        more = min(known.asked, most) - known.has
        return known.has + more if assign == "always_attend" or more <= free else known.has

    def finish(self) -> None:
        """What only the end can tell."""
        self._judge()
        self._faults.nowhere()
        totals = msgspec.to_builtins(self.programs.totals())
        try:
            completed = [arrival for work, arrival in self._arrivals.items() if work in self._done]
            totals["bound_makespan_s"] = makespan_bound_s(completed, self._cores)
        except InputError:
            return  # a curve that cannot be read has its fault
        if totals["makespan_s"] < totals["bound_makespan_s"] * (1 - core.TOLERANCE) - core.TOLERANCE:
            found, least = totals["makespan_s"], totals["bound_makespan_s"]
            self._faults.add("bound", "makespan_s", f"found {found} s, expected at least {least} s")
        if self._claimed is not None:
            compare(self._claimed, {key: value for key, value in totals.items() if key != "makespan_s"}, self._faults)


def check_journal(path: Path) -> Report:
    """Check a journal of this level by all rules."""
    reader = open_journal(path)
    faults = Faults()
    try:
        rules = Rules(reader.header, faults)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}:1: not a usable header: options: {error}") from None
    exact = reader.header.mode != LIVE
    figures = core.check_journal(reader, faults, [rules], exact=exact)
    rules.finish()
    notes = [] if exact else ["a live run: how long programs took is not checked"]
    return Report.of(str(path), "journal", faults, notes, recount(figures))
