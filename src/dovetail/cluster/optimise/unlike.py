"""Shares of jobs that are too many and too unlike for one linear program over classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dovetail.cluster.optimise.classes import Classes
from dovetail.cluster.optimise.nash_prices import NashSearch
from dovetail.cluster.optimise.nash_without import WithoutOne
from dovetail.cluster.optimise.price_search import NoPricesError
from dovetail.cluster.optimise.prices import PricedShares
from dovetail.cluster.optimise.share_lp import STAY, TIE_BREAK
from dovetail.cluster.optimise.shares import proportional_rate, within_limits
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.solve import NoAnswerError

MANY = 120  # classes: with more, prices are faster than the program over all classes
SQUARE_FREE = 3  # 4 j + 3 is never a square, so its root is irrational


def too_many(classes: int, jobs: int | None = None, *, quick: bool = False, slow: bool = False) -> bool:
    """Whether shares of so many classes are found by prices: of more, if their program is `quick` when it is warm, of
    less, if it is `slow`.

    With `jobs`: where each job would be a class of its own, and there are not many more of them than classes.
    """
    return classes > MANY * (8 if quick else 0.1 if slow else 1) and (jobs is None or jobs <= 4 * classes)


def either(many: bool, by_prices: Callable[[], Allocation], by_program: Callable[[], Allocation]) -> Allocation:
    """By prices where there are many, else by the program over all classes; where that has no answer, the other way."""
    way, other = (by_prices, by_program) if many else (by_program, by_prices)
    try:
        return way()
    except (NoPricesError, NoAnswerError):
        return other()


class UnlikeShares:
    """The objectives of a policy, one after another, by prices; remembers prices and shares between calls."""

    program: PricedShares
    level: Floats  # by type and class, with a row for idling: of a job that is there all the time
    normal: Floats  # by class: the rate of a proportional share
    z = np.inf  # the last one

    def __init__(self) -> None:
        self._start: dict[str, Floats] = {}
        self._ids = np.zeros(0, dtype=np.int64)
        self._last = np.zeros((0, 0))

    def load(self, problem: Problem, classes: Classes) -> None:
        first, types = classes.first, len(problem.counts)
        rates = np.where(problem.width[first][:, None] > problem.counts, 0.0, problem.rates[problem.kind[first]])
        self.normal = proportional_rate(rates, problem.counts)
        level = rates / np.where(self.normal > 0, self.normal, 1.0)[:, None]
        self.level = np.vstack([np.zeros(len(first)), level.T])
        self.rates, self.classes = rates, classes
        if any(len(price) != types for price in self._start.values()):
            self._start = {}
        size = (problem.width[first] * classes.count).astype(np.float64)
        self.program = PricedShares(self.level, size, problem.counts.astype(np.float64), self._start)

    def anew(self, by_prices: Callable[[], Allocation]) -> Allocation:
        """By prices; where those of the last time lead to none, once more without them."""
        known = bool(self._start)
        try:
            return by_prices()
        except NoPricesError:
            if not known:
                raise
            self._start, self.z = {}, np.inf
            return by_prices()

    @property
    def runs(self) -> Floats:
        """By class: 1 if there is any type that it runs on, else 0."""
        return (self.normal > 0).astype(np.float64)

    def highest(self, step: Floats) -> float:
        """The largest z so that every job of a class can have the level `step * z`."""
        rises = step > 0
        cap = float((self.program.top[rises] / step[rises]).min())
        self.z = self.program.highest(lambda z: (step * z, step), cap, self.z)
        return self.z

    def fairest(self, weight: Floats) -> Floats:
        """By class: the level of every job where the product of levels, by weight, is largest."""
        runs, program = np.flatnonzero(self.normal > 0), self.program
        level = np.zeros(len(self.normal))
        if not len(runs):
            program.demand(level)
            self._worth = level
            return level
        share = (weight * self.classes.count)[runs]
        search = NashSearch(self.level[:, runs], program.size[runs], share, program.counts)
        level[runs], found = search.levels(self._start.get("nash"))
        self._start["nash"] = found.price
        self._fairest = found
        program.hold(level, replace(found, job=runs[found.job]))
        self._worth = np.zeros(len(level))
        self._worth[runs] = found.worth / self.classes.count[runs]
        return level

    def without_one(self, weight: Floats) -> Floats:
        """By class that has one job less, and class: the level of every job where the product is largest then."""
        runs, count = np.flatnonzero(self.normal > 0), self.classes.count
        level = np.zeros((len(count), len(count)))
        if not len(runs):
            return level
        width = (self.program.size / count)[runs]
        without = WithoutOne(self.level[:, runs], width, weight[runs], count[runs], self.program.counts, self._fairest)
        level[np.ix_(runs, runs)] = without.levels()
        return level

    def paid(self, weight: Floats, level: Floats) -> Floats:
        """By class: what a job pays for its time at the prices of the fairest shares, where accelerators are worth what
        they add to the sum of logarithms by weight."""
        runs = level > 0
        return np.where(runs, weight * np.log(np.where(runs, level, 1.0)) - self._worth, 0.0)

    def most(self, worth: Floats, want: Floats | None = None) -> float:
        """The largest total of steps per second, each times what it is worth on its type, with these levels."""
        self.program.demand(np.zeros(len(self.normal)) if want is None else want)
        gain = np.vstack([np.zeros(len(self.normal)), (self.rates * worth).T]) * self.classes.count
        scale = float(gain.max()) or 1.0  # so that numbers are about 1
        if "best" in self._start:
            self._start["best"] = self._start["best"] / scale
        try:
            return self.program.best(gain / scale) * scale
        finally:
            if "best" in self._start:  # as it was, even if there were no prices
                self._start["best"] = self._start["best"] * scale

    def settle(self, problem: Problem, *, value: float | None, why: str) -> Allocation:
        """Of the shares that are left: most normalised throughput, then least change, then a fixed preference."""
        ids, types = problem.ids[self.classes.first], len(problem.counts)
        gain = (
            self.level + TIE_BREAK * np.modf((ids + 1) * np.sqrt(4.0 * np.arange(types + 1) + SQUARE_FREE)[:, None])[0]
        )
        if self._last.shape[1] == types:
            _, old, new = np.intersect1d(self._ids, ids, return_indices=True)
            gain[1:, new] += STAY * self._last[old].T
        gain[0] = 0.0
        share = self.program.settle(gain * self.classes.count).T
        self._ids, self._last = ids, share
        share, _ = within_limits(problem, share[self.classes.of])
        return Allocation(share=share, value=value, why=why)
