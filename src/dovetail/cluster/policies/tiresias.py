"""Tiresias: least attained service in two dimensions (accelerators x time), in a few queues."""

from __future__ import annotations

from math import inf

import numpy as np

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.registry import policy


@policy("tiresias", level="cluster")
class Tiresias:
    """Who has had less service comes first, in queues, so that nobody needs to know how long a job takes.

    A job's service is its width times the seconds it has run, told by its steps on the type it was given. At each of
    `thresholds_s` it falls into a lower queue; within a queue the oldest goes first, on the fastest type with room. A
    job that has waited `promote` times as long as it has run returns to the first queue (0: never).
    """

    agnostic, packs, strict = False, False, False

    def __init__(self, thresholds_s: tuple[float, ...] = (3600.0, 18000.0), promote: float = 0.0) -> None:
        if list(thresholds_s) != sorted(thresholds_s) or not all(0 <= each < inf for each in thresholds_s):
            raise ValueError(f"thresholds_s is {thresholds_s}, expected rising numbers")
        self.thresholds_s = thresholds_s
        self._thresholds_s = np.array(thresholds_s)
        self._promote = promote
        self._ran_s: dict[int, float] = {}  # by id
        self._before: dict[int, tuple[float, float]] = {}  # by id: steps left, and the rate where it was to run

    def allocate(self, problem: Problem) -> Allocation:
        ran_s = self._attained(problem)
        queue = np.searchsorted(self._thresholds_s, ran_s * problem.width, side="right")
        if self._promote > 0:
            waited_s = problem.age_s - ran_s
            queue = np.where((ran_s > 0) & (waited_s >= self._promote * ran_s), 0, queue)
        placed = Placement(problem)
        placed.put_fastest(np.argsort(queue, kind="stable").tolist())
        self._remember(problem, placed, ran_s)
        return Allocation(share=placed.share(), why=f"{len(placed.type_of)} of least service run of {problem.jobs}")

    def _attained(self, problem: Problem) -> Floats:
        ran_s = np.zeros(problem.jobs)
        for job, (one, left) in enumerate(zip(problem.ids.tolist(), problem.steps_left.tolist(), strict=True)):
            if one in self._before:
                before, rate = self._before[one]
                ran_s[job] = self._ran_s[one] + max(before - left, 0.0) / rate
        return ran_s

    def _remember(self, problem: Problem, placed: Placement, ran_s: Floats) -> None:
        ids, fastest = problem.ids.tolist(), problem.speed.max(axis=1, initial=0.0)
        rate = np.where(fastest > 0, fastest, 1.0)
        for job, on in placed.type_of.items():
            rate[job] = problem.rates[problem.kind[job], on]
        self._ran_s = dict(zip(ids, ran_s.tolist(), strict=True))
        self._before = dict(zip(ids, zip(problem.steps_left.tolist(), rate.tolist(), strict=True), strict=True))
