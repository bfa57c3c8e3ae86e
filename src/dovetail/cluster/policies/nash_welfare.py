"""Nash welfare: the product of everybody's progress, by weight, is as large as it can be (proportional fairness)."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.nash import NashProgram
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, proportional_rate
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.registry import policy


def levels_alone(problem: Problem, classes: Classes) -> Floats:
    """By class and type: the level of a job that is there all the time."""
    kind, width = problem.kind[classes.first], problem.width[classes.first]
    rates = np.where(width[:, None] > problem.counts, 0.0, problem.rates[kind])
    normal = proportional_rate(rates, problem.counts)
    return rates / np.where(normal > 0, normal, 1.0)[:, None]


@policy("nash_welfare", level="cluster")
class NashWelfare:
    """No change of shares raises some rates by more percent, summed by weight, than it lowers others."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes = group(problem.kind, problem.weight)
        value, weight = levels_alone(problem, classes), problem.weight[classes.first]
        level = NashProgram(value, problem.width[classes.first], weight, problem.counts).levels(classes.count)
        self._program.load(problem, classes, problem.rates)
        self._program.settle(level)
        runs = level > 0
        welfare = float((classes.count * weight)[runs] @ np.log(level[runs]))
        return equally(problem, classes, self._program, value=welfare, why=f"sum of weighted logarithms {welfare:.6g}")
