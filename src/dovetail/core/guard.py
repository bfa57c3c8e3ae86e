"""The guard: keeps its own books of works, devices and order, and refuses what the rules do not allow."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from dovetail.core.errors import DovetailError, InputError, PolicyError
from dovetail.core.events import (
    Arrived,
    Change,
    Complete,
    Defer,
    Failed,
    Finished,
    Instruction,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stimulus,
    Stop,
    WakeAt,
)
from dovetail.core.resources import Ledger, Pool
from dovetail.core.work import TaskGraph


class _Open:
    """What the guard knows of a work that has arrived and is not closed."""

    __slots__ = ("fault", "last", "left", "ready", "shape", "state", "waiting")

    def __init__(self, shape: TaskGraph, fault: str, now: float) -> None:
        self.shape = shape
        self.fault = fault
        self.last = now  # the end of the part that ended last
        self.ready = [now] * len(shape.parts)
        self.waiting = shape.waits.copy()
        self.state = bytearray(len(shape.parts))
        self.left = len(shape.parts)


_IDLE, _RUNNING, _DONE = 0, 1, 2
_NOTHING = TaskGraph("", (), ())


class Guard:
    """Keeps its own books and refuses what the rules do not allow, whatever the scheduler believes."""

    def __init__(self, pool: Pool, shapes: Mapping[str, TaskGraph]) -> None:
        self._ledger = Ledger(pool)
        self._shapes = shapes
        self._open: dict[str, _Open] = {}
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}
        self._paused: dict[tuple[str, str], None] = {}
        self._stopping: set[tuple[str, str]] = set()
        self._batches: dict[int, tuple[Start, float, int]] = {}  # the first part, its time, how many run
        self._in_batch: dict[tuple[str, str], int] = {}
        self._ended_batches: set[int] = set()

    @property
    def open_works(self) -> list[str]:
        return list(self._open)

    @property
    def running(self) -> bool:
        return bool(self._held)

    @property
    def desired(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """What was started and has not ended, and the devices it should have now; without any it is paused."""
        return {**self._held, **dict.fromkeys(self._paused, ())}

    def see(self, stimulus: Stimulus, now: float) -> None:
        """Follow what happened."""
        if type(stimulus) is Finished or type(stimulus) is Failed:
            self._release((stimulus.work, stimulus.part))
            opened = self._open.get(stimulus.work)
            if opened is None:  # its work was rejected while it ran
                return
            i = opened.shape.index[stimulus.part]
            if type(stimulus) is Failed:
                opened.state[i] = _IDLE
                opened.ready[i] = now
                return
            opened.state[i] = _DONE
            opened.left -= 1
            opened.last = now
            for j in opened.shape.before[i]:
                opened.waiting[j] -= 1
                opened.ready[j] = now
        elif type(stimulus) is Arrived:
            self._arrive(stimulus, now)

    def _arrive(self, work: Arrived, now: float) -> None:
        shape = self._shapes.get(work.of, _NOTHING)
        problem = ""
        if work.work in self._open:
            problem = "it arrived before"
        elif work.fault:
            pass  # all that can be done is to reject it
        elif shape is _NOTHING:
            problem = f"there is no shape {work.of!r}"
        elif len(work.sizes) != len(shape.parts):
            problem = f"found {len(work.sizes)} sizes, expected one for each of the {len(shape.parts)} parts"
        elif not all(0 <= size < inf for size in work.sizes):
            problem = f"found sizes {list(work.sizes)}, expected seconds"
        if problem:
            raise InputError(f"[{now:.2f}s] arrival of {work.work} refused: {problem}")
        self._open[work.work] = _Open(shape, work.fault, now)

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
        self._ledger.free(devices)

    def allow(self, order: Instruction, now: float) -> None:
        """Take note of an instruction, or refuse it."""
        if type(order) is Start:
            problem = self._problem(order, now)
            if problem is not None:
                where = f"[{now:.2f}s] start of {order.work}/{order.part} on {list(order.devices)} refused: "
                raise PolicyError(where + problem)
            self._take(order, now)
        elif type(order) is Complete:
            problem = self._incomplete(order.work, now)
            if problem is not None:
                raise PolicyError(f"[{now:.2f}s] {order.work} was called complete, but {problem}")
            del self._open[order.work]
        elif type(order) is WakeAt:
            if not now < order.at_s < inf:
                raise PolicyError(f"[{now:.2f}s] asked to be woken at {order.at_s} s, which is not in the future")
        elif type(order) is Reject or type(order) is Defer:
            self._put_off(order, now)
        elif type(order) is Pause or type(order) is Resume or type(order) is Resize or type(order) is Stop:
            problem = self._change(order)
            if problem is not None:
                what = type(order).__name__.lower()
                raise PolicyError(f"[{now:.2f}s] {what} of {order.work}/{order.part} refused: {problem}")
        else:
            raise PolicyError(f"[{now:.2f}s] {order!r} is not an instruction")

    def _put_off(self, order: Reject | Defer, now: float) -> None:
        """For now, or for good."""
        what = "rejected" if type(order) is Reject else "deferred"
        if order.work not in self._open:
            raise PolicyError(f"[{now:.2f}s] {what} {order.work}, which has not arrived or is closed")
        if not order.why:
            raise PolicyError(f"[{now:.2f}s] {what} {order.work} without a reason")
        if type(order) is Reject:
            del self._open[order.work]

    def _change(self, order: Change) -> str | None:
        """Take note of a change of something that was started, or say why it is not allowed."""
        key = (order.work, order.part)
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
        opened = self._open.get(order.work)
        if opened is None:
            return "its work is closed"
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
        """Give a part other devices, or say why it cannot have them."""
        part = opened.shape.parts[opened.shape.index[order.part]]
        if not part.fits(len(order.devices)):
            return f"it needs {part.needs} devices, found {len(order.devices)}"
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

    def _incomplete(self, work: str, now: float) -> str | None:
        """Why a work is not complete, or None."""
        opened = self._open.get(work)
        if opened is None:
            return "it has not arrived or is closed"
        if opened.fault:
            return f"it cannot run: {opened.fault}"
        if opened.left:
            lacking = [part.name for part, s in zip(opened.shape.parts, opened.state, strict=True) if s != _DONE]
            return f"it lacks {', '.join(lacking)}"
        return f"its last part ended at {opened.last} s" if opened.last != now else None

    def _problem(self, order: Start, now: float) -> str | None:
        """Why a start is not allowed, or None."""
        opened = self._open.get(order.work)
        if opened is None:
            return "the work has not arrived or is closed"
        if opened.fault:
            return f"the work cannot run: {opened.fault}"
        shape = opened.shape
        i = shape.index.get(order.part)
        if i is None:
            return f"{shape.name} has no such part"
        part = shape.parts[i]
        if opened.state[i] != _IDLE:
            return "it was started before"
        if opened.waiting[i]:
            missing = [shape.parts[j].name for j in shape.after[i] if opened.state[j] != _DONE]
            return f"it must wait for {', '.join(missing)}"
        if i in shape.never:
            return f"it can never run: it {shape.never[i]}"
        if part.kind != order.kind or (part.width != len(order.devices) and not part.fits(len(order.devices))):
            return f"it needs {part.kind} on {part.needs} devices, found {order.kind} on {len(order.devices)}"
        if order.ready_s != opened.ready[i]:
            return f"it has been ready since {opened.ready[i]} s, found {order.ready_s} s"
        if not (0 <= order.setup_s < inf and 0 <= order.run_s < inf):
            return f"expected seconds, found a setup of {order.setup_s} s and a run of {order.run_s} s"
        if not order.batch:
            return self._ledger.conflict(order.devices)
        return self._batch_problem(order, now)

    def _batch_problem(self, order: Start, now: float) -> str | None:
        """The parts of a batch run as one: they start together, on the same devices, as the same, for as long."""
        if order.batch in self._ended_batches:
            return f"batch {order.batch} ended before"
        if order.batch not in self._batches:
            return self._ledger.conflict(order.devices)
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
        key = (order.work, order.part)
        opened = self._open[order.work]
        opened.state[opened.shape.index[order.part]] = _RUNNING
        self._held[key] = order.devices
        if order.batch:
            first, began, members = self._batches.get(order.batch, (order, now, 0))
            self._batches[order.batch] = (first, began, members + 1)
            self._in_batch[key] = order.batch
            if members:
                return
        self._ledger.take(order.devices, key)
