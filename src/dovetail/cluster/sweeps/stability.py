"""Whether a load can be borne: stops a run whose queue grows without end, or that takes longer than it may.

The queue is what active jobs want beyond all accelerators there are. Under a load that can be borne it comes and goes;
under one that cannot it grows with the number of arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from dovetail.cluster.inputs.choices import LONGEST_QUEUE
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Ints
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows

_GROWS = 1.25  # times what it was at half of the arrivals; a queue that grows steadily has doubled
_SHARE = 0.1  # of what arrives in the window: a queue that grew by more was not borne
_CLEAR = 0.25  # of all accelerators: a smaller growth tells nothing


class StoppedError(DovetailError):
    """A run that was not worth finishing. `status` says why in a word."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class QueueWatch:
    """Follows a run by its arrivals and completions; `progress` is told how many are done of the jobs up to the
    end of the window."""

    def __init__(
        self,
        setup: ClusterSetup,
        timeout_s: float | None = None,
        long: float = LONGEST_QUEUE,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._widths: Ints = np.array([width for _, width in setup.throughputs.kinds], dtype=np.int64)
        self._accelerators = int(setup.counts.sum())
        self._window = setup.window
        self._end = setup.window[1] if setup.window else inf  # later jobs come to keep it busy, and are not waited for
        self._endless = setup.window is not None and not isinstance(setup.jobs, list)
        self._longest = long * self._accelerators
        self._until = inf if timeout_s is None else monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._width: dict[int, int] = {}  # of active jobs
        self._wanted = 0
        self._arrived_width = 0
        self._queues: list[int] = []  # after each arrival
        self._before = (0, 0)  # the queue, and the width that had arrived, when the window began
        self._after: tuple[int, int] | None = None  # the same in the last quarter of it
        self._progress = progress
        self.completed = 0

    @property
    def queue(self) -> int:
        return max(self._wanted - self._accelerators, 0)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        if monotonic() > self._until:
            raise StoppedError("timeout", f"not done after {self._timeout_s:g} s")
        for event in events:
            if type(event) is not Rows:
                continue
            if event.of == "arrived":
                self._arrived(event.columns)
            elif event.of in ("completed", "rejected"):
                ids = np.asarray(event.columns["id"]).tolist()
                self._wanted -= sum(self._width.pop(job, 0) for job in ids)  # unknown: from before a checkpoint
                self.completed += sum(job < self._end for job in ids)
                self._progress(self.completed)

    def _arrived(self, columns: dict[str, Any]) -> None:
        first, end = self._window or (0, inf)
        for job, kind in zip(columns["id"], columns["kind"], strict=True):
            if job == first:
                self._before = (self.queue, self._arrived_width)
            width = int(self._widths[kind])
            self._width[job] = width
            self._wanted += width
            self._arrived_width += width
            self._queues.append(self.queue)
            if job == end - 1:
                # One wide job makes a queue for a moment; one that stays is there after each of the last arrivals.
                last = self._queues[-max(int(end - first) // 4, 1) :]
                self._after = (min(last), self._arrived_width)
        half = self._queues[len(self._queues) // 2]
        if self._endless and self.queue > self._longest and self.queue > _GROWS * half:
            raise StoppedError(
                "unstable",
                f"after {len(self._queues)} arrivals {self.queue} accelerators more are wanted than the "
                f"{self._accelerators} there are, and the queue grows: it was {half} at half of them",
            )

    def verdict(self) -> str:
        """Why a run that ended was unstable, or nothing: the queue grew by too much of what arrived in the window."""
        if not self._endless or self._after is None:
            return ""
        grown, arrived = (after - before for after, before in zip(self._after, self._before, strict=True))
        if grown <= max(_SHARE * arrived, _CLEAR * self._accelerators):
            return ""
        return f"the queue grew by {grown} accelerators while {arrived} were asked for"
