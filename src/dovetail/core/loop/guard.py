"""The guard: keeps its own account of jobs, devices and order, and refuses what the rules do not allow."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from dovetail.core.errors import DovetailError, InputError, PolicyError
from dovetail.core.events import (
    Added,
    Arrived,
    Change,
    Complete,
    Decided,
    Defer,
    Failed,
    Finished,
    Grew,
    Instruction,
    Pause,
    Prepare,
    PrepareEnded,
    Reject,
    Resize,
    Resume,
    Start,
    Stimulus,
    Stop,
    WakeAt,
)
from dovetail.core.resources import Ledger, Pool
from dovetail.core.tasks import TaskGraph, TaskGraphError


class _Open:
    """What the guard knows of a job that has arrived and is not closed."""

    __slots__ = ("fault", "graph", "last", "left", "ready", "state", "waiting")

    def __init__(self, graph: TaskGraph, fault: str, now: float) -> None:
        self.graph = graph
        self.fault = fault
        self.last = now  # the end of the task that ended last
        self.ready = [now] * len(graph.tasks)
        self.waiting = graph.waits.copy()
        self.state = bytearray(len(graph.tasks))
        self.left = len(graph.tasks)


_IDLE, _RUNNING, _DONE = 0, 1, 2
_NOTHING = TaskGraph("", (), ())


def _extend(opened: _Open, event: Grew, now: float) -> str | None:
    """Add tasks and edges to what is known of a job, or say why that cannot be."""
    old, state = opened.graph, opened.state
    if len(event.sizes) != len(event.tasks):
        return f"found {len(event.sizes)} sizes, expected one for each of the {len(event.tasks)} tasks"
    if not all(0 <= size < inf for size in event.sizes):
        return f"found sizes {list(event.sizes)}, expected seconds"
    if any(task.width < 0 for task in event.tasks):
        return "a task has a negative width"
    try:
        graph = old.grown(event.tasks, event.edges)
    except TaskGraphError as error:
        return str(error)
    for source, target in event.edges:
        i = old.index.get(target)
        if i is not None and (state[i] != _IDLE or not opened.waiting[i]):
            return f"{source} -> {target}: {target} is ready or has started"
    added = len(event.tasks)
    opened.graph = graph
    opened.left += added
    state.extend(bytes(added))
    opened.ready += [now] * added
    opened.waiting += [0] * added
    for i, j in graph.added:
        opened.waiting[j] += state[i] != _DONE
    return None


class Guard:
    """Keeps its own account and refuses what the rules do not allow, whatever the scheduler believes. `kinds` are those
    that may be prepared, and on how many devices."""

    def __init__(
        self, pool: Pool, graphs: Mapping[str, TaskGraph], kinds: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._ledger = Ledger(pool)
        self._graphs = graphs
        self._open: dict[str, _Open] = {}
        self._rejected: dict[str, int] = {}  # of which so many tasks have not ended yet
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}
        self._paused: dict[tuple[str, str], None] = {}
        self._stopping: set[tuple[str, str]] = set()
        self._batches: dict[int, tuple[Start, float, int]] = {}  # the first task, its time, how many run
        self._in_batch: dict[tuple[str, str], int] = {}
        self._ended_batches: set[int] = set()
        self._shared: dict[tuple[int, ...], tuple[Start, int]] = {}  # devices with slots: the first task, how many run
        self._kinds = kinds
        self._preparing: dict[int, Prepare] = {}
        self._ahead: dict[tuple[int, ...], Prepare] = {}  # those on whose devices no task has started yet
        self._last_id = 0

    @property
    def open_jobs(self) -> list[str]:
        return list(self._open)

    @property
    def running(self) -> bool:
        return bool(self._held)

    @property
    def desired(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """What was started and has not ended, and the devices it should have now; without any it is paused."""
        return {**self._held, **dict.fromkeys(self._paused, ())}

    @property
    def preparing(self) -> list[int]:
        return list(self._preparing)

    def see(self, stimulus: Stimulus, now: float) -> None:
        """Follow what happened."""
        if type(stimulus) is Finished or type(stimulus) is Failed:
            self._release((stimulus.job, stimulus.task))
            opened = self._open.get(stimulus.job)
            if opened is None:
                self._leave(stimulus.job)
                return
            i = opened.graph.index[stimulus.task]
            if type(stimulus) is Failed:
                opened.state[i] = _IDLE
                opened.ready[i] = now
                return
            opened.state[i] = _DONE
            opened.left -= 1
            opened.last = now
            for j in opened.graph.before[i]:
                opened.waiting[j] -= 1
                opened.ready[j] = now
        elif type(stimulus) is Arrived:
            self._arrive(stimulus, now)
        elif type(stimulus) is Grew:
            self._grow(stimulus, now)
        elif type(stimulus) is PrepareEnded:
            self._prepared(stimulus)
        elif type(stimulus) is Added:
            self._ledger.extend(len(stimulus.devices))
            self._graphs = {**self._graphs, **{record.name: record.build() for record in stimulus.graphs}}

    def _leave(self, job: str) -> None:
        """A task of a job that was rejected while it ran has ended."""
        left = self._rejected.pop(job) - 1
        if left:
            self._rejected[job] = left

    def _arrive(self, job: Arrived, now: float) -> None:
        graph = self._graphs.get(job.of, _NOTHING)
        problem = ""
        if job.job in self._open:
            problem = "it arrived before"
        elif job.job in self._rejected:
            problem = "it arrived before, was rejected, and runs still"
        elif job.fault:
            pass  # all that can be done is to reject it
        elif graph is _NOTHING:
            problem = f"there is no graph {job.of!r}"
        elif len(job.sizes) != len(graph.tasks):
            problem = f"found {len(job.sizes)} sizes, expected one for each of the {len(graph.tasks)} tasks"
        elif not all(0 <= size < inf for size in job.sizes):
            problem = f"found sizes {list(job.sizes)}, expected seconds"
        if problem:
            raise InputError(f"[{now:.2f}s] arrival of {job.job} refused: {problem}")
        self._open[job.job] = _Open(graph, job.fault, now)

    def _grow(self, event: Grew, now: float) -> None:
        """The end of a task adds others to its job; of one that was rejected while it ran, that is of no account."""
        key, opened = (event.job, event.task), self._open.get(event.job)
        problem = None
        if key not in self._held and key not in self._paused:
            problem = f"{event.task} does not run"
        elif opened is not None:
            problem = _extend(opened, event, now)
        if problem is not None:
            raise InputError(f"[{now:.2f}s] growth of {event.job} at the end of {event.task} refused: {problem}")

    def _release(self, key: tuple[str, str]) -> None:
        devices = self._held.pop(key, None)
        self._stopping.discard(key)
        if devices is None:
            if key in self._paused:  # it ended before the pause took effect, or was stopped
                del self._paused[key]
                return
            raise DovetailError(f"{key[0]}/{key[1]} ended, but it does not run")
        batch = self._in_batch.pop(key, 0)
        if batch:
            first, started, members = self._batches[batch]
            if members > 1:
                self._batches[batch] = (first, started, members - 1)
                return
            del self._batches[batch]
            self._ended_batches.add(batch)
        elif self._shared and devices in self._shared:
            first, members = self._shared.pop(devices)
            if members > 1:
                self._shared[devices] = (first, members - 1)
                return
        self._ledger.free(devices)

    def allow(self, order: Instruction, now: float) -> None:
        """Take note of an instruction, or refuse it."""
        if type(order) is Start:
            problem = self._problem(order, now)
            if problem is not None:
                where = f"[{now:.2f}s] start of {order.job}/{order.task} on {list(order.devices)} refused: "
                raise PolicyError(where + problem)
            self._take(order, now)
        elif type(order) is Complete:
            problem = self._incomplete(order.job, now)
            if problem is not None:
                raise PolicyError(f"[{now:.2f}s] {order.job} was called complete, but {problem}")
            del self._open[order.job]
        elif type(order) is WakeAt:
            if not now < order.at_s < inf:
                raise PolicyError(f"[{now:.2f}s] asked to be woken at {order.at_s} s, which is not in the future")
        elif type(order) is Reject or type(order) is Defer:
            self._put_off(order, now)
        elif type(order) is Prepare:
            problem = self._unpreparable(order)
            if problem is not None:
                raise PolicyError(f"[{now:.2f}s] preload of {order.kind} on {list(order.devices)} refused: {problem}")
            self._last_id = order.id
            self._preparing[order.id] = self._ahead[order.devices] = order
            self._ledger.take(order.devices, ("preload", str(order.id)))
        elif type(order) is Decided:
            if not order.why:
                raise PolicyError(f"[{now:.2f}s] {order.what} was decided without a reason")
        elif type(order) is Pause or type(order) is Resume or type(order) is Resize or type(order) is Stop:
            problem = self._change(order)
            if problem is not None:
                what = type(order).__name__.lower()
                raise PolicyError(f"[{now:.2f}s] {what} of {order.job}/{order.task} refused: {problem}")
        else:
            raise PolicyError(f"[{now:.2f}s] {order!r} is not an instruction")

    def _put_off(self, order: Reject | Defer, now: float) -> None:
        """For now, or for good."""
        what = "rejected" if type(order) is Reject else "deferred"
        if order.job not in self._open:
            raise PolicyError(f"[{now:.2f}s] {what} {order.job}, which has not arrived or is closed")
        if not order.why:
            raise PolicyError(f"[{now:.2f}s] {what} {order.job} without a reason")
        if type(order) is Reject:
            running = self._open.pop(order.job).state.count(_RUNNING)
            if running:
                self._rejected[order.job] = running

    def _change(self, order: Change) -> str | None:
        """Take note of a change of something that was started, or say why it is not allowed."""
        key = (order.job, order.task)
        held = self._held.get(key)
        paused = key in self._paused
        if held is None and not paused:
            return "it does not run"
        if not order.why:
            return "no reason is given"
        if key in self._stopping:
            return "it is being stopped"
        if type(order) is Stop:
            self._stopping.add(key)  # its devices are free when its end is reported
            return None
        if key in self._in_batch:
            return "it runs in a batch"
        if held in self._shared:
            return "it shares its devices"
        opened = self._open.get(order.job)
        if opened is None:
            return "its job is closed"
        if type(order) is Pause:
            if held is None:
                return "it is paused"
            self._ledger.free(self._held.pop(key))
            self._paused[key] = None
        elif type(order) is Resume or type(order) is Resize:
            if (type(order) is Resume) != paused:
                return "it is paused" if paused else "it is not paused"
            return self._move(key, order, opened)
        return None

    def _move(self, key: tuple[str, str], order: Resume | Resize, opened: _Open) -> str | None:
        """Give a task other devices, or say why it cannot have them."""
        task = opened.graph.tasks[opened.graph.index[order.task]]
        if not task.fits(len(order.devices)):
            return f"it needs {task.needs} devices, found {len(order.devices)}"
        if not 0 <= order.run_s < inf:
            return f"expected seconds, found a run of {order.run_s} s"
        old = self._held.get(key, ())
        self._ledger.free(old)
        problem = self._ledger.conflict(order.devices)
        self._ledger.take(old if problem else order.devices, key)
        if problem is None:
            self._held[key] = order.devices
            self._paused.pop(key, None)
        return problem

    def _incomplete(self, job: str, now: float) -> str | None:
        """Why a job is not complete, or None."""
        opened = self._open.get(job)
        if opened is None:
            return "it has not arrived or is closed"
        if opened.fault:
            return f"it cannot run: {opened.fault}"
        if opened.left:
            lacking = [task.name for task, s in zip(opened.graph.tasks, opened.state, strict=True) if s != _DONE]
            return f"it lacks {', '.join(lacking)}"
        return f"its last task ended at {opened.last} s" if opened.last != now else None

    def _problem(self, order: Start, now: float) -> str | None:
        """Why a start is not allowed, or None."""
        opened = self._open.get(order.job)
        if opened is None:
            return "the job has not arrived or is closed"
        if opened.fault:
            return f"the job cannot run: {opened.fault}"
        graph = opened.graph
        i = graph.index.get(order.task)
        if i is None:
            return f"{graph.name} has no such task"
        task = graph.tasks[i]
        if opened.state[i] != _IDLE:
            return "it was started before"
        if opened.waiting[i]:
            missing = [graph.tasks[j].name for j in graph.after[i] if opened.state[j] != _DONE]
            return f"it must wait for {', '.join(missing)}"
        if i in graph.never:
            return f"it can never run: it {graph.never[i]}"
        if task.kind != order.kind or (task.width != len(order.devices) and not task.fits(len(order.devices))):
            return f"it needs {task.kind} on {task.needs} devices, found {order.kind} on {len(order.devices)}"
        if order.ready_s != opened.ready[i]:
            return f"it has been ready since {opened.ready[i]} s, found {order.ready_s} s"
        if not (0 <= order.setup_s < inf and 0 <= order.run_s < inf):
            return f"expected seconds, found a setup of {order.setup_s} s and a run of {order.run_s} s"
        if order.slots:
            return self._slot_problem(order)
        if not order.batch:
            return self._conflict(order)
        return self._batch_problem(order, now)

    def _conflict(self, order: Start) -> str | None:
        """Why its devices cannot be taken, or None: what was prepared for its kind is there for it."""
        ahead = self._ahead.get(order.devices) if self._ahead else None
        return None if ahead is not None and ahead.kind == order.kind else self._ledger.conflict(order.devices)

    def _unpreparable(self, order: Prepare) -> str | None:
        """Why something cannot be prepared, or None."""
        width = self._kinds.get(order.kind)
        if not width:
            return "there is no such kind"
        if len(order.devices) != width:
            return f"it needs {width} devices, found {len(order.devices)}"
        if order.id <= self._last_id:
            return f"number {order.id} was given before"
        if not 0 <= order.setup_s < inf:
            return f"expected seconds, found a setup of {order.setup_s} s"
        return self._ledger.conflict(order.devices) if order.why else "no reason is given"

    def _prepared(self, event: PrepareEnded) -> None:
        order = self._preparing.pop(event.id, None)
        if order is None:
            raise DovetailError(f"preload {event.id} ended, but there is none")
        if self._ahead.get(order.devices) is order:
            del self._ahead[order.devices]
            self._ledger.free(order.devices)

    def _slot_problem(self, order: Start) -> str | None:
        """Those who share devices are of one kind, and no more than there are slots."""
        if order.slots < 0 or order.batch:
            return f"expected slots or a batch, found {order.slots} slots and batch {order.batch}"
        if order.devices not in self._shared:
            return self._conflict(order)
        first, members = self._shared[order.devices]
        if (order.kind, order.slots) != (first.kind, first.slots):
            return f"they are shared by {first.kind} in {first.slots} slots, found {order.kind} in {order.slots}"
        return f"all {first.slots} slots are taken" if members >= first.slots else None

    def _batch_problem(self, order: Start, now: float) -> str | None:
        """The tasks of a batch run as one: they start together, on the same devices, as the same, for as long."""
        if order.batch in self._ended_batches:
            return f"batch {order.batch} ended before"
        if order.batch not in self._batches:
            return self._conflict(order)
        first, began, _ = self._batches[order.batch]
        for name, found, expected in (
            ("at", now, began),
            ("on", list(order.devices), list(first.devices)),
            ("as", order.kind, first.kind),
            ("replacing", order.replaces, first.replaces),
            ("with a setup of", order.setup_s, first.setup_s),
            ("with a run of", order.run_s, first.run_s),
        ):
            if found != expected:
                return f"batch {order.batch} started {name} {expected}, found {found}"
        return None

    def _take(self, order: Start, now: float) -> None:
        key = (order.job, order.task)
        opened = self._open[order.job]
        opened.state[opened.graph.index[order.task]] = _RUNNING
        self._held[key] = order.devices
        if order.batch:
            first, began, members = self._batches.get(order.batch, (order, now, 0))
            self._batches[order.batch] = (first, began, members + 1)
            self._in_batch[key] = order.batch
            if members:
                return
        elif order.slots:
            start, members = self._shared.get(order.devices, (order, 0))
            self._shared[order.devices] = (start, members + 1)
            if members:
                return
        if self._ahead:
            self._ahead.pop(order.devices, None)
        self._ledger.take(order.devices, key)
