"""Follows a run step by step and names what cannot be. What it accepts as physically possible it passes on to its
followers (the metrics, a level's own rules), so these meet no nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.check.clock import Allowance
from dovetail.core.check.devices import Holder, Holders
from dovetail.core.events import (
    Added,
    Arrived,
    Change,
    Complete,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
    WakeAt,
)
from dovetail.core.findings import Findings, check_bounds, compare
from dovetail.core.journal import Ended, Header, Observer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.tasks import TaskGraph, TaskGraphError

_IDLE, _RUNNING, _DONE = 0, 1, 2
_NOTHING = TaskGraph("", (), ())


class _Job:
    """A job that has arrived: which of its tasks wait, run or are done. One without a graph has any tasks, one after
    the other."""

    __slots__ = ("arrived", "began", "done", "graph", "last", "left", "loose", "ready", "running", "state", "waiting")

    def __init__(self, arrived: Arrived, graph: TaskGraph, t: float, loose: bool) -> None:
        self.arrived = arrived
        self.graph = graph
        self.loose = loose
        self.waiting = [len(after) for after in graph.after]
        self.ready = [t] * len(graph.tasks)
        self.state = bytearray(len(graph.tasks))
        self.left = len(graph.tasks)
        self.running = 0
        self.done: set[str] = set()  # tasks that no graph has
        self.began = False
        self.last = t


class _Run(Holder):
    """A task that was started. `sound` tells whether followers were told of it."""

    __slots__ = ("index", "job", "run_s", "since", "sound", "state")

    def __init__(self, t: float, start: Start, job: _Job | None, index: int | None) -> None:
        super().__init__(t, start)
        self.job = job
        self.index = index
        self.sound = False
        self.state: type[Change] | None = None  # the last change, if it was a pause or a stop
        self.since, self.run_s = t + start.setup_s, start.run_s  # when it last changed, and how long from then


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
    """Keeps one name per job, and what is open; `finish` says what only the end of the run can tell.

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
        self._graphs, self._types = header.build_graphs(), set(header.pool.types)
        self._metrics = Metrics(header.pool)
        self._followers = (self._metrics, *followers)
        self._exact, self._bounds_hold = exact, bounds_hold
        self._n, self._t = 0, -inf
        self._seen: set[str] = set()
        self._open: dict[str, _Job] = {}
        self._running: dict[tuple[str, str], list[_Run]] = {}
        self._allowance = Allowance(header.clock)
        self._holders = Holders(len(header.pool), self.faults, self._allowance)
        self._held: list[_Record] = []  # not possible yet: stamps may be early by as much as the clock may be wrong
        self._sound: list[_Record] = []
        self._ended: Ended | None = None
        self._handlers: dict[type, Callable[[float, Any], bool]] = {
            Start: self._started,
            Finished: self._finished,
            Arrived: self._arrived,
            Complete: self._completed,
            Failed: self._finished,
            Reject: self._rejected,
            Pause: self._changed,
            Resume: self._changed,
            Resize: self._changed,
            Stop: self._changed,
            Added: self._added,
            WakeAt: self._wake_at,
            Ended: self._ends,
        }

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
        self._n = n
        if self._ended is not None:
            self.faults.add("end", "", "the run goes on after its end")
        if self._header.clock.error_s <= 0:
            self._tell(n, t, [event for event in events if self._handle(t, event)])
            return
        self._holders.look(t)
        self._give_up_waiting(t)
        for event in events:
            self._see(_Record(n, t, event))
        self._tell_all()

    def _handle(self, t: float, event: Any) -> bool:
        handler = self._handlers.get(type(event))
        return handler is None or handler(t, event)

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
        self._n = record.n
        if self._handle(record.t, record.event):
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
        event, about = record.event, record.about
        if about is not None and any(each.n < record.n and each.about == about for each in self._held):
            return True
        if isinstance(event, Start):
            opened = self._open.get(event.job)
            if opened is None:
                return event.job not in self._seen
            index = opened.graph.index.get(event.task)
            waits = opened.running if opened.loose else 0 if index is None else opened.waiting[index]
            return about in self._running or waits > 0
        if isinstance(event, Finished | Failed):
            return about not in self._running
        if isinstance(event, Complete):
            opened = self._open.get(event.job)
            return event.job not in self._seen if opened is None else opened.left > 0 or opened.running > 0
        if isinstance(event, Reject):
            return event.job not in self._seen
        if isinstance(event, Pause | Resume | Resize | Stop):
            return self._why_not(event) is not None
        return False

    # --- jobs -------------------------------------------------------------------------------------

    def _added(self, t: float, event: Added) -> bool:
        expected = list(range(len(self._holders), len(self._holders) + len(event.devices)))
        if [device.id for device in event.devices] != expected:
            self.faults.add("device", "", f"found devices {[d.id for d in event.devices]} added, expected {expected}")
            return False
        if unknown := {device.type for device in event.devices} - self._types.union(event.types):
            self.faults.add("device", "", f"found a device of type {min(unknown)!r} added, which is not described")
            return False
        self._types |= event.types.keys()
        try:
            self._graphs |= {record.name: record.build() for record in event.graphs}
        except TaskGraphError as error:
            self.faults.add("graph", "", f"a graph was added that is none: {error}")
            return False
        self._holders.extend(len(event.devices))
        return True

    def _arrived(self, t: float, event: Arrived) -> bool:
        if event.job in self._seen:
            self.faults.add("arrival", event.job, "arrived before; expected each job once")
            return False
        self._seen.add(event.job)
        graph = self._graphs.get(event.of)
        loose = not self._graphs
        if loose and event.sizes:
            self.faults.add("graph", event.job, f"found {len(event.sizes)} sizes, but the header describes no graph")
        elif not event.fault and not loose:
            if graph is None:
                self.faults.add("graph", event.job, f"is of {event.of!r}, which the header does not describe")
            elif len(event.sizes) != len(graph.tasks):
                found = f"found {len(event.sizes)} sizes, expected one for each of the {len(graph.tasks)} tasks"
                self.faults.add("graph", event.job, found)
            elif not all(0 <= size < inf for size in event.sizes):
                self.faults.add("number", event.job, f"found sizes {list(event.sizes)}, expected seconds")
        self._open[event.job] = _Job(event, graph or _NOTHING, t, loose)
        return True

    def _close(self, job: str, what: str) -> _Job | None:
        opened = self._open.pop(job, None)
        if opened is None:
            if job in self._seen:
                self.faults.add("closed", job, f"{what}, but it was completed or rejected before")
            else:
                self.faults.add("arrival", job, f"{what}, but it has not arrived")
        return opened

    def _completed(self, t: float, event: Complete) -> bool:
        opened = self._close(event.job, "completed")
        if opened is None:
            return False
        if opened.arrived.fault:
            self.faults.add("missing", event.job, f"completed, but it could not run: {opened.arrived.fault}")
            return False
        if opened.left:
            lacking = [task.name for task, s in zip(opened.graph.tasks, opened.state, strict=True) if s != _DONE]
            self.faults.add("missing", event.job, f"lacks {_some(lacking)}")
            return False
        if opened.loose and opened.running:
            self.faults.add("missing", event.job, "completed while it runs")
            return False
        if (opened.began or not opened.loose) and not self._allowance.close(t, opened.last):
            self.faults.add("complete", event.job, f"completed at {t} s, but its last task ended at {opened.last} s")
        return True

    def _rejected(self, t: float, event: Reject) -> bool:
        if not event.why:
            self.faults.add("reason", event.job, "rejected without a reason")
        return self._close(event.job, "rejected") is not None

    # --- tasks ------------------------------------------------------------------------------------

    def _started(self, t: float, start: Start) -> bool:
        key, who = (start.job, start.task), f"{start.job}/{start.task}"
        job = self._open.get(start.job)
        index = None if job is None else job.graph.index.get(start.task)
        for name in ("setup_s", "run_s"):
            if not 0 <= getattr(start, name) < inf:
                self.faults.add("number", who, f"found {name} {getattr(start, name)}, expected seconds")
        if job is None:
            if start.job in self._seen:
                self.faults.add("closed", who, "started after its job was completed or rejected")
            else:
                self.faults.add("arrival", who, "started before its job arrived")
        elif job.loose:
            if not start.devices:
                self.faults.add("width", who, "found no devices, expected some")
            if job.running:
                self.faults.add("twice", who, "started while its job runs")
            elif start.task in job.done:
                self.faults.add("twice", who, "started again, but it finished before")
            elif not self._allowance.close(start.ready_s, job.last):
                self.faults.add("ready", who, f"found ready at {start.ready_s} s, expected {job.last} s")
        elif index is None:
            self.faults.add("task", who, f"{job.arrived.of!r} has no such task")
        else:
            self._check_start(start, who, job, index)
        again = key in self._running
        run = _Run(t, start, job, index)
        run.sound = self._holders.start(self._n, run, who, job is not None and job.loose) and not again
        self._running.setdefault(key, []).append(run)
        if job is not None:
            job.running, job.began = job.running + 1, True
        return run.sound

    def _check_start(self, start: Start, who: str, job: _Job, i: int) -> None:
        graph, task, add = job.graph, job.graph.tasks[i], self.faults.add
        if job.state[i] != _IDLE:
            add("twice", who, f"started again, but it {'runs' if job.state[i] == _RUNNING else 'finished before'}")
        elif job.waiting[i]:
            lacking = [graph.tasks[j].name for j in graph.after[i] if job.state[j] != _DONE]
            add("order", who, f"started before {_some(lacking)} finished")
        elif i in graph.never:
            add("order", who, f"started, but it {graph.never[i]}")
        elif not self._allowance.close(start.ready_s, job.ready[i]):
            add("ready", who, f"found ready at {start.ready_s} s, expected {job.ready[i]} s")
        if job.state[i] == _IDLE:
            job.state[i] = _RUNNING
        if start.kind != task.kind:
            add("kind", who, f"found {start.kind!r}, expected {task.kind!r}")
        if not task.fits(len(start.devices)):
            add("width", who, f"found devices {list(start.devices)}, expected {task.needs}")

    def _finished(self, t: float, event: Finished | Failed) -> bool:
        key, who, good = (event.job, event.task), f"{event.job}/{event.task}", isinstance(event, Finished)
        runs = self._running.get(key)
        if not runs:
            self.faults.add("finish", who, f"{'finished' if good else 'failed'}, but it does not run")
            return False
        run = runs.pop(0)
        if not runs:
            del self._running[key]
        self._holders.release(t, run)
        self._check_duration(t, run, who, good)
        job, i = run.job, run.index
        if job is not None:
            job.running -= 1
            job.last = max(job.last, t)
            if good and job.loose:
                job.done.add(event.task)
        if job is not None and i is not None and job.state[i] == _RUNNING:
            job.state[i] = _DONE if good else _IDLE
            if good:
                job.left -= 1
                for j in job.graph.before[i]:
                    job.waiting[j] -= 1
                    job.ready[j] = max(job.ready[j], t)
            else:
                job.ready[i] = t
        return run.sound

    def _why_not(self, event: Change) -> str | None:
        """Why a task cannot be changed so."""
        runs = self._running.get((event.job, event.task))
        if not runs:
            return "it does not run"
        run = runs[0]
        if run.state is Stop:
            return "it is being stopped"
        if run.start.batch and not isinstance(event, Stop):
            return "it runs in a batch"
        if isinstance(event, Pause | Resize) and run.state is Pause:
            return "it is paused"
        if isinstance(event, Resume) and run.state is not Pause:
            return "it is not paused"
        return None

    def _changed(self, t: float, event: Change) -> bool:
        """A change of what runs: whether followers can make sense of it."""
        who, what = f"{event.job}/{event.task}", type(event).__name__.lower()
        if not event.why:
            self.faults.add("reason", who, f"{what} without a reason")
        if (problem := self._why_not(event)) is not None:
            self.faults.add("change", who, f"{what}, but {problem}")
            return False
        run = self._running[event.job, event.task][0]
        good = True
        if isinstance(event, Stop):
            run.since, run.run_s = t, 0.0
        else:
            self._holders.give_up(t, run)
            if isinstance(event, Resume | Resize):
                good = self._move(t, event, run, who)
        run.state = type(event) if isinstance(event, Pause | Stop) else None
        return run.sound and good

    def _move(self, t: float, event: Resume | Resize, run: _Run, who: str) -> bool:
        """Other devices for what runs: whether they exist."""
        if run.job is not None and run.index is not None:
            task = run.job.graph.tasks[run.index]
            if not task.fits(len(event.devices)):
                self.faults.add("width", who, f"found devices {list(event.devices)}, expected {task.needs}")
        if not 0 <= event.run_s < inf:
            self.faults.add("number", who, f"found run_s {event.run_s}, expected seconds")
        run.since, run.run_s = t, event.run_s
        return self._holders.take(self._n, t, run, event.devices, who)

    def _check_duration(self, t: float, run: _Run, who: str, good: bool) -> None:
        ends, close = run.since + run.run_s, self._allowance.close
        if run.job is not None and run.job.loose and not run.start.run_s:
            return  # nobody said how long it takes
        if run.state is Pause and (self._exact or self._header.clock.source == "virtual"):
            self.faults.add("duration", who, f"ended at {t} s, but it is paused")
        elif not self._exact:
            if good and t < run.since and not close(t, run.since):
                self.faults.add("duration", who, f"ended at {t} s, before its setup was over at {run.since} s")
        elif (good and not close(t, ends)) or (t > ends and not close(t, ends)):
            sum_of = f"{run.t} + {run.start.setup_s} setup + {run.start.run_s} run"
            if run.since != run.t + run.start.setup_s:
                sum_of = f"changed at {run.since} s, then {run.run_s} run"
            self.faults.add("duration", who, f"ended at {t} s, expected {ends} s ({sum_of})")

    # --- the rest ---------------------------------------------------------------------------------

    def _wake_at(self, t: float, event: WakeAt) -> bool:
        if not t <= event.at_s < inf:
            self.faults.add("time", "", f"asked at {t} s to be woken at {event.at_s} s")
        return True

    def _ends(self, t: float, event: Ended) -> bool:
        self._ended = event
        return True

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
            self._interrupted(torn, may_go_on)
            return self._metrics.figures()
        if torn:
            faults.add("end", "", "a torn line follows the end of the run")
        for job, task in self._running:
            faults.add("running", f"{job}/{task}", "still runs at the end")
        for name in self._open:
            faults.add("unclosed", name, "arrived, but was neither completed nor rejected")
        figures = self._metrics.figures()
        counted = recount(figures)
        compare(self._ended.summary, counted, faults)
        if self._bounds_hold:
            check_bounds(self._header.facts | self._ended.summary, counted, faults, self._header.clock.error_s)
        if (note := self._allowance.note()) is not None:
            faults.notes.append(note)
        return figures

    def _interrupted(self, torn: bool, may_go_on: bool) -> None:
        self.faults.interrupted = True
        if may_go_on and not torn:
            self.faults.notes.append("the run had not ended when this was written: what is open is no fault")
            return
        self.faults.add("end", "", did_not_end(self._header, len(self._open), torn))


def did_not_end(header: Header, unfinished: int, torn: bool = False) -> str:
    """What is said of a run that was interrupted, in the words of its level."""
    words = header.words
    what = f"did not end: {unfinished} {words.job if unfinished == 1 else words.jobs} unfinished"
    return what + (", its last line is torn" if torn else "") + (f"; {words.resume}" if words.resume else "")


def told_late(header: Header, events: Sequence[Any]) -> bool:
    """Whether a step only says who arrived: a level that decides in rounds tells it with the next round."""
    return not header.graphs and all(type(event) is Arrived for event in events)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
