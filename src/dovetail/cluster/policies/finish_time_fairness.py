"""Finish-time fairness: nobody's time to finish is stretched more than necessary, against a cluster of its own.

A job's factor is (its age + the time it still needs) over the time that it would need alone with an equal part of the
cluster. The part of that time which lies behind is counted as the number of jobs changed. Weights play no part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.cluster.optimise.finish_time import FinishDemand, FinishProgram, as_one_type
from dovetail.cluster.optimise.shares import isolated_share, nothing, spread
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.registry import policy


class Isolation:
    """How long the steps done so far would have taken in isolation, by job, added up call by call."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, dtype=np.int64)
        self._done_s = self._left = self._rate = np.zeros(0)

    @property
    def left_s(self) -> Floats:
        """How long the steps that jobs had left when they were seen last would take in isolation."""
        return self._left / self._rate

    def finish(self, problem: Problem, part: Floats | None = None) -> FinishDemand:
        """What everybody's finish is measured against now; `part` is the isolated share, if it is there already."""
        rate = ((isolated_share(problem) if part is None else part) * problem.speed).sum(axis=1)
        rate = np.where(rate > 0, rate, 1.0)
        done_s = np.zeros(problem.jobs)
        _, old, new = np.intersect1d(self._ids, problem.ids, assume_unique=True, return_indices=True)
        done_s[new] = self._done_s[old] + (self._left[old] - problem.steps_left[new]) / self._rate[old]
        self._ids, self._done_s, self._left, self._rate = problem.ids.copy(), done_s, problem.steps_left.copy(), rate
        return FinishDemand(problem.steps_left, problem.age_s, done_s + problem.steps_left / rate)


@policy("finish_time_fairness", level="cluster")
class FinishTimeFairness:
    """The largest factor is as small as possible, if every job ran on all types as it does on the first that fits; of
    all such shares, those with most throughput."""

    agnostic, packs, strict = True, False, False

    def __init__(self) -> None:
        self._isolation = Isolation()
        self._program = FinishProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        one = as_one_type(problem)
        found = self._program.allocate(one, self._isolation.finish(one), packs=False, what="largest factor")
        return replace(found, share=spread(problem, found.share[:, 0]))


@policy("finish_time_fairness_perf", level="cluster")
class FinishTimeFairnessPerf:
    """The largest factor is as small as any shares allow; of all such shares, those with most throughput."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._isolation = Isolation()
        self._program = FinishProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        finish = self._isolation.finish(problem)
        return self._program.allocate(problem, finish, packs=self.packs, what="largest factor")


@policy("finish_time_fairness_packed", level="cluster")
class FinishTimeFairnessPacked(FinishTimeFairnessPerf):
    """The largest factor is as small as any shares allow, where two jobs of one width may share accelerators."""

    packs = True
