"""Nash welfare: the product of everybody's progress, by weight, is as large as it can be (proportional fairness)."""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.nash import NashProgram
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, proportional_rate
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.registry import policy


def levels_alone(problem: Problem, classes: Classes) -> Floats:
    """By class and type: the level of a job that is there all the time."""
    kind, width = problem.kind[classes.first], problem.width[classes.first]
    rates = np.where(width[:, None] > problem.counts, 0.0, problem.rates[kind])
    normal = proportional_rate(rates, problem.counts)
    return rates / np.where(normal > 0, normal, 1.0)[:, None]


def welfare(classes: Classes, weight: Floats, level: Floats) -> float:
    runs = level > 0
    return float((classes.count * weight)[runs] @ np.log(level[runs]))


@policy("nash_welfare", level="cluster")
class NashWelfare:
    """No change of shares raises some rates by more percent, summed by weight, than it lowers others."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()
        self._unlike = UnlikeShares()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes = group(problem.kind, problem.weight)
        weight = problem.weight[classes.first]
        ways = partial(self._by_prices, problem, classes, weight), partial(self._by_program, problem, classes, weight)
        return either(too_many(len(classes.key), slow=True), *ways)

    def _by_prices(self, problem: Problem, classes: Classes, weight: Floats) -> Allocation:
        self._unlike.load(problem, classes)
        level = self._unlike.fairest(weight)
        total = welfare(classes, weight, level)
        return self._unlike.settle(problem, value=total, why=f"sum of weighted logarithms {total:.6g}")

    def _by_program(self, problem: Problem, classes: Classes, weight: Floats) -> Allocation:
        value = levels_alone(problem, classes)
        level = NashProgram(value, problem.width[classes.first], weight, problem.counts).levels(classes.count)
        self._program.load(problem, classes, problem.rates)
        self._program.settle(level)
        total = welfare(classes, weight, level)
        return equally(problem, classes, self._program, value=total, why=f"sum of weighted logarithms {total:.6g}")
