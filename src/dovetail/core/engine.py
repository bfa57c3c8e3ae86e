"""The one loop: stimulus -> scheduler -> instructions -> executor -> journal.

`simulate` runs it on virtual time, `serve` on wall-clock time. The engine enforces, the policy chooses: an instruction
that over-commits a device, breaks an order or starts a task twice is refused before it is carried out or written.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from typing import Protocol

from dovetail.core.errors import DovetailError, InputError, PolicyError, ReplayError
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Change,
    Failed,
    Finished,
    Instruction,
    Measured,
    Observed,
    Pause,
    Reject,
    Resize,
    Resume,
    Settled,
    Start,
    Stimulus,
    Stop,
    WakeAt,
    Woke,
)
from dovetail.core.guard import Guard
from dovetail.core.inbox import Inbox
from dovetail.core.journal import Observer, Reader, Recorded
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph

__all__ = ["Agenda", "Executor", "Guard", "LiveExecutor", "Scheduler", "TotalOrder", "replay", "serve", "simulate"]


class Scheduler(Protocol):
    """A state machine without I/O, clock or randomness of its own."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        """Everything that happened at one instant, in order; what to do about it."""
        ...

    def close(self, now: float) -> list[Instruction]:
        """Nothing is running, nothing will come any more: reject what can never be completed."""
        ...


class Executor(Protocol):
    """Carries orders out on virtual time: when and how what was started ends."""

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]: ...

    def change(self, order: Change, now: float) -> tuple[float, Stimulus] | None:
        """The end that takes the place of the one given before; None while there is none, as for a paused task."""
        ...


class LiveExecutor(Protocol):
    """Carries orders out for real. Nothing here may block: what takes time goes to a thread, and what comes of it
    (ends, failures, settled changes) into the inbox."""

    def carry(self, orders: Sequence[Start | Change], now: float) -> None:
        """The orders of one step, in their order: one that takes a device waits for those before it that give it up."""
        ...

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """After a restart: what was started and has not ended as far as the journal knows, and its devices (none:
        paused). Find it again, bring it there, and report what ended meanwhile."""
        ...


class Agenda(Protocol):
    """What happens next."""

    def push(self, at_s: float, stimulus: Stimulus) -> None: ...
    def pop(self) -> tuple[float, list[Stimulus]] | None: ...


_PATIENCE = 100_000  # wakes in a row, with nothing running, after which a policy is taken to be stuck
_ORDER: dict[type, int] = {
    kind: place
    for place, kind in enumerate((Added, Finished, Failed, Settled, Measured, Observed, Woke, Arrived, Asked))
}


class TotalOrder:
    """The default agenda: ties are broken by (time, kind, sequence), and everything at one instant comes together.

    Arrivals (and what is asked for later) are drawn from their iterator one ahead, so a million of them need no memory.
    """

    def __init__(self, arrivals: Iterable[tuple[float, Arrived | Asked]]) -> None:
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
                raise InputError(f"arrivals are not in order of time: {coming[1].job} at {coming[0]} s, after {now} s")
            batch.append(coming[1])
            coming = next(self._arrivals, None)
        self._next = coming
        return now, batch


def simulate(
    scheduler: Scheduler,
    pool: Pool,
    graphs: Mapping[str, TaskGraph],
    arrivals: Iterable[tuple[float, Arrived | Asked]],
    executor: Executor,
    observers: Sequence[Observer] = (),
    agenda: Agenda | None = None,
) -> tuple[int, float]:
    """Run until nothing is left to happen; gives the number of steps and the last instant.

    A step is carried out and written only if all of its instructions are allowed.
    """
    agenda = agenda if agenda is not None else TotalOrder(arrivals)
    guard = Guard(pool, graphs)
    ends = _Ends(agenda, executor)
    n, now, idle = 0, -sys.float_info.max, 0
    while (batch := agenda.pop()) is not None:
        at_s, stimuli = batch
        if not now <= at_s < inf:
            raise DovetailError(f"after step {n} at {now} s, something was to happen at {at_s} s")
        if ends.stale and not (stimuli := ends.fresh(stimuli)):
            continue
        n, now = n + 1, at_s
        for stimulus in stimuli:
            guard.see(stimulus, now)
            if type(stimulus) is Finished or type(stimulus) is Failed:
                ends.coming.pop((stimulus.job, stimulus.task), None)
        orders = scheduler.handle(stimuli, now)
        for order in orders:
            guard.allow(order, now)
        for order in orders:
            if type(order) is Start:
                agenda.push(*ends.start(order, now))
            elif type(order) is WakeAt:
                agenda.push(order.at_s, Woke())
            elif type(order) in _CHANGES:
                ends.change(order, now)  # type: ignore[arg-type]
        events = [*stimuli, *orders]
        for observer in observers:
            observer.step(n, now, events)
        idle = idle + 1 if not guard.running and _only_waits(events) else 0
        if idle == _PATIENCE:
            raise PolicyError(f"[{now:.2f}s] the policy was woken {idle} times in a row to start nothing; nothing runs")
    return _close(scheduler, guard, observers, n, now if n else 0.0)


class _Ends:
    """The ends that are to come. One that a change has overtaken stays on the agenda, and is dropped when it comes."""

    def __init__(self, agenda: Agenda, executor: Executor) -> None:
        self.stale: dict[int, Stimulus] = {}  # by identity: the same task may end twice, once of them for real
        self._agenda = agenda
        self._executor = executor
        self.coming: dict[tuple[str, str], Stimulus] = {}

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]:
        at_s, end = self._executor.start(order, now)
        self.coming[order.job, order.task] = end
        return at_s, end

    def change(self, order: Change, now: float) -> None:
        key = (order.job, order.task)
        old = self.coming.pop(key, None)
        if old is not None:
            self.stale[id(old)] = old
        new = self._executor.change(order, now)
        if new is not None:
            self.coming[key] = new[1]
            self._agenda.push(*new)

    def fresh(self, stimuli: list[Stimulus]) -> list[Stimulus]:
        return [stimulus for stimulus in stimuli if self.stale.pop(id(stimulus), None) is None]


_CHANGES = frozenset({Pause, Resume, Resize, Stop})


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
    if left := guard.open_jobs:
        raise PolicyError(
            f"[{now:.2f}s] the policy stopped deciding with {len(left)} jobs unfinished, first {left[0]}; "
            "nothing runs and nothing will arrive"
        )
    return n, now


def replay(scheduler: Scheduler, journal: Reader) -> Iterator[tuple[int, float, list[Instruction], list[Instruction]]]:
    """Feed a recorded run's stimuli to a scheduler: (step, time, what it decides, what is recorded) for each step.

    A recorded step without stimuli is the closing one.
    """
    for n, now, events in journal.steps():
        stimuli, recorded = _sides(events)
        if stimuli:
            yield n, now, scheduler.handle(stimuli, now), recorded
        elif recorded:
            yield n, now, scheduler.close(now), recorded


def _sides(events: Sequence[Recorded]) -> tuple[list[Stimulus], list[Instruction]]:
    """What was seen, and what was decided."""
    return [e for e in events if isinstance(e, Stimulus)], [e for e in events if isinstance(e, Instruction)]


def serve(
    scheduler: Scheduler,
    pool: Pool,
    graphs: Mapping[str, TaskGraph],
    inbox: Inbox,
    executor: LiveExecutor,
    clock: Callable[[], float],
    observers: Sequence[Observer] = (),
    history: Iterable[tuple[int, float, Sequence[Recorded]]] = (),
) -> tuple[int, float]:
    """Run on wall-clock time until the inbox is closed; gives the number of steps and the last instant.

    Observers see a step before it is carried out: a journal that flushes in `step` has everything that can have
    happened. `history` are the steps that were recorded before a restart, the same scheduler's: they are replayed, and
    the run goes on behind them. `clock` must go on too (seconds since the service first began); if it is set back, time
    goes on here from where it was.
    """
    guard, wakes = Guard(pool, graphs), _Wakes()
    n, now = 0, -inf
    for n, now, events in history:
        _again(scheduler, guard, wakes, n, now, events)
    if n:
        executor.restore(guard.desired, now)
    onward = _Onward(clock, now)
    while True:
        stimuli = inbox.take(wakes.wait_s(onward()))
        now = onward()
        batch = [*(stimuli or ()), *wakes.due(now)]
        batch.sort(key=lambda stimulus: _ORDER[type(stimulus)])
        if batch:
            n += 1
            _turn(scheduler, guard, executor, observers, wakes, n, now, batch)
        if stimuli is None:
            return n, now


def _turn(
    scheduler: Scheduler,
    guard: Guard,
    executor: LiveExecutor,
    observers: Sequence[Observer],
    wakes: _Wakes,
    n: int,
    now: float,
    stimuli: list[Stimulus],
) -> None:
    """One turn of the loop: written first, carried out then."""
    for stimulus in stimuli:
        guard.see(stimulus, now)
    orders = scheduler.handle(stimuli, now)
    for order in orders:
        guard.allow(order, now)
    events = [*stimuli, *orders]
    for observer in observers:
        observer.step(n, now, events)
    wakes.note(orders)
    changes = [o for o in orders if isinstance(o, Start | Change)]
    if changes:
        executor.carry(changes, now)


def _again(scheduler: Scheduler, guard: Guard, wakes: _Wakes, n: int, now: float, events: Sequence[Recorded]) -> None:
    """Follow a recorded step: the scheduler must decide as it did."""
    stimuli, recorded = _sides(events)
    if not stimuli:
        return
    for stimulus in stimuli:
        guard.see(stimulus, now)
    orders = scheduler.handle(stimuli, now)
    if orders != recorded:
        raise ReplayError(f"step {n} at {now} s: {orders} was decided now, {recorded} when it was recorded")
    for order in orders:
        guard.allow(order, now)
    wakes.due(now)
    wakes.note(orders)


class _Onward:
    """A clock that never goes back, nor stands still until the one behind it has caught up."""

    def __init__(self, clock: Callable[[], float], at_s: float) -> None:
        self._clock, self._at_s, self._ahead_s = clock, at_s, 0.0

    def __call__(self) -> float:
        now = self._clock() + self._ahead_s
        if now < self._at_s:
            self._ahead_s += self._at_s - now
            now = self._at_s
        self._at_s = now
        return now


class _Wakes:
    """The instants at which a scheduler asked to be woken."""

    def __init__(self) -> None:
        self._heap: list[float] = []

    def note(self, orders: Iterable[Instruction]) -> None:
        for order in orders:
            if type(order) is WakeAt:
                heapq.heappush(self._heap, order.at_s)

    def wait_s(self, now: float) -> float | None:
        return max(self._heap[0] - now, 0.0) if self._heap else None

    def due(self, now: float) -> list[Stimulus]:
        """One for all that have come."""
        woke = False
        while self._heap and self._heap[0] <= now:
            heapq.heappop(self._heap)
            woke = True
        return [Woke()] if woke else []
