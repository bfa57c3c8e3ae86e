"""Strategy-proof fairness: shares of largest Nash welfare, each cut by what its job costs the others.

The partial allocation mechanism: a job keeps the part of its share by which the others' welfare with it is as large as
without it. Who lies about its rates only loses; in return some time is left to the mechanism that fills idle rounds.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.nash import NashProgram
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, spread
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.nash_welfare import levels_alone
from dovetail.core.registry import policy


def kept_part(level: Floats, without: Floats, count: Ints, weight: Floats) -> Floats:
    """By class: the part of its level that a job keeps; `without` are levels by class that has one job less."""
    others = count - np.eye(len(count))
    there = (others > 0) & (level > 0) & (level > 0)[:, None]
    change = np.log(np.where(there, level, 1.0) / np.where(there, without, 1.0))
    kept: Floats = np.minimum(np.exp((others * weight * change).sum(axis=1) / weight), 1.0)
    return np.where(level > 0, kept, 0.0)


def one_by_one(program: NashProgram, count: Ints) -> tuple[Floats, Floats]:
    """Levels of all jobs, and by class that has one job less."""
    level, less = program.levels(count), np.eye(len(count), dtype=np.int64)
    return level, np.array(
        [program.levels(count - one) if runs else level for one, runs in zip(less, level > 0, strict=True)]
    )


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
        program = NashProgram(np.ones((len(width), 1)), width, weight, everything)
        level, without = one_by_one(program, classes.count)
        kept = kept_part(level, without, classes.count, weight)
        time, least = level * kept, float(kept.min())
        return Allocation(
            share=spread(problem, time[classes.of]), value=least, why=f"nobody keeps less than {least:.3g}"
        )


@policy("max_min_fairness_strategy_proof_perf", level="cluster")
class StrategyProofPerf:
    """No job gains by lying about its rates; in return each gives up a part of its share, at most 1 - 1/e of it.

    Of many unlike jobs, one is taken to have no say in the prices of accelerators: what it costs the others is what its
    time costs at these prices, and never less than that.
    """

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = ShareProgram()
        self._unlike = UnlikeShares()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        classes: Classes = group(problem.kind, problem.weight)
        weight = problem.weight[classes.first]
        return either(
            True,
            partial(self._by_prices, problem, classes, weight),
            partial(self._by_program, problem, classes, weight),
        )

    def _by_prices(self, problem: Problem, classes: Classes, weight: Floats) -> Allocation:
        self._unlike.load(problem, classes)
        level = self._unlike.fairest(weight)
        if too_many(len(classes.key), problem.jobs):
            kept = np.where(level > 0, np.exp(-np.maximum(self._unlike.paid(weight, level), 0.0) / weight), 0.0)
        else:
            kept = kept_part(level, self._unlike.without_one(weight), classes.count, weight)
        least = float(kept.min())
        found = self._unlike.settle(problem, value=least, why=f"nobody keeps less than {least:.3g}")
        found.share *= kept[classes.of][:, None]
        return found

    def _by_program(self, problem: Problem, classes: Classes, weight: Floats) -> Allocation:
        nash = NashProgram(levels_alone(problem, classes), problem.width[classes.first], weight, problem.counts)
        level, without = one_by_one(nash, classes.count)
        kept = kept_part(level, without, classes.count, weight)
        self._program.load(problem, classes, problem.rates)
        self._program.settle(level)
        least = float(kept.min())
        found = equally(problem, classes, self._program, value=least, why=f"nobody keeps less than {least:.3g}")
        found.share *= kept[classes.of][:, None]
        return found
