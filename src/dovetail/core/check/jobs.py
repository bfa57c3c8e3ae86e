"""What may happen to jobs and their tasks, one event at a time: order, width, devices, durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from dovetail.core.check.clock import Allowance
from dovetail.core.check.devices import Holder, Holders
from dovetail.core.events import (
    Added,
    Arrived,
    Change,
    Complete,
    Failed,
    Finished,
    Grew,
    Pause,
    Prepare,
    PrepareEnded,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
    WakeAt,
)
from dovetail.core.findings import Findings
from dovetail.core.journal import Header
from dovetail.core.journal.preloads import Preloads
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

    __slots__ = ("grew_s", "index", "job", "run_s", "since", "sound", "state")

    def __init__(self, t: float, start: Start, job: _Job | None, index: int | None) -> None:
        super().__init__(t, start)
        self.job = job
        self.index = index
        self.sound = False
        self.grew_s: float | None = None  # when its end was said to add tasks
        self.state: type[Change] | None = None  # the last change, if it was a pause or a stop
        self.since, self.run_s = t + start.setup_s, start.run_s  # when it last changed, and how long from then


class JobRules:
    """Keeps one name per job, and what is open."""

    def __init__(self, header: Header, faults: Findings, allowance: Allowance, exact: bool) -> None:
        self.faults = faults
        self._graphs, self._types = header.build_graphs(), set(header.pool.types)
        self._exact, self._virtual = exact, header.clock.source == "virtual"
        self._n = 0
        self._seen: set[str] = set()
        self.open: dict[str, _Job] = {}
        self.running: dict[tuple[str, str], list[_Run]] = {}
        self._allowance = allowance
        self.holders = Holders(len(header.pool), faults, allowance)
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
            Grew: self._grew,
            WakeAt: self._wake_at,
            Prepare: self._prepare,
            PrepareEnded: self._prepared,
        }
        self._ahead: Preloads[Holder] = Preloads()
        self._last_id = 0

    @property
    def preparing(self) -> list[int]:
        """Numbers of preloads that are not over."""
        return self._ahead.begun

    def handle(self, n: int, t: float, event: Any) -> bool:
        """Note what happened and what is wrong with it; whether followers can make sense of it."""
        self._n = n
        handler = self._handlers.get(type(event))
        return handler is None or handler(t, event)

    def is_early(self, event: Any) -> bool:
        """Whether something is not possible yet, but may be when something else has happened."""
        about = (event.job, event.task) if isinstance(event, Start | Finished | Failed | Grew) else None
        if isinstance(event, Start):
            opened = self.open.get(event.job)
            if opened is None:
                return event.job not in self._seen
            index = opened.graph.index.get(event.task)
            waits = opened.running if opened.loose else 0 if index is None else opened.waiting[index]
            return about in self.running or waits > 0
        if isinstance(event, Finished | Failed | Grew):
            return about not in self.running
        if isinstance(event, Complete):
            opened = self.open.get(event.job)
            return event.job not in self._seen if opened is None else opened.left > 0 or opened.running > 0
        if isinstance(event, Reject):
            return event.job not in self._seen
        if isinstance(event, PrepareEnded):
            return event.id > self._last_id
        if isinstance(event, Pause | Resume | Resize | Stop):
            return self._why_not(event) is not None
        return False

    # --- jobs -------------------------------------------------------------------------------------

    def _added(self, t: float, event: Added) -> bool:
        expected = list(range(len(self.holders), len(self.holders) + len(event.devices)))
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
        self.holders.extend(len(event.devices))
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
        self.open[event.job] = _Job(event, graph or _NOTHING, t, loose)
        return True

    def _close(self, job: str, what: str) -> _Job | None:
        opened = self.open.pop(job, None)
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

    # --- preloads ---------------------------------------------------------------------------------

    def _prepare(self, t: float, event: Prepare) -> bool:
        who = f"preload {event.id}"
        if event.id <= self._last_id:
            self.faults.add("preload", who, f"found after preload {self._last_id}; expected another number")
            return False
        self._last_id = event.id
        if not 0 <= event.setup_s < inf:
            self.faults.add("number", who, f"found setup_s {event.setup_s}, expected seconds")
        if not event.why:
            self.faults.add("reason", who, "given without a reason")
        if not event.devices:
            self.faults.add("width", who, "found no devices, expected some")
        order = Start("preload", str(event.id), event.kind, event.devices, t, 0.0, event.why, event.setup_s)
        run = Holder(t, order)
        self._ahead.begin(event, run)
        return self.holders.take(self._n, t, run, event.devices, who)

    def _prepared(self, t: float, event: PrepareEnded) -> bool:
        ended, who = self._ahead.end(event), f"preload {event.id}"
        if ended is None:
            self.faults.add("preload", who, "ended, but it had not begun, or had ended before")
            return False
        run, _ = ended
        self.holders.give_up(t, run)
        ends = run.t + run.start.setup_s
        if self._virtual and not event.why and not self._allowance.close(t, ends):
            self.faults.add("duration", who, f"ended at {t} s, expected {ends} s ({run.t} + {run.start.setup_s} setup)")
        return True

    # --- tasks ------------------------------------------------------------------------------------

    def _started(self, t: float, start: Start) -> bool:
        key, who = (start.job, start.task), f"{start.job}/{start.task}"
        job = self.open.get(start.job)
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
        again = key in self.running
        run = _Run(t, start, job, index)
        if (ahead := self._ahead.find(start)) is not None:  # what was prepared for its kind is there for it
            self.holders.give_up(t, ahead.kept)
        run.sound = self.holders.start(self._n, run, who, job is not None and job.loose) and not again
        self.running.setdefault(key, []).append(run)
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
        runs = self.running.get(key)
        if not runs:
            self.faults.add("finish", who, f"{'finished' if good else 'failed'}, but it does not run")
            return False
        run = runs.pop(0)
        if not runs:
            del self.running[key]
        self.holders.release(t, run)
        self._check_duration(t, run, who, good)
        if run.grew_s is not None and not (good and self._allowance.close(t, run.grew_s)):
            ended = f"{'finished' if good else 'failed'} at {t} s"
            self.faults.add("growth", who, f"{ended}, but its end was said to add tasks at {run.grew_s} s")
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

    def _grew(self, t: float, event: Grew) -> bool:
        """Tasks that the end of another adds: whether followers can make sense of them."""
        who, add = f"{event.job}/{event.task}", self.faults.add
        runs, job = self.running.get((event.job, event.task)), self.open.get(event.job)
        if not runs:
            add("growth", who, "adds tasks, but it does not run")
            return False
        runs[0].grew_s = t
        if job is None:
            return False  # rejected while it ran
        if job.loose:
            add("growth", who, "adds tasks, but its job has no graph")
            return False
        if len(event.sizes) != len(event.tasks):
            add("growth", who, f"found {len(event.sizes)} sizes, expected one for each of {len(event.tasks)} tasks")
            return False
        if not all(0 <= size < inf for size in event.sizes) or any(task.width < 0 for task in event.tasks):
            add("number", who, "adds tasks with a negative width, or sizes that are no seconds")
            return False
        try:
            graph = job.graph.grown(event.tasks, event.edges)
        except TaskGraphError as error:
            add("growth", who, f"adds what is no graph: {error}")
            return False
        for source, target in event.edges:
            i = graph.index[target]
            if i < len(job.state) and (job.state[i] != _IDLE or not job.waiting[i]):
                add("growth", who, f"adds {source} -> {target}, but {target} is ready or has started")
                return False
        job.graph, job.left = graph, job.left + len(event.tasks)
        job.state += bytes(len(event.tasks))
        job.ready += [t] * len(event.tasks)
        job.waiting += [0] * len(event.tasks)
        for i, j in graph.added:
            job.waiting[j] += job.state[i] != _DONE
        return True

    def _why_not(self, event: Change) -> str | None:
        """Why a task cannot be changed so."""
        runs = self.running.get((event.job, event.task))
        if not runs:
            return "it does not run"
        run = runs[0]
        if run.state is Stop:
            return "it is being stopped"
        if run.start.batch and not isinstance(event, Stop):
            return "it runs in a batch"
        if run.start.slots and not isinstance(event, Stop):
            return "it shares its devices"
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
        run = self.running[event.job, event.task][0]
        good = True
        if isinstance(event, Stop):
            run.since, run.run_s = t, 0.0
        else:
            self.holders.give_up(t, run)
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
        return self.holders.take(self._n, t, run, event.devices, who)

    def _check_duration(self, t: float, run: _Run, who: str, good: bool) -> None:
        ends, close = run.since + run.run_s, self._allowance.close
        if run.job is not None and run.job.loose and not run.start.run_s:
            return  # nobody said how long it takes
        if run.state is Pause and (self._exact or self._virtual):
            self.faults.add("duration", who, f"ended at {t} s, but it is paused")
        elif not self._exact or run.start.slots:  # when others join and leave, the level knows what that does
            # on a real clock a setup too is only expected
            if good and self._virtual and t < run.since and not close(t, run.since):
                self.faults.add("duration", who, f"ended at {t} s, before its setup was over at {run.since} s")
        elif (good and not close(t, ends)) or (t > ends and not close(t, ends)):
            sum_of = f"{run.t} + {run.start.setup_s} setup + {run.start.run_s} run"
            if run.since != run.t + run.start.setup_s:
                sum_of = f"changed at {run.since} s, then {run.run_s} run"
            self.faults.add("duration", who, f"ended at {t} s, expected {ends} s ({sum_of})")

    def _wake_at(self, t: float, event: WakeAt) -> bool:
        if not t <= event.at_s < inf:
            self.faults.add("time", "", f"asked at {t} s to be woken at {event.at_s} s")
        return True


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
