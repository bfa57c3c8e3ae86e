"""The count vectors of a pool (how many devices of each class are used), in the order of how many that is in all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


class CountVectors:
    """All vectors c with 0 <= c[k] <= counts[k], grouped by their sum; rows of a level are numbered from 0.

    >>> vectors = CountVectors([1, 2])
    >>> [level.tolist() for level in vectors.levels]
    [[[0, 0]], [[0, 1], [1, 0]], [[0, 2], [1, 1]], [[1, 2]]]
    >>> vectors.before(2, 1)  # rows of level 2 that hold a device of class 1, and the rows of level 1 without it
    (array([0, 1], dtype=int32), array([0, 1], dtype=int32))
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = list(counts)
        shape = [count + 1 for count in counts]
        self.size = prod(shape)
        self._strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        grid = np.indices(shape, dtype=np.int16).reshape(len(shape), -1) if shape else np.zeros((0, 1), dtype=np.int16)
        sums = grid.sum(axis=0, dtype=np.int32)
        order = np.argsort(sums, kind="stable").astype(np.int32)
        starts = np.searchsorted(sums[order], np.arange(int(sums.max(initial=0)) + 2))
        self._row = np.empty(self.size, dtype=np.int32)
        self._ids: list[Ints] = []
        self.levels: list[NDArray[np.int16]] = []
        for low, high in pairwise(starts):
            ids = order[low:high]
            self._row[ids] = np.arange(high - low, dtype=np.int32)
            self._ids.append(ids)
            self.levels.append(np.ascontiguousarray(grid[:, ids].T))

    def before(self, level: int, k: int, devices: int = 1) -> tuple[Ints, Ints]:
        """Rows of a level with so many devices of class k, and their rows without them, so many levels below."""
        rows = np.nonzero(self.levels[level][:, k] >= devices)[0].astype(np.int32)
        return rows, self._row[self._ids[level][rows] - devices * self._strides[k]]

    def row(self, vector: Sequence[int]) -> int:
        """The row of a vector within its level."""
        return int(self._row[sum(c * stride for c, stride in zip(vector, self._strides, strict=True))])
