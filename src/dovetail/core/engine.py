"""The one loop: stimulus -> scheduler -> instructions -> executor -> journal.

`simulate` runs it on virtual time. The engine enforces, the policy chooses: an instruction that over-commits a device,
breaks an order or starts a part twice is refused before it is carried out or written.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol

from dovetail.core.errors import PolicyError
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
                raise ValueError(f"arrivals are not in order of time: {coming[0]} after {now}")
            batch.append(coming[1])
            coming = next(self._arrivals, None)
        self._next = coming
        return now, batch


class _Open:
    """What the guard knows of a work that has arrived and is not closed."""

    __slots__ = ("left", "shape", "state", "waiting")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.waiting = [len(a) for a in shape.after]
        self.state = bytearray(len(shape.parts))
        self.left = len(shape.parts)


_IDLE, _RUNNING, _DONE = 0, 1, 2


class Guard:
    """Keeps its own books and refuses what the rules do not allow, whatever the scheduler believes."""

    def __init__(self, pool: Pool, shapes: Mapping[str, Shape]) -> None:
        self._ledger = Ledger(pool)
        self._shapes = shapes
        self._open: dict[str, _Open] = {}
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}
        self._batches: dict[int, tuple[tuple[int, ...], float, int]] = {}
        self._in_batch: dict[tuple[str, str], int] = {}

    @property
    def open_works(self) -> list[str]:
        return list(self._open)

    def see(self, stimulus: Stimulus) -> None:
        """Follow what happened."""
        if type(stimulus) is Finished or type(stimulus) is Failed:
            self._release((stimulus.work, stimulus.part))
            opened = self._open.get(stimulus.work)
            if opened is None:  # its work was rejected while it ran
                return
            i = opened.shape.index[stimulus.part]
            if type(stimulus) is Failed:
                opened.state[i] = _IDLE
                return
            opened.state[i] = _DONE
            opened.left -= 1
            for j in opened.shape.before[i]:
                opened.waiting[j] -= 1
        elif type(stimulus) is Arrived:
            if stimulus.work in self._open:
                raise PolicyError(f"work {stimulus.work} arrived twice")
            shape = self._shapes.get(stimulus.of)
            self._open[stimulus.work] = _Open(shape or Shape(stimulus.of, (), ()))

    def _release(self, key: tuple[str, str]) -> None:
        devices = self._held.pop(key)
        batch = self._in_batch.pop(key, 0)
        if batch:
            _, started, members = self._batches[batch]
            if members > 1:
                self._batches[batch] = (devices, started, members - 1)
                return
            del self._batches[batch]
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
            opened = self._open.pop(order.work, None)
            if opened is None or opened.left:
                raise PolicyError(f"[{now:.2f}s] {order.work} was called complete, but it is not")
        elif type(order) is Reject:
            if self._open.pop(order.work, None) is None:
                raise PolicyError(f"[{now:.2f}s] rejected {order.work}, which is not open")
        elif type(order) is WakeAt and order.at_s < now:
            raise PolicyError(f"[{now:.2f}s] asked to be woken in the past, at {order.at_s}")

    def _problem(self, order: Start, now: float) -> str | None:
        """Why a start is not allowed, or None."""
        opened = self._open.get(order.work)
        if opened is None:
            return "the work has not arrived or is closed"
        shape = opened.shape
        i = shape.index.get(order.part)
        if i is None:
            return f"{shape.name} has no such part"
        part = shape.parts[i]
        if opened.state[i] != _IDLE:
            return "it was started before"
        if opened.waiting[i] or i in shape.never:
            missing = [shape.parts[j].name for j in shape.after[i] if opened.state[j] != _DONE]
            return f"it must wait for {', '.join(missing) or shape.never[i]}"
        if part.kind != order.kind or part.width != len(order.devices):
            return f"it needs {part.width} devices with {part.kind}, not {order.kind}"
        batch = self._batches.get(order.batch) if order.batch else None
        if batch is None:
            return self._ledger.conflict(order.devices)
        if batch[0] != order.devices or batch[1] != now:
            return f"batch {order.batch} started at {batch[1]} on {list(batch[0])}"
        return None

    def _take(self, order: Start, now: float) -> None:
        key = (order.work, order.part)
        opened = self._open[order.work]
        opened.state[opened.shape.index[order.part]] = _RUNNING
        self._held[key] = order.devices
        if order.batch:
            members = self._batches[order.batch][2] if order.batch in self._batches else 0
            self._batches[order.batch] = (order.devices, now, members + 1)
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
    """Run until nothing is left to happen; gives the number of steps and the last instant."""
    agenda = agenda if agenda is not None else TotalOrder(arrivals)
    guard = Guard(pool, shapes)
    n, now = 0, 0.0
    while (batch := agenda.pop()) is not None:
        n += 1
        now, stimuli = batch
        for stimulus in stimuli:
            guard.see(stimulus)
        orders = scheduler.handle(stimuli, now)
        for order in orders:
            guard.allow(order, now)
            if type(order) is Start:
                agenda.push(*executor.start(order, now))
            elif type(order) is WakeAt:
                agenda.push(order.at_s, Woke())
        events = [*stimuli, *orders]
        for observer in observers:
            observer.step(n, now, events)
    closing = scheduler.close(now)
    if closing:
        n += 1
        for order in closing:
            if not isinstance(order, Reject):
                raise PolicyError(f"[{now:.2f}s] only rejections may close a run, not {order}")
            guard.allow(order, now)
        for observer in observers:
            observer.step(n, now, closing)
    if guard.open_works:
        left = guard.open_works
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
