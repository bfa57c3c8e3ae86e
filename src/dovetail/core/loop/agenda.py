"""What happens next, on virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import Protocol

from dovetail.core.errors import InputError
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Failed,
    Finished,
    Grew,
    Measured,
    Observed,
    PrepareEnded,
    Settled,
    Stimulus,
    Woke,
)

_KINDS = (Added, Grew, Finished, Failed, Settled, PrepareEnded, Measured, Observed, Woke, Arrived)
ORDER: dict[type, int] = {kind: place for place, kind in enumerate(_KINDS)}
ORDER[Asked] = ORDER[Arrived]  # who comes and who asks is heard in the order in which they spoke
# Of what really happens, all that is reported is taken in the order in which it was.
LIVE_ORDER: dict[type, int] = {**dict.fromkeys(_KINDS, 1), Added: 0, Woke: 2, Arrived: 3, Asked: 3}


class Agenda(Protocol):
    """Takes what is to come, and gives what comes next."""

    def push(self, at_s: float, stimulus: Stimulus) -> None: ...

    def cancel(self, stimulus: Stimulus) -> None:
        """It will not come after all: this very object, for another that equals it may."""
        ...

    def pop(self) -> tuple[float, list[Stimulus]] | None: ...


class TotalOrder:
    """The default agenda: ties are broken by (time, kind, sequence), and everything at one instant comes together.

    Arrivals (and what is asked for later) are drawn from their iterator one ahead, so a million of them need no memory.
    """

    def __init__(self, arrivals: Iterable[tuple[float, Arrived | Asked]] = ()) -> None:
        self._heap: list[tuple[float, int, int, Stimulus]] = []
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)
        self._count = count()
        self._cancelled: dict[int, Stimulus] = {}  # by identity; kept alive, so that no other gets its place in memory

    def push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._heap, (at_s, ORDER[type(stimulus)], next(self._count), stimulus))

    def cancel(self, stimulus: Stimulus) -> None:
        self._cancelled[id(stimulus)] = stimulus

    def peek(self) -> float | None:
        """When something comes next."""
        heap, cancelled, coming = self._heap, self._cancelled, self._next
        while cancelled and heap and cancelled.pop(id(heap[0][3]), None) is not None:
            heapq.heappop(heap)
        if heap and (coming is None or heap[0][0] <= coming[0]):
            return heap[0][0]
        return None if coming is None else coming[0]

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        if (now := self.peek()) is None:
            return None
        heap, coming, cancelled = self._heap, self._next, self._cancelled
        batch: list[Stimulus] = []
        while heap and heap[0][0] == now:
            stimulus = heapq.heappop(heap)[3]
            if not cancelled or cancelled.pop(id(stimulus), None) is None:
                batch.append(stimulus)
        if coming is not None and coming[0] <= now:
            self._arrive(now, batch)
        return now, batch

    def _arrive(self, now: float, batch: list[Stimulus]) -> None:
        coming = self._next
        while coming is not None and coming[0] <= now:
            if coming[0] < now:
                raise InputError(f"arrivals are not in order of time: {coming[1].job} at {coming[0]} s, after {now} s")
            batch.append(coming[1])
            coming = next(self._arrivals, None)
        self._next = coming
