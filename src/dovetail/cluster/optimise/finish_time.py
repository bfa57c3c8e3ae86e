"""Policies that promise when jobs finish: the least factor by which everybody's finish can be stretched at most.

With a factor f, a job must progress at R / (f D - t) steps per second, where R are its steps left, t its age and D what
f is measured against. For the makespan t = 0 and D = 1, so that f is the time until all are done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import apart, group
from dovetail.cluster.optimise.demands import DemandProgram
from dovetail.cluster.optimise.equal_shares import by_demand
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Problem


@dataclass(slots=True)
class FinishDemand:
    """R, t and D of every job."""

    left: Floats
    age: Floats
    against: Floats

    def wanted(self, z: float) -> tuple[Floats, Floats]:
        """The rate that everybody needs at factor 1/z, and how it grows with z."""
        rest = self.against - self.age * z
        return self.left * z / rest, self.left * self.against / rest**2

    def limit(self, fastest: Floats) -> float:
        """The largest z at which nobody needs more than its fastest rate."""
        runs = fastest > 0
        top = fastest[runs]
        return float((top * self.against[runs] / (self.left[runs] + top * self.age[runs])).min(initial=inf))

    def factor(self, rate: Floats, runs: NDArray[np.bool_]) -> float:
        """The largest factor at these rates, of those who can run at all."""
        with np.errstate(divide="ignore"):
            stretched = (self.age + self.left / rate) / self.against
        return float(stretched[runs].max())

    def times(self, rate: Floats) -> FinishDemand:
        """The same with steps counted in this many at a time; who runs nowhere wants nothing."""
        left = np.where(rate > 0, self.left / np.where(rate > 0, rate, 1.0), 0.0)
        return FinishDemand(left, self.age, np.where(rate > 0, self.against, 1.0))


def as_one_type(problem: Problem) -> Problem:
    """The same for those who do not tell types apart: every job runs on any as it does on the first that it fits."""
    first = (problem.rates > 0).argmax(axis=1)
    return replace(
        problem,
        types=("any",),
        counts=problem.counts.sum(keepdims=True),
        prices=np.zeros(1),
        rates=problem.rates[np.arange(len(first)), first, None],
        pair_rates=None,
    )


class FinishProgram:
    """The least factor, and of all shares that reach it those with most throughput in all (each job's over that of an
    equal part of the cluster), then those that change least."""

    def __init__(self) -> None:
        self._program = DemandProgram()
        self._unlike = UnlikeShares()
        self._z = np.inf

    def allocate(self, problem: Problem, finish: FinishDemand, *, packs: bool, what: str) -> Allocation:
        by_program = partial(self._by_program, problem, finish, packs, what)
        if packs:
            return by_program()
        many = too_many(len(np.unique(problem.kind)), problem.jobs)
        by_prices = partial(self._by_prices, problem, finish, what)
        return either(many, partial(self._unlike.anew, by_prices), by_program)

    def _by_program(self, problem: Problem, finish: FinishDemand, packs: bool, what: str) -> Allocation:
        alone: set[int] = set()  # jobs that must be a class of their own
        program = self._program
        while True:
            apart = np.where(np.isin(problem.ids, list(alone)), problem.ids, -1)
            classes = group(problem.kind, apart)
            program.load(problem, classes, problem.rates, problem.pair_rates if packs else None)
            if not program.fits().any():
                return nothing(problem, "no job runs on any type")
            normal = np.where(program.fits()[classes.of] > 0, program.normal_rate(), 0.0)
            steps = finish.times(normal)
            self._z = program.highest(steps.wanted, steps.limit(program.top_rate()), self._z)
            want, _ = steps.wanted(self._z)
            factor = 1.0 / self._z if self._z > 0 else np.inf
            supplies = program.settle_demands(want)
            why = f"{what} {factor:.6g}"
            found = by_demand(problem, program, supplies, want, value=factor, why=why)
            if isinstance(found, Allocation):
                found.value = finish.factor(found.throughput(problem), normal > 0)
                return found
            alone |= set(problem.ids[found].tolist())

    def _by_prices(self, problem: Problem, finish: FinishDemand, what: str) -> Allocation:
        unlike = self._unlike
        unlike.load(problem, apart(problem.jobs))
        if not unlike.runs.any():
            return nothing(problem, "no job runs on any type")
        steps = finish.times(unlike.normal)
        self._z = unlike.program.highest(steps.wanted, steps.limit(unlike.program.top), self._z)
        found = unlike.settle(problem, value=None, why=f"{what} {1.0 / self._z if self._z > 0 else inf:.6g}")
        found.value = finish.factor(found.throughput(problem), unlike.normal > 0)
        return found
