"""Rules of the host level, over a journal, simulated or live: beside those that hold for every level.

What depends on a policy is asked of the policy; one that is not installed here cannot be asked, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from os import PathLike
from typing import Any, TypeVar

from dovetail.core import check as core
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Failed,
    Finished,
    Observed,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
)
from dovetail.core.files.document import as_path
from dovetail.core.findings import TOLERANCE, Findings, Report, check_bounds, close, compare
from dovetail.core.journal import Ended, Header, open_journal
from dovetail.core.metrics import recount
from dovetail.host.bounds import makespan_bound_s
from dovetail.host.check_state import ProgramState
from dovetail.host.gpus import GpuLedger, gpus_text, is_of
from dovetail.host.metrics import Programs
from dovetail.host.policies import Assignment, MachineView, Planning, Program, make
from dovetail.host.program import RUNNING, WAITING, Ask, group_limit
from dovetail.host.scheduler import Policies, options_of

CODES = {
    "ask": "a program whose request cannot be read",
    "cores": "a program with fewer cores than its minimum, or more than its maximum or than its assignment ever gives",
    "idle": "a core left idle although somebody could use it, by what the policies promise",
    "run_s": "an expected time that does not follow from the program's size, cores and speed-up curve",
    "limit": "an attempt that ran longer than it may",
    "overtaken": "a program that starts although one before it in line has waited for too long to be overtaken",
    "tries": "a program started again after more failures than it may have",
    "memory": "programs that need more memory than there is, paused ones included",
    "gpus": "a GPU with too little memory for all on it, or shared with one that has it alone, or not as asked for",
    "bound": "a makespan below what is possible",
    "held": "a program that runs although its user paused it, or before those that it waits for",
    "begin": "a program that starts before its time",
    "group": "a program that starts although as many of its group run as may",
}
LIVE = "live"  # a header's mode, where times were measured
T = TypeVar("T")


class HostRules:
    """Follows a run. An instant is judged when it is over: only then has everything been decided."""

    def __init__(self, header: Header, faults: Findings, policies: Policies | None = None) -> None:
        self._faults = faults
        self._options = options_of(header)
        self._legacy = self._options.profile == "legacy"
        self._exact = header.mode != LIVE
        plan, assign = policies or (self._options.plan, self._options.assign)
        self._plan = None if self._legacy else self._policy(plan, Planning)
        self._assign = None if self._legacy else self._policy(assign, Assignment)
        self._view = MachineView(len(header.pool), self._options)
        if self._assign is not None:
            self._view.shrinks = self._assign.shrinks if self._options.shrink is None else self._options.shrink
        self._known: dict[str, ProgramState] = {}
        self._running: dict[str, ProgramState] = {}  # in the order of their starts
        self._changed: dict[str, ProgramState] = {}  # whose cores were decided at this instant
        self._places = count()
        self._done: set[str] = set()
        self._arrivals: dict[str, tuple[float, Arrived]] = {}
        self._claimed: dict[str, Any] | None = None
        self._at: tuple[int, float] = (0, -inf)
        self.programs = Programs(len(header.pool))

    def _policy(self, choice: Any, kind: type[T]) -> T | None:
        try:
            return make(choice, kind)  # type: ignore[type-var]
        except DovetailError as error:
            self._faults.notes.append(f"what {choice} promises is not checked: {error}")
            return None

    def _ask(self, policy: Planning | Assignment, question: Callable[[], T]) -> T | None:
        """A policy's answer, also if it is somebody else's and cannot give one."""
        try:
            return question()
        except Exception as error:
            name = type(policy).__name__
            note = f"{name} cannot be asked, so what it promises is not checked: {type(error).__name__}: {error}"
            self._faults.notes.append(note)
            self._plan = None if policy is self._plan else self._plan
            self._assign = None if policy is self._assign else self._assign
            return None

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        if t > self._at[1]:
            self._judge()
        self._at = (n, t)
        self._faults.at(n, t)
        self.programs.step(n, t, events)
        for event in events:
            self._see(event, t)

    def _see(self, event: Any, t: float) -> None:
        known = self._known.get(getattr(event, "job", ""))
        match event:
            case Arrived(fault="") if event.sizes:
                try:
                    cores = self._view.cores
                    self._known[event.job] = ProgramState(event, next(self._places), t, self._options, cores)
                    self._arrivals[event.job] = (t, event)
                    self._limit(self._known[event.job].ask)
                except InputError as error:
                    self._faults.add("ask", event.job, str(error))
            case Complete() | Reject():
                self._known.pop(event.job, None)
                if isinstance(event, Complete):
                    self._done.add(event.job)
            case Asked() | Observed() if (said := group_limit(event)) is not None:
                group, parallel = said
                self._view.limits.pop(group, None)
                self._view.limits |= {} if parallel is None else {group: parallel}
            case Ended():
                self._claimed = event.summary
            case _ if known is not None:
                if isinstance(event, Start | Resume):
                    self._starts(event, known)
                elif isinstance(event, Finished | Failed | Pause):
                    self._ran(event.job, known, t)
                try:
                    known.follow(event, next(self._places), t)
                except InputError as error:
                    self._faults.add("ask", event.job, str(error))
                if isinstance(event, Asked) and event.what == "edit":
                    self._limit(known.ask)
                self._place(event, known)
                if isinstance(event, Start | Resume | Resize):
                    self._check_cores(event, known)

    def _limit(self, ask: Ask) -> None:
        if ask.parallel is not None:
            self._view.limits[ask.group] = ask.parallel

    def _place(self, event: Any, known: ProgramState) -> None:
        if isinstance(event, Start | Resume):
            self._running[known.id] = known
        elif isinstance(event, Pause | Stop | Finished | Failed):
            self._running.pop(known.id, None)

    def _starts(self, event: Start | Resume, known: ProgramState) -> None:
        """Whether it may run at all, and now."""
        lacks = self._lacks(known)
        if self._legacy:
            return
        if known.held or lacks:
            why = "its user paused it" if known.held else f"it waits for {lacks[0]}"
            self._faults.add("held", event.job, f"{type(event).__name__.lower()}, but {why}")
        if isinstance(event, Start) and (wrong := self._wrong_gpus(event, known)):
            self._faults.add("gpus", event.job, f"found {wrong}, expected {gpus_text(known.ask)}")
        if known.begin_s > self._at[1] and not close(known.begin_s, self._at[1]):
            self._faults.add("begin", event.job, f"found {self._at[1]} s, expected {known.begin_s} s or later")
        self._view.count_members(self._known.values())
        if full := self._view.lacks_place(known):
            self._faults.add("group", event.job, f"starts, but {full}")
        if known.failures > known.ask.retries:
            found = f"started after {known.failures} failures, expected {known.ask.retries} retries"
            self._faults.add("tries", event.job, found)
        self._overtakes(event, known)

    def _wrong_gpus(self, event: Start, known: ProgramState) -> str:
        """What is wrong with the GPUs that a program starts on, or nothing."""
        there = self._options.gpus
        if unknown := [gpu for gpu in event.gpus if not 0 <= gpu < len(there)]:
            return f"GPU {unknown[0]}, which does not exist"
        if len(set(event.gpus)) != known.ask.gpus or len(event.gpus) != known.ask.gpus:
            return f"{len(event.gpus)} GPUs"
        other = next((gpu for gpu in event.gpus if not is_of(there[gpu], known.ask)), None)
        return "" if other is None else f"GPU {other}, a {there[other].type} of {there[other].memory_mib} MiB"

    def _lacks(self, known: ProgramState) -> list[str]:
        """Those that it waits for."""
        lacks = [other for other in known.ask.after if other not in self._done]
        return lacks + [other for other in known.ask.after_any if other in self._known]

    def _overtakes(self, event: Start | Resume, known: ProgramState) -> None:
        """Who holds memory while others lack it may: only its end makes it free."""
        plan, options = self._plan, self._options
        if (
            plan is None
            or options.age_step_s is None
            or (isinstance(event, Resume) and (options.memory_mib is not None or options.gpus))
        ):
            return
        view = self._look()
        for other in self._ask(plan, lambda: plan.order(view)) or ():
            if other.id == known.id:
                return
            if view.comes_of_age(other) and other.ask.group not in view.limits:  # that one waits for its group too
                message = f"starts before {other.id}, which waits since {other.queued_s} s"
                self._faults.add("overtaken", event.job, message)

    def _check_cores(self, event: Start | Resume | Resize, known: ProgramState) -> None:
        has = len(known.cores)
        if not has:
            return  # that is found for every level
        self._changed[known.id] = known
        expected_s = known.run_s(has)
        if abs(event.run_s - expected_s) > TOLERANCE * max(1.0, known.size, self._at[1]):
            what = f"{known.left:g} of {known.size:g} core-seconds on {has} cores ({known.curve.text})"
            self._faults.add("run_s", event.job, f"found {event.run_s} s, expected {expected_s} s for {what}")
        if not self._legacy and not known.least <= has <= known.most:
            self._faults.add("cores", event.job, f"found {has} cores, expected {known.least} to {known.most}")

    def _ran(self, job: str, known: ProgramState, t: float) -> None:
        limit_s, ran_s = known.ask.limit_s, known.ran_s(t)
        if limit_s is not None and self._exact and ran_s > limit_s and not close(ran_s, limit_s):
            self._faults.add("limit", job, f"ran for {ran_s} s, expected up to {limit_s} s")

    # --- between two instants ---------------------------------------------------------------------

    def _look(self) -> MachineView:
        """What a policy sees, as it is recounted here."""
        view, all_ = self._view, self._known.values()
        view.now = self._at[1]
        view.running = list(self._running.values())
        view.widths = {p.id: len(p.cores) for p in view.running}
        view.held = sum(len(p.cores) for p in all_ if p.stopping)
        view.memory_mib = sum(p.ask.memory_mib for p in all_ if p.state != WAITING)
        view.gpus = GpuLedger(self._options.gpus, all_)
        view.waiting = [p for p in all_ if self._may_start(p)]
        view.count_members(all_)
        return view

    def _may_start(self, known: ProgramState) -> bool:
        ready = known.begin_s <= self._at[1] and not self._lacks(known)
        return known.state != RUNNING and not known.held and not known.stopping and ready

    def _judge(self) -> None:
        if not self._known:
            return
        self._faults.at(*self._at)
        view, total = self._look(), self._options.memory_mib
        if total is not None and view.memory_mib > total:
            self._faults.add("memory", "", f"found {view.memory_mib} MiB in use, expected up to {total} MiB")
        for fault in view.gpus.faults():
            self._faults.add("gpus", "", fault)
        changed, self._changed = self._changed, {}
        if self._assign is not None:
            self._judge_widths(self._assign, view, [p for p in changed.values() if p.id in view.widths])
        if self._assign is not None and view.free > 0:
            self._judge_growth(self._assign, view)
        if self._assign is not None and self._plan is not None and view.waiting and self._to_be_had(self._assign, view):
            self._judge_waiting(self._plan, self._assign, view, {p.ask.group for p in changed.values()})

    def _judge_widths(self, assign: Assignment, view: MachineView, changed: Sequence[ProgramState]) -> None:
        for p in changed:
            most = self._ask(assign, lambda p=p: view.high(p, assign.most(p, view)))  # type: ignore[misc]
            if most is not None and most < len(p.cores) <= p.most:
                found = f"found {len(p.cores)} cores, expected up to {most}, the most that {self._options.assign} gives"
                self._faults.add("cores", p.id, found)

    def _to_be_had(self, assign: Assignment, view: MachineView) -> int:
        """Cores that are idle, or lent until somebody can start on them."""
        return view.free + (self._ask(assign, lambda: assign.lent(view)) or 0)

    def _judge_growth(self, assign: Assignment, view: MachineView) -> None:
        for id, cores in (self._ask(assign, lambda: assign.must_have(view)) or {}).items():
            if cores > view.widths.get(id, cores):
                found = f"has {view.widths[id]} cores and could have {cores}; {view.free} are idle"
                self._faults.add("idle", id, found)

    def _judge_waiting(self, plan: Planning, assign: Assignment, view: MachineView, just: set[str]) -> None:
        """Who is first in line starts if it can; with first-fit, whoever can. Whose group is full is not in the line,
        unless it has only become so, by one of the groups that `just` got somebody."""
        waiting: Sequence[Program]
        waiting = view.waiting = [p for p in view.waiting if p.ask.group in just or not view.lacks_place(p)]
        if waiting and (self._options.overtaking != "first-fit" or self._options.age_step_s is not None):
            waiting = (self._ask(plan, lambda: plan.order(view)) or [])[:1]
        for p in waiting:
            fits = not (view.lacks_memory(p) or view.gpus.lacks(p) or view.lacks_place(p))
            if fits and self._ask(assign, lambda p=p: assign.must_start(p, view)):  # type: ignore[misc]
                idle = self._to_be_had(assign, view)
                self._faults.add("idle", p.id, f"waits although it could start; {idle} cores are idle, or lent")
                return

    def finish(self) -> dict[str, float]:
        """What only the end can tell; gives the bounds."""
        self._judge()
        self._faults.nowhere()
        totals = self.programs.totals().as_dict()
        completed = [arrival for job, arrival in self._arrivals.items() if job in self._done]
        bounds = {"bound_makespan_s": makespan_bound_s(completed, self._view.cores)}
        totals |= bounds
        check_bounds(bounds, totals, self._faults)
        if self._claimed is not None:
            compare(self._claimed, {key: value for key, value in totals.items() if key != "makespan_s"}, self._faults)
        return bounds


def check_journal(path: str | PathLike[str], policies: Policies | None = None) -> Report:
    """Check a journal of this level by all rules; `policies` are a user's own, which no name in it leads to."""
    reader = open_journal(as_path(path, "journal"))
    faults = Findings()
    try:
        rules = HostRules(reader.header, faults, policies)
    except InputError as error:
        raise InputError(f"{path}:1: {error}") from None
    exact = reader.header.mode != LIVE
    if not exact:
        faults.notes.append("a live run: how long programs took is not checked")
    figures = core.check_journal(reader, faults, [rules], exact, may_go_on=not exact)
    bounds = {} if faults.interrupted else rules.finish()
    return Report.of(str(path), "journal", faults, [], recount(figures) | bounds)
