"""Many jobs in the queues of accelerators, so that the sum of their completion times is close to the least.

A job k-th from the end of a queue delays k jobs, itself included: of the jobs of one type the longest come last, and
what it costs to put one more among them, or saves to take one away, follows from their times. Jobs move to where they
cost less, many at once as long as that helps, one by one at the end, until none gains by moving alone. What a place
costs the others is a price of it: prices prove how far the sum is from the least.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints

_PART, _MORE = 0.5, 1.5  # of those who gain, how many move at once; how much more after it helped
_GAIN = 1e-9  # of what a job costs: less is rounding


@dataclass(slots=True)
class Queued:
    """By type: its jobs, the longest first; and by how much the sum of completion times may be above the least."""

    order: list[Ints]
    above: float


def queue(time: Floats, queues: Ints) -> Queued:
    """Jobs (rows) to types, of which there are so many queues; `time` is infinite where a job does not run.

    Every job must run on a type that has a queue.

    >>> found = queue(np.array([[1.0, 9.0], [2.0, 9.0], [9.0, 4.0]]), np.array([1, 1]))
    >>> [each.tolist() for each in found.order], found.above
    ([[1, 0], [2]], 0.0)
    """
    used = np.flatnonzero(queues > 0)
    order: list[Ints] = [np.zeros(0, dtype=np.int64) for _ in queues]
    if not len(time):
        return Queued(order, 0.0)
    found, above = _search(time[:, used], queues[used].tolist())
    for on, jobs in zip(used.tolist(), found, strict=True):
        order[on] = jobs
    return Queued(order, above)


def _search(time: Floats, queues: list[int]) -> tuple[list[Ints], float]:
    """The jobs of every type, the longest first, and by how much their sum may be above the least."""
    types = [_Type(of, count) for of, count in zip(time.T.copy(), queues, strict=True)]
    on, part = _longest_first(time, queues), _PART
    total, costs, saved = _put(types, on), np.empty((len(types), len(on))), np.empty(len(on))
    while True:
        for each, cost in zip(types, costs, strict=True):
            each.marginal(cost, saved)
        gain = saved - costs.min(axis=0)
        movers = np.flatnonzero(gain > _GAIN * saved)
        movers = movers[np.argsort(-gain[movers], kind="stable")]
        to = costs[:, movers].argmin(axis=0)
        while len(movers):
            many = max(int(len(movers) * part), 1)
            moved = on.copy()
            moved[movers[:many]] = to[:many]
            total_moved = _put(types, moved)
            if total_moved < total:
                on, total, part = moved, total_moved, min(_MORE * part, _PART)
                break
            if many == 1:  # what it gains is rounding
                movers = movers[:0]
            part /= 2
        if not len(movers):
            total = _put(types, on)
            return [each.jobs for each in types], max(total / _bound(types) - 1, 0.0)


class _Type:
    """The queues of one type: all jobs by their time on it, and who is there."""

    def __init__(self, time: Floats, queues: int) -> None:
        self.queues, self._time, every = queues, time, np.arange(len(time) + 1)
        order = np.flatnonzero(np.isfinite(time))[::-1]  # the longest first, of equals the last one first
        self._order = order = order[np.argsort(-time[order], kind="stable")]
        self._sorted = own = time[order]
        new = np.diff(own, prepend=np.inf) != 0
        self._longer = np.zeros(len(time), dtype=np.int64)  # jobs, by job
        self._longer[order] = np.maximum.accumulate(np.where(new, every[: len(own)], 0))
        # How many jobs the k-th longest delays, itself included: the longest of every queue only itself.
        self._place = (every // queues + 1).astype(np.float64)
        # 1 for who is the first, or the last, in its place, else 0.
        self._first, self._last = ((every % queues == at).astype(np.float64) for at in (0, queues - 1))
        self._ahead = np.zeros(len(own) + 1, dtype=np.int64)
        self._here, self._at, self._takes = np.zeros(len(own), dtype=np.bool_), np.zeros(0, dtype=np.int64), 0.0
        self._changed = True

    @property
    def jobs(self) -> Ints:
        """Who is there."""
        jobs: Ints = self._order[self._at]
        return jobs

    def put(self, here: NDArray[np.bool_]) -> float:
        """These jobs are there; gives what they take with all whom they delay."""
        here = here[self._order]
        if (here != self._here).any():
            self._here, self._at, self._changed = here, np.flatnonzero(here), True
            self._takes = float(self._sorted[self._at] @ self._place[: len(self._at)])
        return self._takes

    def marginal(self, costs: Floats, saved: Floats) -> None:
        """What each job would cost if it came, and who is there would save if it went, others' places included; these
        are as they were where nobody came or went."""
        if not self._changed:
            return
        self._changed = False
        own, jobs, many = self._sorted[self._at], self.jobs, len(self._at)
        # Who comes after one that goes is one place nearer to the end, if it is first in its place; and so on.
        nearer, farther = _sum_from(own * self._first[:many]), _sum_from(own * self._last[:many])
        saved[jobs] = own * self._place[:many] + nearer[1:]
        np.cumsum(self._here, out=self._ahead[1:])
        among = self._ahead[self._longer]
        np.multiply(self._time, self._place[among], out=costs)
        costs += farther[among]
        costs[jobs] = np.inf

    def priced(self) -> tuple[Floats, float]:
        """What each job pays at least in a place, at prices of the places, and what all places bring.

        From one place to the next the price falls by a time between those of the jobs at both, so that everybody likes
        its own place best of its type's."""
        many, own = len(self._at), np.append(self._sorted[self._at], 0.0)
        ends = np.arange(1, -(-many // self.queues) + 1) * self.queues
        fall = (own[np.minimum(ends - 1, many)] + own[np.minimum(ends, many)]) / 2
        if many % self.queues:
            fall[-1] = 0.0  # there is room in the last place
        price, at = _sum_from(fall), np.searchsorted(-fall, -self._time)
        return (at + 1) * self._time + price[at], float(self.queues * price.sum())


def _put(types: list[_Type], on: Ints) -> float:
    """Jobs on these types; gives the sum of completion times."""
    return sum(each.put(on == number) for number, each in enumerate(types))


def _longest_first(time: Floats, queues: list[int]) -> Ints:
    """Each to the type where it costs least behind those that were there before it, the longest first."""
    order, many, place, best = np.argsort(-time.min(axis=1), kind="stable"), queues.copy(), [1] * len(queues), []
    for row in time[order].tolist():
        costs = list(map(mul, place, row))
        at = costs.index(min(costs))
        best.append(at)
        many[at] -= 1
        if not many[at]:
            many[at] = queues[at]
            place[at] += 1
    on = np.empty_like(order)
    on[order] = best
    return on


def _sum_from(values: Floats) -> Floats:
    """The sums from each on, and nothing at the end."""
    total = np.zeros(len(values) + 1)
    np.cumsum(values[::-1], out=total[-2::-1])
    return total


def _bound(types: list[_Type]) -> float:
    """What no matching is below: each job in its cheapest place, places priced, less what these bring."""
    least, brings = zip(*(each.priced() for each in types), strict=True)
    return float(np.minimum.reduce(least).sum() - sum(brings))
