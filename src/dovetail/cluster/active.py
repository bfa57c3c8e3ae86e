"""The jobs that have arrived and are not done, as columns: appended at the end, compacted when some are done."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.problem import Floats, Ints
from dovetail.cluster.workload import Job

_GROWTH = 1.5
_ALL = slice(None)


class Active:
    """Columns over jobs in order of arrival. `len` counts them; every column is cut to that length.

    `owed` and `received` are seconds by type, `share` is what the policy allotted last (`allotted` tells to whom). `on`
    is the type that a job runs on now, or -1; then it was there `since_s`, works from `ready_s` at `rate`, beside the
    job with that id or alone (-1), and at this rate finishes at `finish_s`. `steps_left`, which is `steps` less `done`,
    is as of `since_s`; its time is in `received` up to `credited_s`.
    """

    _PLAIN: ClassVar = {
        "id": np.int64,
        "kind": np.int64,
        "width": np.int64,
        "entity": np.int64,
        "on": np.int64,
        "weight": np.float64,
        "steps": np.float64,
        "done": np.float64,
        "steps_left": np.float64,
        "arrival_s": np.float64,
        "due_s": np.float64,
        "since_s": np.float64,
        "ready_s": np.float64,
        "rate": np.float64,
        "finish_s": np.float64,
        "credited_s": np.float64,
        "beside": np.int64,
        "allotted": np.bool_,
    }
    _BY_TYPE = ("share", "owed", "received")

    id: Ints
    kind: Ints
    width: Ints
    entity: Ints
    on: Ints
    weight: Floats
    steps: Floats
    done: Floats
    steps_left: Floats
    arrival_s: Floats
    due_s: Floats
    since_s: Floats
    ready_s: Floats
    rate: Floats
    finish_s: Floats
    credited_s: Floats
    beside: Ints
    allotted: NDArray[np.bool_]
    share: Floats
    owed: Floats
    received: Floats

    def __init__(self, types: int) -> None:
        self._room: dict[str, NDArray[np.generic]] = {name: np.zeros(16, kind) for name, kind in self._PLAIN.items()}
        self._room |= {name: np.zeros((16, types)) for name in self._BY_TYPE}
        self._count = 0
        self._cut()

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        """Without the columns as they are cut: loaded as arrays of their own, they would not be those in `_room`."""
        return {"_room": self._room, "_count": self._count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._room, self._count = state["_room"], state["_count"]
        self._cut()

    def _cut(self) -> None:
        for name, column in self._room.items():
            setattr(self, name, column[: self._count])

    def append(self, jobs: Sequence[Job], kinds: Sequence[int], entities: Sequence[int], received_s: float) -> None:
        """Add jobs; `received_s` is what they count as having had on every type."""
        old, new = self._count, self._count + len(jobs)
        if new > len(self._room["id"]):
            for name, column in self._room.items():
                grown = np.zeros((int(new * _GROWTH), *column.shape[1:]), column.dtype)
                grown[:old] = column[:old]
                self._room[name] = grown
        self._count = new
        self._cut()
        at = slice(old, new)
        self.id[at] = [job.id for job in jobs]
        self.kind[at] = kinds
        self.width[at] = [job.width for job in jobs]
        self.entity[at] = entities
        self.on[at] = -1
        self.weight[at] = [job.weight for job in jobs]
        self.steps[at] = self.steps_left[at] = [job.steps for job in jobs]
        self.done[at] = 0.0
        self.arrival_s[at] = [job.arrival_s for job in jobs]
        self.due_s[at] = [inf if job.due_s is None else job.arrival_s + job.due_s for job in jobs]
        self.since_s[at] = 0.0
        self.ready_s[at] = 0.0
        self.rate[at] = 0.0
        self.finish_s[at] = inf
        self.credited_s[at] = 0.0
        self.beside[at] = -1
        self.allotted[at] = False
        self.share[at] = 0.0
        self.owed[at] = 0.0
        self.received[at] = received_s

    def left(self, now: float, rows: Ints | slice = _ALL) -> Floats:
        """Steps that jobs still have to do."""
        ready_s = self.ready_s[rows]
        done_s = np.where((self.on[rows] >= 0) & (now > ready_s), now - ready_s, 0.0)
        return np.maximum(self.steps_left[rows] - done_s * self.rate[rows], 0.0)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Forget the others."""
        count = int(mask.sum())
        for name, column in self._room.items():
            column[:count] = getattr(self, name)[mask]
        self._count = count
        self._cut()
