"""Least makespan: all jobs that are here now are done as early as any shares allow."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.finish_time import FinishDemand, FinishProgram, evenly, first_rates
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


def all_at_once(problem: Problem) -> FinishDemand:
    """Everybody counts from now."""
    return FinishDemand(problem.steps_left, np.zeros(problem.jobs), np.ones(problem.jobs))


@policy("min_total_duration", level="cluster")
class MinTotalDuration:
    """The last job finishes as early as possible, if every job ran on all types as it does on the first that fits."""

    agnostic, packs, strict = True, False, False

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        return evenly(problem, all_at_once(problem), first_rates(problem), what="all done after seconds:")


@policy("min_total_duration_perf", level="cluster")
class MinTotalDurationPerf:
    """The last job finishes as early as any shares allow."""

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
