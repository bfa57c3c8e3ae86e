"""Strategy-proof fairness: shares of largest Nash welfare, each cut by what its job costs the others.

The partial allocation mechanism: a job keeps the part of its share by which the others' welfare with it is as large as
without it. Who lies about its rates only loses; in return some time is left to the mechanism that fills idle rounds.
"""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.nash import NashProgram
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, spread
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.nash_welfare import levels_alone
from dovetail.core.registry import policy


def kept_part(program: NashProgram, count: Ints, weight: Floats) -> tuple[Floats, Floats]:
    """By class: the level before the cut, and the part that remains of it."""
    level = program.levels(count)
    kept = np.zeros(len(count))
    for one in np.flatnonzero(level > 0).tolist():
        others = count.copy()
        others[one] -= 1
        without = program.levels(others)
        there = (others > 0) & (level > 0)
        loss = (others * weight)[there] @ np.log(level[there] / without[there])
        kept[one] = min(float(np.exp(loss / weight[one])), 1.0)
    return level, kept


@policy("max_min_fairness_strategy_proof", level="cluster")
class StrategyProof:
    """As max_min_fairness_strategy_proof_perf where every job runs alike on all types."""

    agnostic, packs, strict = True, False, False

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes = group(problem.width, problem.weight)
        width, weight = problem.width[classes.first], problem.weight[classes.first]
        everything = problem.counts.sum(keepdims=True)
        level, kept = kept_part(NashProgram(np.ones((len(width), 1)), width, weight, everything), classes.count, weight)
        time, least = level * kept, float(kept.min())
        return Allocation(
            share=spread(problem, time[classes.of]), value=least, why=f"nobody keeps less than {least:.3g}"
        )


@policy("max_min_fairness_strategy_proof_perf", level="cluster")
class StrategyProofPerf:
    """No job gains by lying about its rates; in return each gives up a part of its share, at most 1 - 1/e of it."""

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes: Classes = group(problem.kind, problem.weight)
        width, weight = problem.width[classes.first], problem.weight[classes.first]
        nash = NashProgram(levels_alone(problem, classes), width, weight, problem.counts)
        level, kept = kept_part(nash, classes.count, weight)
        self._program.load(problem, classes, problem.rates)
        self._program.settle(level)
        least = float(kept.min())
        found = equally(problem, classes, self._program, value=least, why=f"nobody keeps less than {least:.3g}")
        found.share *= kept[classes.of][:, None]
        return found
