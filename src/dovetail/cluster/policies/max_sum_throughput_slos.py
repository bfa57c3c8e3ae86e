"""Most throughput for the money among the shares that keep deadlines."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import apart, group
from dovetail.cluster.optimise.demands import DemandProgram
from dovetail.cluster.optimise.equal_shares import by_demand
from dovetail.cluster.optimise.price_search import FIT, NoPricesError
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.max_sum_throughput import per_money
from dovetail.core.registry import policy


def needed_rate(problem: Problem) -> Floats:
    """By job: the steps per second that keep its deadline; 0 if it has none or it has passed."""
    open_deadline = np.isfinite(problem.deadline_s) & (problem.deadline_s > 0)
    return np.where(open_deadline, problem.steps_left / np.where(open_deadline, problem.deadline_s, 1.0), 0.0)


def _reason(problem: Problem, total: float, missed: NDArray[np.bool_]) -> str:
    ids = problem.ids[missed].tolist()
    return f"{total:.6g} in total" + (f"; deadlines of jobs {ids} cannot be kept" if ids else "")


@policy("max_sum_throughput_normalized_by_cost_perf_SLOs", level="cluster")
class MaxSumThroughputSlos:
    """As max_sum_throughput_normalized_by_cost_perf among the shares that keep every deadline that can be kept.

    If not all can be kept, as many as possible are: those of older jobs among equally many. The reason names the rest.
    """

    agnostic, packs, strict = False, False, False

    def __init__(self) -> None:
        self._program = DemandProgram()
        self._every = DemandProgram(every_pair=True)  # where not all deadlines can be kept: to choose takes all pairs
        self._unlike = UnlikeShares()

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        if self.packs:
            return self._by_program(problem)
        many = too_many(len(np.unique(problem.kind)), problem.jobs)
        return either(many, partial(self._by_prices, problem), partial(self._by_program, problem))

    def _by_program(self, problem: Problem) -> Allocation:
        alone: set[int] = set()  # jobs that must be a class of their own
        while True:
            found = self._try(problem, np.where(np.isin(problem.ids, list(alone)), problem.ids, -1))
            if isinstance(found, Allocation):
                return found
            alone |= set(problem.ids[found].tolist())

    def _by_prices(self, problem: Problem) -> Allocation:
        """If all deadlines can be kept that can be kept alone. To choose among them takes whole numbers."""
        unlike = self._unlike
        unlike.load(problem, apart(problem.jobs))
        asked = needed_rate(problem) / np.where(unlike.normal > 0, unlike.normal, 1.0)
        want = np.where(asked > unlike.program.top, 0.0, asked)
        if unlike.program.need(want) > 1 - FIT:
            raise NoPricesError("not all deadlines can be kept")
        total = unlike.most(per_money(problem), want)
        return unlike.settle(problem, value=total, why=_reason(problem, total, (asked > 0) & (want == 0)))

    def _try(self, problem: Problem, apart: Ints) -> Allocation | Ints:
        program = self._program
        pair_rates = problem.pair_rates if self.packs else None
        given = problem, group(problem.kind, apart), problem.rates, pair_rates, per_money(problem)
        program.load(*given)
        asked = needed_rate(problem) / program.normal_rate()
        want = np.where(asked > program.top_rate(), 0.0, asked)
        total = program.best_with(want)
        if total is None and program.some_priced:
            program = self._every
            program.load(*given)
            total = program.best_with(want)
        if total is None:
            want = np.where(program.most_met(want), want, 0.0)
            total = program.best_with(want)
        assert total is not None
        why = _reason(problem, total, (asked > 0) & (want == 0))
        return by_demand(problem, program, program.settle_demands(want, total), want, value=total, why=why)


@policy("max_sum_throughput_normalized_by_cost_packed_SLOs", level="cluster")
class MaxSumThroughputPackedSlos(MaxSumThroughputSlos):
    """As max_sum_throughput_normalized_by_cost_perf_SLOs, where two jobs of one width may share accelerators."""

    packs = True
