"""What `--compat gswarm` needs to give the older scheduler's numbers to the last bit: its order of simultaneous events.

It kept arrivals and completions in one `heapq` that compares times only, so ties fall as its sifting leaves them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dovetail.core.events import Arrived, Stimulus


class _ByTime:
    __slots__ = ("at_s", "stimulus")

    def __init__(self, at_s: float, stimulus: Stimulus) -> None:
        self.at_s = at_s
        self.stimulus = stimulus

    def __lt__(self, other: _ByTime) -> bool:
        return self.at_s < other.at_s


class HeapOrder:
    """An agenda without a total order: one event at a time, all arrivals pushed first."""

    def __init__(self, arrivals: Iterable[tuple[float, Arrived]]) -> None:
        self._heap: list[_ByTime] = []
        for at_s, request in arrivals:
            self.push(at_s, request)

    def push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._heap, _ByTime(at_s, stimulus))

    def cancel(self, stimulus: Stimulus) -> None:
        self._heap = [event for event in self._heap if event.stimulus is not stimulus]
        heapq.heapify(self._heap)

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        if not self._heap:
            return None
        event = heapq.heappop(self._heap)
        return event.at_s, [event.stimulus]
