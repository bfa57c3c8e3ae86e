"""Many jobs in the queues of accelerators, so that the sum of their completion times is close to the least.

A job k-th from the end of a queue delays k jobs, itself included: of the jobs of one type the longest come last, and
what it costs to put one more among them, or saves to take one away, follows from their times. Jobs move to where they
cost less, many at once as long as that helps, one by one at the end, until none gains by moving alone. What a place
costs the others is a price of it: prices prove how far the sum is from the least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    time = np.where(queues > 0, time, np.inf)
    on, part, every = _longest_first(time, queues.tolist()), _PART, np.arange(len(time))
    order = _ordered(time, on)
    total = _total(time, order, queues)
    while True:
        saved, costs = _marginal(time, order, queues)
        costs[every, on] = np.inf
        to = costs.argmin(axis=1)
        gain = saved - costs[every, to]
        movers = np.flatnonzero(gain > _GAIN * saved)
        movers = movers[np.argsort(-gain[movers], kind="stable")]
        while len(movers):
            many = max(int(len(movers) * part), 1)
            moved = on.copy()
            moved[movers[:many]] = to[movers[:many]]
            order_moved = _ordered(time, moved)
            total_moved = _total(time, order_moved, queues)
            if total_moved < total:
                on, order, total, part = moved, order_moved, total_moved, min(_MORE * part, _PART)
                break
            if many == 1:  # what it gains is rounding
                movers = movers[:0]
            part /= 2
        if not len(movers):
            return Queued(order, max(total / _bound(time, order, queues) - 1, 0.0) if len(time) else 0.0)


def _longest_first(time: Floats, queues: list[int]) -> Ints:
    """Each to the type where it costs least behind those that were there before it, the longest first."""
    on, many, rows = np.zeros(len(time), dtype=np.int64), [0] * len(queues), time.tolist()
    types = [each for each, count in enumerate(queues) if count]
    for job in np.argsort(-time.min(axis=1), kind="stable").tolist():
        row = rows[job]
        best = min(types, key=lambda each: (many[each] // queues[each] + 1) * row[each])
        on[job], many[best] = best, many[best] + 1
    return on


def _ordered(time: Floats, on: Ints) -> list[Ints]:
    """By type: its jobs, the longest first, of equals the last one first."""
    found = []
    for each in range(time.shape[1]):
        jobs = np.flatnonzero(on == each)[::-1]
        found.append(jobs[np.argsort(-time[jobs, each], kind="stable")])
    return found


def _place(many: int, queues: int) -> Ints:
    """How many jobs each of so many delays, itself included: the longest of every queue only itself."""
    place: Ints = np.arange(many) // queues + 1
    return place


def _total(time: Floats, order: list[Ints], queues: Ints) -> float:
    return sum(float(time[jobs, on] @ _place(len(jobs), queues[on])) for on, jobs in enumerate(order) if len(jobs))


def _marginal(time: Floats, order: list[Ints], queues: Ints) -> tuple[Floats, Floats]:
    """What each job would save where it is, and cost on each type, others' places included."""
    saved, costs = np.zeros(len(time)), np.full(time.shape, np.inf)
    for on, jobs in enumerate(order):
        if not queues[on]:
            continue
        own, at = time[jobs, on], np.arange(len(jobs))
        # Who comes after one that goes is one place nearer to the end, if it is first in its place; and so on.
        nearer = _sum_from(np.where(at % queues[on] == 0, own, 0.0))
        farther = _sum_from(np.where(at % queues[on] == queues[on] - 1, own, 0.0))
        saved[jobs] = own * _place(len(jobs), queues[on]) + nearer[1:]
        among = np.searchsorted(-own, -time[:, on])
        costs[:, on] = time[:, on] * (among // queues[on] + 1) + farther[among]
    return saved, costs


def _sum_from(values: Floats) -> Floats:
    """The sums from each on, and nothing at the end."""
    total: Floats = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    return total


def _bound(time: Floats, order: list[Ints], queues: Ints) -> float:
    """What no matching is below: each job in the place that is cheapest for it, places priced, less what these bring.

    From one place to the next the price falls by a time between those of the jobs at both, so that everybody likes its
    own place best of its type's."""
    least, paid = np.full(len(time), np.inf), 0.0
    for on, jobs in enumerate(order):
        if not queues[on]:
            continue
        own = np.append(time[jobs, on], 0.0)
        ends = np.arange(1, -(-len(jobs) // queues[on]) + 1) * queues[on]
        fall = (own[np.minimum(ends - 1, len(jobs))] + own[np.minimum(ends, len(jobs))]) / 2
        if len(jobs) % queues[on]:
            fall[-1] = 0.0  # there is room in the last place
        price, at = _sum_from(fall), np.searchsorted(-fall, -time[:, on])
        least = np.minimum(least, (at + 1) * time[:, on] + price[at])
        paid += float(queues[on] * price.sum())
    return float(least.sum() - paid)
