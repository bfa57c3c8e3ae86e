"""Sums over time in a bounded number of bins, for a run whose length is not known beforehand."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

BINS = 200
_FIRST_WIDTH_S = 1e-6
_TOGETHER = 16_384


class Strip(Struct, frozen=True):
    """Means per bin; bin `i` covers `from_s + i * bin_s` and the next `bin_s` seconds."""

    from_s: float
    bin_s: float
    means: list[list[float]]


class Timeline:
    """Rows of sums over equal bins. The bins double in width whenever time outgrows them: 200 to 400 are in use.

    >>> line = Timeline(rows=1, from_s=0.0, to_s=4.0, bins=4)
    >>> line.add(0, 0.5, 2.0)
    >>> line.strip(4.0).means
    [[0.5, 1.0, 0.0, 0.0]]
    """

    def __init__(self, rows: int, from_s: float = 0.0, to_s: float | None = None, bins: int = BINS) -> None:
        self._from = from_s
        self._to = to_s
        self._width = (to_s - from_s) / bins if to_s is not None else _FIRST_WIDTH_S
        self._sums = np.zeros((rows, 2 * bins))
        self._new: list[tuple[int, float, float, float]] = []

    def add(self, row: int, start_s: float, end_s: float, amount: float = 1.0) -> None:
        """Add `amount` per second between two instants, as far as they lie in the window."""
        self._new.append((row, start_s, end_s, amount))
        if len(self._new) == _TOGETHER:
            self._sum_up()

    def _sum_up(self) -> None:
        """Add all that is new at once, which for many is several times faster than one by one."""
        if not self._new:
            return
        given = np.array(self._new)
        self._new.clear()
        rows, amounts = given[:, 0].astype(int), given[:, 3]
        starts, ends = (
            given[:, 1].clip(self._from) - self._from,
            np.minimum(given[:, 2], np.inf if self._to is None else self._to) - self._from,
        )
        some = ends > starts
        rows, amounts, starts, ends = rows[some], amounts[some], starts[some], ends[some]
        while len(ends) and ends.max() > self._width * self._sums.shape[1]:
            self._widen()
        width, size = self._width, self._sums.shape[1]
        first, last = ((times / width).astype(int).clip(None, size - 1) for times in (starts, ends))
        in_first, in_last = np.minimum(ends, (first + 1) * width) - starts, ends - last * width
        one = first == last
        in_first[one], in_last[one] = (ends - starts)[one], 0.0
        places, seconds = np.concatenate([first, last]), np.concatenate([in_first, in_last])
        both, twice = np.concatenate([rows, rows]), np.concatenate([amounts, amounts])
        self._sums += np.bincount(both * size + places, twice * seconds, self._sums.size).reshape(self._sums.shape)
        for i in np.flatnonzero(last > first + 1):
            self._sums[rows[i], first[i] + 1 : last[i]] += amounts[i] * width

    def grow(self) -> int:
        """One more row; gives its number."""
        self._sum_up()
        self._sums = np.concatenate([self._sums, np.zeros_like(self._sums[:1])])
        return len(self._sums) - 1

    def _widen(self) -> None:
        rows, size = self._sums.shape
        folded = self._sums.reshape(rows, size // 2, 2).sum(axis=2)
        self._sums = np.concatenate([folded, np.zeros_like(folded)], axis=1)
        self._width *= 2

    def strip(self, end_s: float) -> Strip:
        """The means up to an instant; the last bin counts only as far as it is covered."""
        self._sum_up()
        length = (min(end_s, self._to) if self._to is not None else end_s) - self._from
        if length <= 0:
            return Strip(self._from, self._width, [[] for _ in self._sums])
        used = int(min(np.ceil(length / self._width - 1e-9), self._sums.shape[1])) or 1
        covered = np.full(used, self._width)
        covered[-1] = max(length - (used - 1) * self._width, 1e-12)
        return Strip(self._from, self._width, (self._sums[:, :used] / covered).tolist())
