"""Shockwave: a market over a horizon, for jobs whose speed will change, with promises about finish times."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.market import Market
from dovetail.cluster.optimise.market_prices import MarketPrices
from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.optimise.shares import isolated_share, nothing
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.cluster.policies.finish_time_fairness import Isolation
from dovetail.core.registry import policy

_MOMENTUM = 0.9  # of promises made before; the latest one has the rest
_ALL, _SOON, _NOTHING = 0.999, 0.02, 1e-6  # of a horizon


class _Promises:
    """By job: its size, and how long after its arrival it was promised to end, as an average over time."""

    def __init__(self) -> None:
        self._isolation = Isolation()
        self._ids = np.zeros(0, dtype=np.int64)
        self._known = np.zeros((4, 0))  # steps at its arrival; last promise; sum of promise x seconds; seconds
        self._now_s = 0.0

    def renew(self, problem: Problem, part: Floats, slower: Floats) -> tuple[Floats, Floats]:
        """The sizes of jobs and what they are promised, now that it is said anew; `part` is an equal part of every
        type, `slower` the forecast."""
        latest = self._isolation.finish(problem, part).against
        latest += (slower - 1) * self._isolation.left_s
        known = np.stack([problem.steps_left, latest, np.zeros(problem.jobs), np.zeros(problem.jobs)])
        _, old, new = np.intersect1d(self._ids, problem.ids, assume_unique=True, return_indices=True)
        held_s = problem.now_s - self._now_s
        known[0, new] = self._known[0, old]
        known[2, new] = self._known[2, old] + self._known[1, old] * held_s
        known[3, new] = self._known[3, old] + held_s
        self._ids, self._known, self._now_s = problem.ids.copy(), known, problem.now_s
        steps, _, total, seconds = known
        average = np.where(seconds > 0, total / np.where(seconds > 0, seconds, 1.0), latest)
        return steps, _MOMENTUM * average + (1 - _MOMENTUM) * latest


@policy("shockwave", level="cluster")
class Shockwave:
    """Over the next `horizon_s`, the sum of logarithms of progress is as large as possible, less `late_costs` for jobs
    that would end later than with an equal part of the cluster (in multiples of that time, averaged over jobs), less
    `longest_costs` for each second that the longest job has left.

    The end with an equal part is promised anew whenever jobs come or go, and averaged over time. Who is
    nearly done runs first, then who needs all of the horizon, then who has least time to spare; what is left goes to
    the longest jobs.
    """

    agnostic, packs, strict, every_round = False, False, False, True

    def __init__(self, horizon_s: float = 2400.0, late_costs: float = 10.0, longest_costs: float = 0.02) -> None:
        for name, value in (("horizon_s", horizon_s), ("late_costs", late_costs), ("longest_costs", longest_costs)):
            if not 0 < value <= 1e6:  # more is a slip, and no solver would cope with it
                raise ValueError(f"{name} is {value:g}, expected more than 0, at most 1e+06")
        self._horizon_s, self._late_costs, self._longest_costs = horizon_s, late_costs, longest_costs
        self._promises, self._prices = _Promises(), MarketPrices()

    def allocate(self, problem: Problem) -> Allocation:
        rates = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed)
        part = isolated_share(problem)
        alone = (part * rates).sum(axis=1)  # steps per second with an equal part of every type
        runs = alone > 0
        if not runs.any():
            return nothing(problem, "no job runs on any type")
        fair = part.sum(axis=1)  # of its time
        full = np.where(runs, alone, 1.0) / fair
        slower = _forecast(problem, part)
        left_s = np.where(runs, slower * problem.steps_left / full, 0.0)  # if it had all of its time
        steps, promised_s = self._promises.renew(problem, part, slower)
        to_promise_s = promised_s - problem.age_s
        market = Market(
            width=problem.width,
            counts=problem.counts,
            weight=problem.weight,
            progress=1 - problem.steps_left / steps,
            gain=rates * self._horizon_s / steps[:, None],
            left_s=left_s,
            saves_s=rates / full[:, None] * self._horizon_s,
            must_save_s=np.clip(left_s - fair * (to_promise_s - self._horizon_s), 0.0, left_s),
            late_costs=self._late_costs / (problem.jobs * fair * promised_s),
            longest_costs=self._longest_costs,
        )
        plan, value, missing_s = self._prices.solve(market)
        placed = self._run_first(problem, plan, to_promise_s - left_s, left_s)
        kept = int((missing_s <= 1e-6 * left_s).sum())
        why = f"{len(placed.type_of)} of {problem.jobs} jobs run, {kept} can end as early as with an equal part"
        return Allocation(share=placed.share(), value=value, why=why)

    def _run_first(self, problem: Problem, plan: Floats, spare_s: Floats, left_s: Floats) -> Placement:
        """Who of the plan has its turn now."""
        placed, share = Placement(problem), plan.sum(axis=1)
        soon = (left_s > 0) & (left_s < _SOON * self._horizon_s)
        placed.put_fastest(np.flatnonzero(soon).tolist())
        has = share > _NOTHING
        has[list(placed.type_of)] = False
        jobs = np.flatnonzero(has)
        jobs = jobs[np.lexsort((spare_s[jobs], share[jobs] < _ALL))]
        placed.put_in_turn(jobs, plan[jobs].argmax(axis=1))
        if any(placed.free):
            longest = np.argsort(-left_s, kind="stable").tolist()
            placed.put_fastest(job for job in longest if job not in placed.type_of)
        return placed


def _forecast(problem: Problem, part: Floats) -> Floats:
    """How much longer the steps that a job has left will take than at its present rate, by the batches that it may
    still have: as likely as each other before it began (a Dirichlet prior that counts as one whole job), then as it
    did. Batches that come before the present one do not come back."""
    phased = problem.phased
    if phased is None:
        return np.ones(problem.jobs)
    known = phased.modes >= 0
    open_ = np.arange(known.shape[1]) >= (phased.modes == problem.kind[:, None]).argmax(axis=1)[:, None]
    done = np.where(known, phased.done, 0.0)
    steps = problem.steps_left + done.sum(axis=1)
    had = done / np.where(steps > 0, steps, 1.0)[:, None]
    expected = (known / np.maximum(known.sum(axis=1), 1)[:, None] + had) / (1 + had.sum(axis=1))[:, None]
    coming = np.where(known, np.maximum(expected - had, 0.0), 0.0)
    rate = np.einsum("jt,jmt->jm", part, problem.rates[np.where(known, phased.modes, 0)])
    now = np.einsum("jt,jt->j", part, problem.speed)
    able = known & open_ & (rate > 0)
    slower = np.where(able, coming * now[:, None] / np.where(able, rate, 1.0), 0.0).sum(axis=1)
    total = np.where(able, coming, 0.0).sum(axis=1)
    return np.where((total > 0) & (now > 0), slower / np.where(total > 0, total, 1.0), 1.0)
