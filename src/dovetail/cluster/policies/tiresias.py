"""Tiresias: who has had least service (accelerators x time) first, in queues; there, who is likeliest to end soon."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.core.registry import policy

_SIZES = 500  # of more sizes, as many quantiles are enough


@policy("tiresias", level="cluster")
class Tiresias:
    """Who has had less service comes first, in queues, so that nobody needs to know how long a job takes.

    A job's service is its width times the seconds it has run, told by its steps on the type it was given. At each of
    `thresholds_s` it falls into a lower queue; within a queue the oldest goes first, on the fastest type with room. A
    job that has waited `promote` times as long as it has run returns to the first queue (0: never).
    """

    agnostic, packs, strict, every_round = False, False, False, True

    def __init__(self, thresholds_s: tuple[float, ...] = (3600.0, 18000.0), promote: float = 0.0) -> None:
        if list(thresholds_s) != sorted(thresholds_s) or not all(0 <= each < inf for each in thresholds_s):
            raise ValueError(f"thresholds_s is {thresholds_s}, expected rising numbers")
        self.thresholds_s = thresholds_s
        self._thresholds_s = np.array(thresholds_s)
        self._promote = promote
        self._ids = np.zeros(0, dtype=np.int64)  # of the last time; how long they had run, the steps that they had
        self._ran_s = self._left = self._rate = np.zeros(0)  # left, and the rate where each was to run

    def allocate(self, problem: Problem) -> Allocation:
        ran_s = self._attained(problem)
        service_s = ran_s * problem.width
        queue = np.searchsorted(self._thresholds_s, service_s, side="right")
        if self._promote > 0:
            waited_s = problem.age_s - ran_s
            queue = np.where((ran_s > 0) & (waited_s >= self._promote * ran_s), 0, queue)
        placed = Placement(problem)
        placed.put_fastest(np.lexsort((-self._urgency(service_s), queue)).tolist())
        self._remember(problem, placed, ran_s)
        return Allocation(share=placed.share(), why=f"{len(placed.type_of)} of least service run of {problem.jobs}")

    def _urgency(self, service_s: Floats) -> Floats:
        """Who goes first of a queue; equals go in order of arrival."""
        return np.zeros(len(service_s))

    def _attained(self, problem: Problem) -> Floats:
        ran_s = np.zeros(problem.jobs)
        _, old, new = np.intersect1d(self._ids, problem.ids, assume_unique=True, return_indices=True)
        ran_s[new] = self._ran_s[old] + np.maximum(self._left[old] - problem.steps_left[new], 0.0) / self._rate[old]
        return ran_s

    def _remember(self, problem: Problem, placed: Placement, ran_s: Floats) -> None:
        fastest = problem.speed.max(axis=1, initial=0.0)
        rate, runs = np.where(fastest > 0, fastest, 1.0), list(placed.type_of)
        rate[runs] = problem.rates[problem.kind[runs], list(placed.type_of.values())]
        self._ids, self._ran_s, self._left, self._rate = problem.ids.copy(), ran_s, problem.steps_left.copy(), rate


@policy("tiresias_gittins", level="cluster")
class TiresiasGittins(Tiresias):
    """Queues of least service; within a queue, who is most likely to end soon for the service that it takes.

    A job's Gittins index is the largest ratio, over all further service, of the probability to end within it to the
    service expected of it. The sizes of jobs (accelerators x seconds) are `sizes_s`, or learned from jobs that ended;
    as long as fewer than `least` are known, the oldest goes first.
    """

    def __init__(
        self,
        thresholds_s: tuple[float, ...] = (3600.0, 18000.0),
        promote: float = 0.0,
        sizes_s: tuple[float, ...] = (),
        least: int = 10,
    ) -> None:
        super().__init__(thresholds_s, promote)
        if not all(0 < each < inf for each in sizes_s):
            raise ValueError(f"sizes_s is {sizes_s}, expected numbers above 0")
        if least < 1:
            raise ValueError(f"least is {least}, expected at least 1")
        self._given, self._least = len(sizes_s) > 0, least
        self._sizes_s = sorted(sizes_s)
        self._width = np.zeros(0, dtype=np.int64)  # of the last time

    def allocate(self, problem: Problem) -> Allocation:
        if not self._given:
            self._learn(problem)
        return super().allocate(problem)

    def _learn(self, problem: Problem) -> None:
        """Jobs that are no longer here have ended, where they were to run."""
        gone = ~np.isin(self._ids, problem.ids, assume_unique=True)
        ended_s = self._width[gone] * (self._ran_s[gone] + self._left[gone] / self._rate[gone])
        self._sizes_s = sorted(self._sizes_s + ended_s.tolist())
        self._width = problem.width.copy()

    def _urgency(self, service_s: Floats) -> Floats:
        if len(self._sizes_s) < (1 if self._given else self._least):
            return super()._urgency(service_s)
        return gittins(np.array(self._sizes_s), service_s)


def gittins(sizes: Floats, service: Floats) -> Floats:
    """The index of jobs that have had so much service, if their sizes are drawn from these, which rise; 0 for those
    that are larger than all of them.

    >>> gittins(np.array([1.0, 10.0]), np.array([0.0, 0.5, 2.0, 10.0])).tolist()
    [0.5, 1.0, 0.125, 0.0]
    """
    if len(sizes) > _SIZES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, _SIZES).round().astype(np.int64)]
    many = len(sizes)
    upto = np.concatenate(([0.0], np.cumsum(sizes)))
    first = sizes.searchsorted(service, side="right")
    # Service that is expected until each size, of all that reach the first one, as heights over the sizes' numbers: an
    # index is one over the least slope from a job's point to those ahead of it, which touches their hull from below.
    height = upto[1:] + np.arange(many - 1, -1, -1) * sizes
    below = upto[first] + (many - first) * service
    after = _next_of_hull(height)

    def falls(at: Ints) -> NDArray[np.bool_]:
        """Whether the hull goes on from here at less than the slope that leads here."""
        to = after[at]
        less: NDArray[np.bool_] = (height[to] - height[at]) * (at + 1 - first) < (height[at] - below) * (to - at)
        return less

    strides = [after]
    while (strides[-1] < many - 1).any():
        strides.append(strides[-1][strides[-1]])
    end = np.minimum(first, many - 1)
    onward = falls(end)
    for stride in reversed(strides):
        end = np.where(onward & falls(stride[end]), stride[end], end)
    end = np.where(onward, after[end], end)
    ended = end + 1 - first
    expected = upto[end + 1] - upto[first] - ended * service + (many - first - ended) * (sizes[end] - service)
    index: Floats = np.where(ended > 0, ended / np.where(ended > 0, expected, 1.0), 0.0)
    return index


def _next_of_hull(height: Floats) -> Ints:
    """By point: the next one on the lower hull of it and all behind it; the last one's is itself.

    >>> _next_of_hull(np.array([0.0, 3.0, 1.0, 5.0])).tolist()
    [2, 2, 3, 3]
    """
    hull: list[int] = []
    after, y = [0] * len(height), height.tolist()
    for at in range(len(y) - 1, -1, -1):
        while len(hull) > 1 and (y[hull[-1]] - y[at]) * (hull[-2] - at) >= (y[hull[-2]] - y[at]) * (hull[-1] - at):
            hull.pop()
        after[at] = hull[-1] if hull else at
        hull.append(at)
    return np.array(after, dtype=np.int64)
