"""When running jobs are expected to end, in order of time."""

from __future__ import annotations

import heapq
from math import inf

from dovetail.cluster.policies.base import Ints
from dovetail.cluster.rounding.active import Active


class ExpectedEnds:
    """A heap over the table of jobs; entries of leases that are over or have another rate by now are passed over."""

    def __init__(self, jobs: Active) -> None:
        self._jobs = jobs
        self._heap: list[tuple[float, int]] = []

    def only(self, rows: Ints) -> None:
        """Expect the ends of these jobs and of no others."""
        self._heap = self._of(rows)

    def add(self, rows: Ints) -> None:
        for end in self._of(rows):
            heapq.heappush(self._heap, end)

    def _of(self, rows: Ints) -> list[tuple[float, int]]:
        jobs = self._jobs
        return sorted(zip(jobs.finish_s[rows].tolist(), jobs.id[rows].tolist(), strict=True)) if len(rows) else []

    def next_s(self) -> float:
        """When the next job ends."""
        jobs = self._jobs
        while self._heap:
            at_s, job = self._heap[0]
            row = int(jobs.id.searchsorted(job))
            if row < len(jobs) and jobs.id[row] == job and jobs.finish_s[row] == at_s:
                return at_s
            heapq.heappop(self._heap)
        return inf

    def take(self, now: float) -> list[int]:
        """The ids of the jobs that end now, in order."""
        found: dict[int, None] = {}
        while self.next_s() == now:
            found[heapq.heappop(self._heap)[1]] = None
        return list(found)
