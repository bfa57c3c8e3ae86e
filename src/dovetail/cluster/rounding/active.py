"""The jobs that have arrived and are not done, as columns: appended at the end, compacted when some are done."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints

_GROWTH = 1.5
_ALL = slice(None)


class Active:
    """Columns over jobs in order of arrival. `len` counts them; every column is cut to that length.

    `owed` and `received` are seconds by type, `share` is what the policy allotted last (`allotted` tells to whom). `on`
    is the type that a job runs on now, or -1; then it was there `since_s`, works from `ready_s` at `rate`, beside the
    job with that id or alone (-1), and at this rate finishes at `finish_s`. `steps_left`, which is `steps` less `done`,
    is as of `since_s`; its time is in `received` up to `credited_s`.
    """

    id: Ints
    kind: Ints
    width: Ints
    entity: Ints
    on: Ints
    beside: Ints
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

    # Columns lie in few arrays, so that all of them are compacted at once.
    _INTS: ClassVar = tuple(name for name, kind in __annotations__.items() if kind == "Ints")
    _FLOATS: ClassVar = tuple(name for name, kind in __annotations__.items() if kind == "Floats")
    _BY_TYPE: ClassVar = ("share", "owed", "received")
    _NEW_INTS: ClassVar = np.array([[-1] if name in ("on", "beside") else [0] for name in _INTS])
    _NEW_FLOATS: ClassVar = np.array([[inf] if name == "finish_s" else [0.0] for name in _FLOATS])

    allotted: NDArray[np.bool_]
    share: Floats
    owed: Floats
    received: Floats

    def __init__(self, types: int) -> None:
        self._ints: Ints = np.zeros((len(self._INTS), 16), np.int64)
        self._floats: Floats = np.zeros((len(self._FLOATS), 16))
        self._by_type: Floats = np.zeros((len(self._BY_TYPE), 16, types))
        self._allotted: NDArray[np.bool_] = np.zeros(16, np.bool_)
        self._count = 0
        self._cut()

    def __len__(self) -> int:
        return self._count

    def __getstate__(self) -> dict[str, Any]:
        """Without the columns as they are cut: loaded as arrays of their own, they would not be those of the blocks."""
        return {name: getattr(self, name) for name in ("_ints", "_floats", "_by_type", "_allotted", "_count")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cut()

    def _cut(self) -> None:
        count, columns = self._count, self.__dict__
        for names, block in (
            (self._INTS, self._ints),
            (self._FLOATS, self._floats),
            (self._BY_TYPE, self._by_type),
        ):
            columns.update(zip(names, block[:, :count], strict=True))
        self.allotted = self._allotted[:count]

    def _grow(self, room: int) -> None:
        more = room - len(self._allotted)
        for name in ("_ints", "_floats", "_by_type"):
            block = getattr(self, name)
            empty = np.zeros((len(block), more, *block.shape[2:]), block.dtype)
            setattr(self, name, np.concatenate((block, empty), axis=1))
        self._allotted = np.concatenate((self._allotted, np.zeros(more, np.bool_)))

    def append(self, arrived: Mapping[str, Any], widths: Ints, received_s: float) -> None:
        """Add jobs, given as columns; `received_s` is what they count as having had on every type."""
        old, new = self._count, self._count + len(arrived["id"])
        if new > len(self._allotted):
            self._grow(int(new * _GROWTH))
        self._count = new
        self._cut()
        at = slice(old, new)
        self._ints[:, at] = self._NEW_INTS
        self._floats[:, at] = self._NEW_FLOATS
        self.allotted[at] = False
        self.share[at] = self.owed[at] = 0.0
        self.received[at] = received_s
        self.id[at] = arrived["id"]
        self.kind[at] = arrived["kind"]
        self.width[at] = widths[arrived["kind"]]
        self.entity[at] = arrived.get("entity", 0)
        self.weight[at] = arrived.get("weight", 1.0)
        self.steps[at] = self.steps_left[at] = arrived["steps"]
        self.arrival_s[at] = arrived["at_s"]
        due_s = np.array(arrived.get("due_s", inf), dtype=np.float64)  # None, as a journal has it for inf, is nan
        self.due_s[at] = self.arrival_s[at] + np.where(np.isnan(due_s), inf, due_s)

    def left(self, now: float, rows: Ints | slice = _ALL) -> Floats:
        """Steps that jobs still have to do."""
        worked_s = np.maximum(now - self.ready_s[rows], 0.0)  # at rate 0 where a job does not run
        return np.maximum(self.steps_left[rows] - worked_s * self.rate[rows], 0.0)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Forget the others."""
        old, kept = self._count, mask.nonzero()[0]
        self._count = count = len(kept)
        for block in (self._ints, self._floats, self._by_type):
            block[:, :count] = block[:, :old].take(kept, axis=1)
        self._allotted[:count] = self._allotted[kept]
        self._cut()
