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


def _wanted(problem: Problem, normal: Floats, top: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """By job: the part of its normal rate that keeps its deadline, and whether that is more than the `top` one.

    In rounds, a share may be carried out a round late, and each of them may begin with a restart: the steps are asked
    for a round earlier, in what restarts leave of the time, or as fast as they can be done.
    """
    asked, round_s = needed_rate(problem) / normal, problem.round_s
    missed = asked > top
    if round_s:
        room_s = (problem.deadline_s - round_s) * (1 - problem.restart_s / round_s)
        sooner = np.divide(problem.steps_left, room_s, out=np.full(problem.jobs, np.inf), where=room_s > 0) / normal
        asked = np.where(asked > 0, np.minimum(sooner, top), 0.0)
    return np.where(missed, 0.0, asked), missed


def _reason(problem: Problem, total: float, missed: NDArray[np.bool_], later: NDArray[np.bool_]) -> str:
    why = f"{total:.6g} in total"
    for jobs, what in ((missed, "cannot be kept"), (later, "come after earlier ones")):
        if ids := problem.ids[jobs].tolist():
            why += f"; deadlines of jobs {ids} {what}"
    return why


def _earliest(problem: Problem, program: DemandProgram, want: Floats) -> NDArray[np.bool_]:
    """The demands of the earliest deadlines, as many as can be met together."""
    order = np.argsort(np.where(want > 0, problem.deadline_s, np.inf), kind="stable")
    met, broken = 0, int(np.count_nonzero(want))
    while broken - met > 1:
        half = (met + broken) // 2
        first = np.isin(np.arange(problem.jobs), order[:half])
        met, broken = (met, half) if program.best_with(np.where(first, want, 0.0)) is None else (half, broken)
    return np.isin(np.arange(problem.jobs), order[:met])


@policy("max_sum_throughput_normalized_by_cost_perf_SLOs", level="cluster")
class MaxSumThroughputSlos:
    """As max_sum_throughput_normalized_by_cost_perf among the shares that keep deadlines at steady rates.

    If not all can be kept, as many as possible are: those of older jobs among equally many. The reason names the rest.
    Where shares are carried out in rounds, a round and a restart in each are allowed for, and if not all can be kept at
    steady rates, the earliest go first: the others may be kept by more time later.
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
        normal = np.where(unlike.normal > 0, unlike.normal, 1.0)
        want, missed = _wanted(problem, normal, unlike.program.top)
        if unlike.program.need(want) > 1 - FIT:
            raise NoPricesError("not all deadlines can be kept")
        total = unlike.most(per_money(problem), want)
        return unlike.settle(problem, value=total, why=_reason(problem, total, missed, np.zeros_like(missed)))

    def _try(self, problem: Problem, apart: Ints) -> Allocation | Ints:
        program = self._program
        pair_rates = problem.pair_rates if self.packs else None
        given = problem, group(problem.kind, apart), problem.rates, pair_rates, per_money(problem)
        program.load(*given)
        want, missed = _wanted(problem, program.normal_rate(), program.top_rate())
        later = np.zeros_like(missed)
        total = program.best_with(want)
        if total is None and program.some_priced:
            program = self._every
            program.load(*given)
            total = program.best_with(want)
        if total is None:
            met = _earliest(problem, program, want) if problem.round_s else program.most_met(want)
            unmet, want = (want > 0) & ~met, np.where(met, want, 0.0)
            missed, later = (missed, unmet) if problem.round_s else (missed | unmet, later)
            total = program.best_with(want)
        assert total is not None
        why = _reason(problem, total, missed, later)
        return by_demand(problem, program, program.settle_demands(want, total), want, value=total, why=why)


@policy("max_sum_throughput_normalized_by_cost_packed_SLOs", level="cluster")
class MaxSumThroughputPackedSlos(MaxSumThroughputSlos):
    """As max_sum_throughput_normalized_by_cost_perf_SLOs, where two jobs of one width may share accelerators."""

    packs = True
