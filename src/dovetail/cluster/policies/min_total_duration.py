"""Least makespan: all jobs that are here now are done as early as any shares allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.cluster.optimise.finish_time import FinishDemand, FinishProgram, as_one_type
from dovetail.cluster.optimise.shares import nothing, spread
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


def all_at_once(problem: Problem) -> FinishDemand:
    """Everybody counts from now."""
    return FinishDemand(problem.steps_left, np.zeros(problem.jobs), np.ones(problem.jobs))


@policy("min_total_duration", level="cluster")
class MinTotalDuration:
    """The last job finishes as early as possible, if every job ran on all types as it does on the first that fits; of
    all such shares, those with most throughput."""

    agnostic, packs, strict = True, False, False

    def __init__(self) -> None:
        self._program = FinishProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        one = as_one_type(problem)
        found = self._program.allocate(one, all_at_once(one), packs=False, what="all done after seconds:")
        return replace(found, share=spread(problem, found.share[:, 0]))


@policy("min_total_duration_perf", level="cluster")
class MinTotalDurationPerf:
    """The last job finishes as early as any shares allow; of all such shares, those with most throughput."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = FinishProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        finish = all_at_once(problem)
        return self._program.allocate(problem, finish, packs=self.packs, what="all done after seconds:")


@policy("min_total_duration_packed", level="cluster")
class MinTotalDurationPacked(MinTotalDurationPerf):
    """The last job finishes as early as any shares allow, where two jobs of one width may share accelerators."""

    packs = True
