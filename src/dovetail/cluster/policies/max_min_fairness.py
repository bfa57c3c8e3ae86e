"""Max-min fairness: the poorest job is as well off as any shares of the cluster can make it.

A job's level is its rate over the rate of a proportional share of the cluster, times its width, over its weight: a job
on k accelerators gets 1/k of the time.
"""

from __future__ import annotations

from functools import partial

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, spread, water_level
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.registry import policy


@policy("max_min_fairness", level="cluster")
class MaxMinFairness:
    """The least time, by width and weight, is as large as possible; types are not told apart (least attained service).

    What is left when the poorest is served goes to the next poorest. A job's time is spread over all types.
    """

    agnostic, packs, strict = True, False, False

    def allocate(self, problem: Problem) -> Allocation:
        time, level = water_level(problem.width, problem.weight, float(problem.counts.sum()))
        return Allocation(share=spread(problem, time), value=level, why=f"nobody has less than {level:.3g}")


@policy("max_min_fairness_perf", level="cluster")
class MaxMinFairnessPerf:
    """The least level is as large as possible, and never below that of an equal part of the cluster."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()
        self._unlike = UnlikeShares()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes = group(problem.kind, problem.weight)
        speed = problem.weight[classes.first] / problem.width[classes.first]
        if self.packs:
            return self._by_program(problem, classes, speed)
        many = too_many(len(classes.key), quick=True)
        ways = partial(self._by_prices, problem, classes, speed), partial(self._by_program, problem, classes, speed)
        return either(many, *ways)

    def _by_program(self, problem: Problem, classes: Classes, speed: Floats) -> Allocation:
        program = self._program
        program.load(problem, classes, problem.rates, problem.pair_rates if self.packs else None)
        if not (step := program.fits() * speed).any():
            return nothing(problem, "no job runs on any type")
        level = program.settle_highest(step)
        return equally(problem, classes, program, value=level, why=f"nobody has less than {level:.3g}")

    def _by_prices(self, problem: Problem, classes: Classes, speed: Floats) -> Allocation:
        unlike = self._unlike
        unlike.load(problem, classes)
        if not unlike.runs.any():
            return nothing(problem, "no job runs on any type")
        level = unlike.highest(speed * unlike.runs)
        return unlike.settle(problem, value=level, why=f"nobody has less than {level:.3g}")


@policy("max_min_fairness_packed", level="cluster")
class MaxMinFairnessPacked(MaxMinFairnessPerf):
    """The least level is as large as possible, where two jobs of one width may share accelerators."""

    packs = True
