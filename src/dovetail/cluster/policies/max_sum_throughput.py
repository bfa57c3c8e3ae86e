"""Most throughput in total, or most for the money; jobs may go without."""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.errors import InputError
from dovetail.core.registry import policy


def per_money(problem: Problem) -> Floats:
    """What a step per second is worth on every type if money counts: one over the price of an hour.

    Without any price all types cost the same.
    """
    if not problem.prices.any():
        return np.ones(len(problem.types))
    if (problem.prices <= 0).any():
        free = problem.types[int((problem.prices <= 0).argmax())]
        raise InputError(
            f"the price of {free} is {problem.prices.min():g}, expected more than 0 as others have a price"
        )
    worth: Floats = 1.0 / problem.prices
    return worth


@policy("max_sum_throughput_perf", level="cluster")
class MaxSumThroughput:
    """No shares give more steps per second in total, all models' steps counted alike."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()
        self._unlike = UnlikeShares()

    def worth(self, problem: Problem) -> Floats:
        return np.ones(len(problem.types))

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes = group(problem.kind)
        ways = partial(self._by_prices, problem, classes), partial(self._by_program, problem, classes)
        return either(too_many(len(classes.key), quick=True), *ways)

    def _by_prices(self, problem: Problem, classes: Classes) -> Allocation:
        self._unlike.load(problem, classes)
        total = self._unlike.most(self.worth(problem))
        return self._unlike.settle(problem, value=total, why=f"{total:.6g} in total")

    def _by_program(self, problem: Problem, classes: Classes) -> Allocation:
        program = self._program
        program.load(problem, classes, problem.rates, worth=self.worth(problem))
        best = program.best_worth()
        assert best is not None  # no share at all is always possible
        program.settle(worth=(total := best))
        return equally(problem, classes, program, value=total, why=f"{total:.6g} in total")


@policy("max_sum_throughput_normalized_by_cost_perf", level="cluster")
class MaxSumThroughputByCost(MaxSumThroughput):
    """No shares give more steps per second in total, each divided by the price of its accelerator."""

    def worth(self, problem: Problem) -> Floats:
        return per_money(problem)
