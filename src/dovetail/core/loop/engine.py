"""The one loop: stimuli -> scheduler -> instructions -> journal -> executor.

`simulate` runs it on virtual time, `serve` on wall-clock time; both take the same step. The engine enforces, the policy
chooses: an instruction that over-commits a device, breaks an order or starts a task twice is refused before anything of
its step is written or carried out.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from dovetail.core.errors import DovetailError, PolicyError, ReplayError
from dovetail.core.events import (
    Arrived,
    Asked,
    Instruction,
    Order,
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
    Woke,
)
from dovetail.core.journal import Observer, Reader, Recorded
from dovetail.core.loop.agenda import LIVE_ORDER, Agenda, TotalOrder
from dovetail.core.loop.guard import Guard
from dovetail.core.loop.inbox import Inbox
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph

__all__ = ["Executor", "Scheduler", "SimulatedExecutor", "replay", "serve", "simulate"]


class Scheduler(Protocol):
    """A state machine without I/O, clock or randomness of its own."""

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        """Everything that happened at one instant, in order; what to do about it."""
        ...

    def close(self, now: float) -> list[Instruction]:
        """Nothing is running, nothing will come any more: reject what can never be completed."""
        ...


class Executor(Protocol):
    """Carries orders out, on virtual time or for real. Nothing here may block: what takes time goes elsewhere, and what
    comes of it (ends, failures, settled changes) is reported to where the loop takes its stimuli from."""

    def carry(self, orders: Sequence[Order], now: float) -> None:
        """The orders of one step, in their order: one that takes a device waits for those before it that give it up."""
        ...

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """After a restart: what was started and has not ended as far as the journal knows, and its devices (none:
        paused). Find it again, bring it there, and report what ended meanwhile."""
        ...


class SimulatedExecutor(Executor, Protocol):
    """One that knows ahead when what it carries out will end."""

    def report_to(self, agenda: Agenda) -> None: ...


_PATIENCE = 100_000  # wakes in a row, with nothing running, after which a policy is taken to be stuck
_WAITS = (Woke, PrepareEnded, WakeAt, Prepare)  # of all that happens and is decided, what brings no task on
_CARRIED = (Start, Prepare, Pause, Resume, Resize, Stop)


class _Loop:
    """One step at a time: see, decide, allow, write, carry out."""

    def __init__(
        self,
        scheduler: Scheduler,
        guard: Guard,
        executor: Executor,
        observers: Sequence[Observer],
        wake_at: Callable[[float], None],
    ) -> None:
        self.n, self.guard = 0, guard
        self._scheduler, self._executor, self._observers, self._wake_at = scheduler, executor, observers, wake_at

    def step(
        self, now: float, stimuli: Sequence[Stimulus], recorded: Sequence[Instruction] | None = None
    ) -> list[Instruction]:
        """Observers see a step before it is carried out: a journal that is flushed then has all that can have happened.
        A step that was `recorded` before a restart is only followed: the scheduler must decide as it did."""
        self.n += 1
        see, allow = self.guard.see, self.guard.allow
        for stimulus in stimuli:
            see(stimulus, now)
        orders = self._scheduler.handle(stimuli, now)
        if recorded is not None and orders != recorded:
            raise ReplayError(f"step {self.n} at {now} s: {orders} was decided now, {recorded} when it was recorded")
        carried: list[Order] = []
        for order in orders:
            allow(order, now)
            if isinstance(order, _CARRIED):
                carried.append(order)
            elif type(order) is WakeAt:
                self._wake_at(order.at_s)
        if recorded is None:
            if self._observers:
                self.tell(now, [*stimuli, *orders])
            if carried:
                self._executor.carry(carried, now)
        return orders

    def tell(self, now: float, events: Sequence[Stimulus | Instruction]) -> None:
        for observer in self._observers:
            observer.step(self.n, now, events)

    def close(self, now: float) -> None:
        """Let the scheduler reject what can never be completed; nothing may be left open."""
        closing = self._scheduler.close(now)
        for order in closing:
            if type(order) is not Reject:
                raise PolicyError(f"[{now:.2f}s] only rejections may close a run, not {order}")
            self.guard.allow(order, now)
        if closing:
            self.n += 1
            self.tell(now, closing)
        if left := self.guard.open_jobs:
            raise PolicyError(
                f"[{now:.2f}s] the policy stopped deciding with {len(left)} jobs unfinished, first {left[0]}; "
                "nothing runs and nothing will arrive"
            )


def simulate(
    scheduler: Scheduler,
    pool: Pool,
    graphs: Mapping[str, TaskGraph],
    arrivals: Iterable[tuple[float, Arrived | Asked]],
    executor: SimulatedExecutor,
    observers: Sequence[Observer] = (),
    agenda: Agenda | None = None,
    guard: Guard | None = None,
) -> tuple[int, float]:
    """Run until nothing is left to happen; gives the number of steps and the last instant.

    A step is written and carried out only if all of its instructions are allowed. A level that has rules of its own
    gives a `guard` that knows them.
    """
    agenda = agenda if agenda is not None else TotalOrder(arrivals)
    executor.report_to(agenda)
    guard, wakes = guard or Guard(pool, graphs), set[float]()

    def wake_at(at_s: float) -> None:  # once for all who asked for that instant
        if at_s not in wakes:
            wakes.add(at_s)
            agenda.push(at_s, Woke())

    loop = _Loop(scheduler, guard, executor, observers, wake_at)
    now, idle = -sys.float_info.max, 0
    while (batch := agenda.pop()) is not None:
        at_s, stimuli = batch
        if not now <= at_s < inf:
            raise DovetailError(f"after step {loop.n} at {now} s, something was to happen at {at_s} s")
        if not stimuli:
            continue
        now = at_s
        wakes.discard(now)
        orders = loop.step(now, stimuli)
        idle = idle + 1 if type(stimuli[0]) in _WAITS and not guard.running and _only_waits(stimuli, orders) else 0
        if idle == _PATIENCE:
            raise PolicyError(f"[{now:.2f}s] the policy was woken {idle} times in a row to start nothing; nothing runs")
    now = now if loop.n else 0.0
    loop.close(now)
    return loop.n, now


def _only_waits(stimuli: Sequence[Stimulus], orders: Sequence[Instruction]) -> bool:
    return all(type(stimulus) in _WAITS for stimulus in stimuli) and all(type(order) in _WAITS for order in orders)


def serve(
    scheduler: Scheduler,
    pool: Pool,
    graphs: Mapping[str, TaskGraph],
    inbox: Inbox,
    executor: Executor,
    clock: Callable[[], float],
    observers: Sequence[Observer] = (),
    history: Iterable[tuple[int, float, Sequence[Recorded]]] = (),
    guard: Guard | None = None,
) -> tuple[int, float]:
    """Run on wall-clock time until the inbox is closed; gives the number of steps and the last instant.

    `history` are the steps that were recorded before a restart, the same scheduler's: they are replayed, and the run
    goes on behind them. `clock` must go on too (seconds since the service first began); if it is set back, time goes on
    here from where it was.
    """
    wakes = _Wakes()
    loop = _Loop(scheduler, guard or Guard(pool, graphs), executor, observers, wakes.at)
    now = -inf
    for n, now, events in history:
        stimuli, recorded = _sides(events)
        if stimuli:
            loop.n = n - 1
            wakes.due(now)
            loop.step(now, stimuli, recorded)
    if loop.n:
        executor.restore(loop.guard.desired, now)
        inbox.put(*(PrepareEnded(id, "it was lost in a restart") for id in loop.guard.preparing))
    onward = OnwardClock(clock, now)
    while True:
        taken = inbox.take(wakes.wait_s(onward()))
        now = onward()
        batch = [*(taken or ()), *wakes.due(now)]
        batch.sort(key=lambda stimulus: LIVE_ORDER[type(stimulus)])
        if batch:
            loop.step(now, batch)
        if taken is None:
            return loop.n, now


def replay(scheduler: Any, journal: Reader) -> Iterator[tuple[int, float, list[Any], list[Any]]]:
    """Feed a recorded run's stimuli to a scheduler: (step, time, what it decides, what is recorded) for each step.

    A recorded step without stimuli is the closing one. A level whose scheduler deals in events of its own names them:
    those that it `hears` and those that it `decides`, and is asked at each step that has any of either.
    """
    hears, decides = getattr(scheduler, "hears", None), getattr(scheduler, "decides", None)
    if hears is not None and decides is not None:
        for n, now, events in journal.rows():
            heard = [e for e in events if isinstance(e, hears) and not getattr(e, "decided", False)]
            decided = [e for e in events if isinstance(e, decides) and getattr(e, "decided", True)]
            if heard or decided:
                yield n, now, scheduler.handle(heard, now), decided
        return
    for n, now, events in journal.steps():
        stimuli, recorded = _sides(events)
        if stimuli:
            yield n, now, scheduler.handle(stimuli, now), recorded
        elif recorded:
            yield n, now, scheduler.close(now), recorded


def _sides(events: Sequence[Recorded]) -> tuple[list[Stimulus], list[Instruction]]:
    """What was seen, and what was decided."""
    return [e for e in events if isinstance(e, Stimulus)], [e for e in events if isinstance(e, Instruction)]


class OnwardClock:
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

    def at(self, at_s: float) -> None:
        heapq.heappush(self._heap, at_s)

    def wait_s(self, now: float) -> float | None:
        return max(self._heap[0] - now, 0.0) if self._heap else None

    def due(self, now: float) -> list[Stimulus]:
        """One for all that have come."""
        woke = False
        while self._heap and self._heap[0] <= now:
            heapq.heappop(self._heap)
            woke = True
        return [Woke()] if woke else []
