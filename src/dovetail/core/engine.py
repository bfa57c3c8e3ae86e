"""The one loop: stimulus -> scheduler -> instructions -> executor -> journal.

`simulate` runs it on virtual time. The engine enforces, the policy chooses: an instruction that over-commits a device,
breaks an order or starts a part twice is refused before it is carried out or written.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from typing import Protocol

from dovetail.core.errors import DovetailError, InputError, PolicyError
from dovetail.core.events import (
    Arrived,
    Complete,
    Failed,
    Finished,
    Instruction,
    Reject,
    Start,
    Stimulus,
    WakeAt,
    Woke,
)
from dovetail.core.journal import Observer, Reader
from dovetail.core.resources import Ledger, Pool
from dovetail.core.work import Shape


class Scheduler(Protocol):
    """A state machine without I/O, clock or randomness of its own."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        """Everything that happened at one instant, in order; what to do about it."""
        ...

    def close(self, now: float) -> list[Instruction]:
        """Nothing is running, nothing will come any more: reject what can never be completed."""
        ...


class Executor(Protocol):
    """Carries a start out on virtual time: when and how it ends."""

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]: ...


class Agenda(Protocol):
    """What happens next."""

    def push(self, at_s: float, stimulus: Stimulus) -> None: ...
    def pop(self) -> tuple[float, list[Stimulus]] | None: ...


_PATIENCE = 100_000  # wakes in a row, with nothing running, after which a policy is taken to be stuck
_ORDER = {Finished: 0, Failed: 1, Woke: 2, Arrived: 3}


class TotalOrder:
    """The default agenda: ties are broken by (time, kind, sequence), and everything at one instant comes together.

    Arrivals are drawn from their iterator one ahead, so a million of them need no memory.
    """

    def __init__(self, arrivals: Iterable[tuple[float, Arrived]]) -> None:
        self._heap: list[tuple[float, int, int, Stimulus]] = []
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)
        self._count = count()

    def push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._heap, (at_s, _ORDER[type(stimulus)], next(self._count), stimulus))

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        heap, coming = self._heap, self._next
        if heap and (coming is None or heap[0][0] <= coming[0]):
            now = heap[0][0]
        elif coming is not None:
            now = coming[0]
        else:
            return None
        batch: list[Stimulus] = []
        while heap and heap[0][0] == now:
            batch.append(heapq.heappop(heap)[3])
        while coming is not None and coming[0] <= now:
            if coming[0] < now:
                raise InputError(f"arrivals are not in order of time: {coming[1].work} at {coming[0]} s, after {now} s")
            batch.append(coming[1])
            coming = next(self._arrivals, None)
        self._next = coming
        return now, batch


class _Open:
    """What the guard knows of a work that has arrived and is not closed."""

    __slots__ = ("fault", "last", "left", "ready", "shape", "state", "waiting")

    def __init__(self, shape: Shape, fault: str, now: float) -> None:
        self.shape = shape
        self.fault = fault
        self.last = now  # the end of the part that ended last
        self.ready = [now] * len(shape.parts)
        self.waiting = shape.waits.copy()
        self.state = bytearray(len(shape.parts))
        self.left = len(shape.parts)


_IDLE, _RUNNING, _DONE = 0, 1, 2
_NOTHING = Shape("", (), ())


class Guard:
    """Keeps its own books and refuses what the rules do not allow, whatever the scheduler believes."""

    def __init__(self, pool: Pool, shapes: Mapping[str, Shape]) -> None:
        self._ledger = Ledger(pool)
        self._shapes = shapes
        self._open: dict[str, _Open] = {}
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}
        self._batches: dict[int, tuple[Start, float, int]] = {}  # the first part, its time, how many run
        self._in_batch: dict[tuple[str, str], int] = {}
        self._ended_batches: set[int] = set()

    @property
    def open_works(self) -> list[str]:
        return list(self._open)

    @property
    def running(self) -> bool:
        return bool(self._held)

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
        if devices is None:
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
        elif type(order) is Reject:
            if order.work not in self._open:
                raise PolicyError(f"[{now:.2f}s] rejected {order.work}, which has not arrived or is closed")
            if not order.why:
                raise PolicyError(f"[{now:.2f}s] rejected {order.work} without a reason")
            del self._open[order.work]
        elif type(order) is WakeAt:
            if not now < order.at_s < inf:
                raise PolicyError(f"[{now:.2f}s] asked to be woken at {order.at_s} s, which is not in the future")
        else:
            raise PolicyError(f"[{now:.2f}s] {order!r} is not an instruction")

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
        if part.kind != order.kind or part.width != len(order.devices):
            return f"it needs {part.kind} on {part.width} devices, found {order.kind} on {len(order.devices)}"
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


def simulate(
    scheduler: Scheduler,
    pool: Pool,
    shapes: Mapping[str, Shape],
    arrivals: Iterable[tuple[float, Arrived]],
    executor: Executor,
    observers: Sequence[Observer] = (),
    agenda: Agenda | None = None,
) -> tuple[int, float]:
    """Run until nothing is left to happen; gives the number of steps and the last instant.

    A step is carried out and written only if all of its instructions are allowed.
    """
    agenda = agenda if agenda is not None else TotalOrder(arrivals)
    guard = Guard(pool, shapes)
    n, now, idle = 0, -sys.float_info.max, 0
    while (batch := agenda.pop()) is not None:
        at_s, stimuli = batch
        if not now <= at_s < inf:
            raise DovetailError(f"after step {n} at {now} s, something was to happen at {at_s} s")
        n, now = n + 1, at_s
        for stimulus in stimuli:
            guard.see(stimulus, now)
        orders = scheduler.handle(stimuli, now)
        for order in orders:
            guard.allow(order, now)
        for order in orders:
            if type(order) is Start:
                agenda.push(*executor.start(order, now))
            elif type(order) is WakeAt:
                agenda.push(order.at_s, Woke())
        events = [*stimuli, *orders]
        for observer in observers:
            observer.step(n, now, events)
        idle = idle + 1 if not guard.running and _only_waits(events) else 0
        if idle == _PATIENCE:
            raise PolicyError(f"[{now:.2f}s] the policy was woken {idle} times in a row to start nothing; nothing runs")
    return _close(scheduler, guard, observers, n, now if n else 0.0)


def _only_waits(events: Sequence[Stimulus | Instruction]) -> bool:
    return all(type(event) is Woke or type(event) is WakeAt for event in events)


def _close(scheduler: Scheduler, guard: Guard, observers: Sequence[Observer], n: int, now: float) -> tuple[int, float]:
    """Let the scheduler reject what can never be completed; nothing may be left open."""
    closing = scheduler.close(now)
    for order in closing:
        if type(order) is not Reject:
            raise PolicyError(f"[{now:.2f}s] only rejections may close a run, not {order}")
        guard.allow(order, now)
    if closing:
        n += 1
        for observer in observers:
            observer.step(n, now, closing)
    if left := guard.open_works:
        raise PolicyError(
            f"[{now:.2f}s] the policy stopped deciding with {len(left)} works unfinished, first {left[0]}; "
            "nothing runs and nothing will arrive"
        )
    return n, now


def replay(scheduler: Scheduler, journal: Reader) -> Iterator[tuple[int, float, list[Instruction], list[Instruction]]]:
    """Feed a recorded run's stimuli to a scheduler: (step, time, what it decides, what is recorded) for each step.

    A recorded step without stimuli is the closing one.
    """
    for n, now, events in journal.steps():
        stimuli = [e for e in events if isinstance(e, Arrived | Finished | Failed | Woke)]
        recorded = [e for e in events if isinstance(e, Start | Complete | Reject | WakeAt)]
        if stimuli:
            yield n, now, scheduler.handle(stimuli, now), recorded
        elif recorded:
            yield n, now, scheduler.close(now), recorded
