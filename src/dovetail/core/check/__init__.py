"""Invariants that every run must keep, whatever its level: follow a run, or feed a recorded one; faults come as data.

The checker keeps its own books and trusts nothing that the engine, the scheduler or the summary says. What it accepts
as physically possible it passes on to its followers (the metrics, a level's own rules), so these meet no nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

from dovetail.core.check.devices import Holder, Holders
from dovetail.core.errors import InputError
from dovetail.core.events import (
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
from dovetail.core.findings import Findings, close, compare
from dovetail.core.journal import Ended, Header, Observer, Reader
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.tasks import TaskGraph

CODES = {
    "time": "an instant before the one written ahead of it, or not a time",
    "number": "a negative or endless number of seconds",
    "graph": "a job of an unknown graph, or with sizes that do not match it",
    "arrival": "a job that arrives twice, or of which something happens before it arrives",
    "task": "a task that its graph does not have",
    "order": "a task started before a predecessor finished, or one that can never be ready",
    "twice": "a task run again although it had not failed",
    "ready": "a wrong instant at which a task became ready",
    "kind": "a task run as something else than its graph says",
    "width": "a task on more or fewer devices than its graph allows",
    "device": "a device that does not exist, or is named twice",
    "overlap": "a device held by two tasks at a time",
    "batch": "tasks in one batch that do not run as one",
    "finish": "an end of something that does not run",
    "duration": "an end that is not start + setup + run, or not what a later change said",
    "change": "a pause, resume, resize or stop of a task that is not there to be changed so",
    "complete": "a job called complete at another time than its last task's end",
    "missing": "a job called complete without all of its tasks",
    "closed": "something about a job that was completed or rejected before",
    "reason": "a job rejected, or a task changed, without a reason",
    "running": "a task still running at the end",
    "unclosed": "a job neither completed nor rejected",
    "end": "a run that did not end, or went on after its end",
    "summary": "a figure of the summary that differs from the recount",
}


class _Job:
    """A job that has arrived: which of its tasks wait, run or are done."""

    __slots__ = ("arrived", "graph", "last", "left", "ready", "state", "waiting")

    def __init__(self, arrived: Arrived, graph: TaskGraph, t: float) -> None:
        self.arrived = arrived
        self.graph = graph
        self.waiting = [len(after) for after in graph.after]
        self.ready = [t] * len(graph.tasks)
        self.state = bytearray(len(graph.tasks))
        self.left = len(graph.tasks)
        self.last = t


class _Run(Holder):
    """A task that was started. `sound` tells whether followers were told of it."""

    __slots__ = ("index", "job", "run_s", "since", "sound", "state")

    def __init__(self, t: float, start: Start, job: _Job | None, index: int | None, sound: bool) -> None:
        super().__init__(t, start)
        self.job = job
        self.index = index
        self.sound = sound
        self.state: type[Change] | None = None  # the last change, if it was a pause or a stop
        self.since, self.run_s = t + start.setup_s, start.run_s  # when it last changed, and how long from then


_IDLE, _RUNNING, _DONE = 0, 1, 2
_NOTHING = TaskGraph("", (), ())


class Check:
    """Follows a run step by step; `finish` says what only its end can tell. Keeps one name per job, and what is open.

    `exact` says that everything takes as long as was expected: no noise, no real executor.
    """

    def __init__(
        self, header: Header, faults: Findings | None = None, followers: Sequence[Observer] = (), exact: bool = True
    ) -> None:
        self.faults = faults if faults is not None else Findings()
        self._graphs = header.build_graphs()
        self._metrics = Metrics(header.pool)
        self._followers = (self._metrics, *followers)
        self._exact = exact
        self._t = -inf
        self._seen: set[str] = set()
        self._open: dict[str, _Job] = {}
        self._running: dict[tuple[str, str], list[_Run]] = {}
        self._holders = Holders(len(header.pool), self.faults)
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
            WakeAt: self._wake_at,
            Ended: self._ends,
        }

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.faults.at(n, t)
        if not self._t <= t < inf:
            self.faults.add("time", "", f"found {t}, expected a time from {self._t} on")
        if t == t:
            self._t = t
        if self._ended is not None:
            self.faults.add("end", "", "the run goes on after its end")
        handlers = self._handlers
        sound = [event for event in events if (handle := handlers.get(type(event))) is None or handle(t, event)]
        for follower in self._followers:
            follower.step(n, t, sound)

    # --- jobs ------------------------------------------------------------------------------------

    def _arrived(self, t: float, event: Arrived) -> bool:
        if event.job in self._seen:
            self.faults.add("arrival", event.job, "arrived before; expected each job once")
            return False
        self._seen.add(event.job)
        graph = self._graphs.get(event.of)
        if not event.fault:
            if graph is None:
                self.faults.add("graph", event.job, f"is of {event.of!r}, which the header does not describe")
            elif len(event.sizes) != len(graph.tasks):
                found = f"found {len(event.sizes)} sizes, expected one for each of the {len(graph.tasks)} tasks"
                self.faults.add("graph", event.job, found)
            elif not all(0 <= size < inf for size in event.sizes):
                self.faults.add("number", event.job, f"found sizes {list(event.sizes)}, expected seconds")
        self._open[event.job] = _Job(event, graph or _NOTHING, t)
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
        if not close(t, opened.last):
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
        elif index is None:
            self.faults.add("task", who, f"{job.arrived.of!r} has no such task")
        else:
            self._check_start(start, who, job, index)
        again = self._running.get(key)
        sound = self._holders.look(t, start, who) and not again
        run = _Run(t, start, job, index, sound)
        self._running.setdefault(key, []).append(run)
        self._holders.take(run, start.devices)
        return sound

    def _check_start(self, start: Start, who: str, job: _Job, i: int) -> None:
        graph, task, add = job.graph, job.graph.tasks[i], self.faults.add
        if job.state[i] != _IDLE:
            add("twice", who, f"started again, but it {'runs' if job.state[i] == _RUNNING else 'finished before'}")
        elif job.waiting[i]:
            lacking = [graph.tasks[j].name for j in graph.after[i] if job.state[j] != _DONE]
            add("order", who, f"started before {_some(lacking)} finished")
        elif i in graph.never:
            add("order", who, f"started, but it {graph.never[i]}")
        elif not close(start.ready_s, job.ready[i]):
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
        self._holders.release(run)
        self._check_duration(t, run, who, good)
        job, i = run.job, run.index
        if job is not None and i is not None and job.state[i] == _RUNNING:
            job.state[i] = _DONE if good else _IDLE
            job.last = t
            if good:
                job.left -= 1
                for j in job.graph.before[i]:
                    job.waiting[j] -= 1
                    job.ready[j] = t
            else:
                job.ready[i] = t
        return run.sound

    def _changed(self, t: float, event: Change) -> bool:
        """A change of what runs: whether followers can make sense of it."""
        who, what = f"{event.job}/{event.task}", type(event).__name__.lower()
        if not event.why:
            self.faults.add("reason", who, f"{what} without a reason")
        run = next(iter(self._running.get((event.job, event.task), [])), None)
        problem = None
        if run is None:
            problem = "it does not run"
        elif run.start.batch:
            problem = "it runs in a batch"
        elif run.state is Stop:
            problem = "it is being stopped"
        elif isinstance(event, Pause | Resize) and run.state is Pause:
            problem = "it is paused"
        elif isinstance(event, Resume) and run.state is not Pause:
            problem = "it is not paused"
        if run is None or problem is not None:
            self.faults.add("change", who, f"{what}, but {problem}")
            return False
        good = True
        if isinstance(event, Stop):
            run.since, run.run_s = t, 0.0
        else:
            self._holders.give_up(run)
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
        good = self._holders.are_free(t, event.devices, who)
        run.since, run.run_s = t, event.run_s
        self._holders.take(run, event.devices)
        return good

    def _check_duration(self, t: float, run: _Run, who: str, good: bool) -> None:
        ends = run.since + run.run_s
        if not self._exact:
            begun = run.t + run.start.setup_s
            if good and t < begun and not close(t, begun):
                self.faults.add("duration", who, f"ended at {t} s, before its setup was over at {begun} s")
        elif run.state is Pause:
            self.faults.add("duration", who, f"ended at {t} s, but it is paused")
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

    def finish(self, torn: bool = False, under_way: bool = False) -> Figures:
        """Check what only the end can tell; gives the figures as recounted. A run that is `under_way` has none yet."""
        self.faults.nowhere()
        add = self.faults.add
        if under_way:
            return self._metrics.figures()
        if self._ended is None:
            add("end", "", "the run did not end" + (": its last line is torn" if torn else ""))
        elif torn:
            add("end", "", "a torn line follows the end of the run")
        for job, task in self._running:
            add("running", f"{job}/{task}", "still runs at the end")
        for name in self._open:
            add("unclosed", name, "arrived, but was neither completed nor rejected")
        figures = self._metrics.figures()
        if self._ended is not None:
            compare(self._ended.summary, recount(figures), self.faults)
        return figures


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def check_header(header: Header, path: Path) -> Header:
    """The same header, if a run can be followed with it."""
    try:
        header.build_graphs()
        if [device.id for device in header.pool.devices] != list(range(len(header.pool))):
            raise ValueError("devices are not numbered from 0")
        _ = header.pool.speeds
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}:1: not a usable header: {error!r}") from None
    return header


def read_steps(reader: Reader, faults: Findings) -> Iterator[tuple[int, float, list[Any]]]:
    """The steps of a journal, with a fault where they are not numbered upwards or a step has two times."""
    last = 0
    for n, group in groupby(reader, key=lambda entry: entry.n):
        entries = list(group)
        t = entries[0].t
        faults.at(n, t)
        if n <= last:
            faults.add("time", "", f"found step {n} after step {last}")
        if any(entry.t != t for entry in entries):
            found = sorted({entry.t for entry in entries})
            faults.add("time", "", f"found one step at {', '.join(map(str, found))} s, expected one instant")
        last = n
        yield n, t, [entry.event for entry in entries]


def check_journal(
    reader: Reader,
    faults: Findings,
    followers: Sequence[Observer] = (),
    exact: bool = True,
    notes: list[str] | None = None,
) -> Figures:
    """Check a recorded run; a level adds its own rules as followers. One that may still be under way takes `notes`,
    which then say so; for others it is a fault."""
    check = Check(check_header(reader.header, reader.path), faults, followers, exact)
    for n, t, events in read_steps(reader, faults):
        check.step(n, t, events)
    under_way = notes is not None and not check.ended and not reader.torn
    if notes is not None and under_way:
        notes.append("the run had not ended when this was written: what is open is no fault")
    return check.finish(reader.torn, under_way)
