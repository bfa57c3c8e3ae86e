"""What no schedule on some accelerators can beat: which plans need no simulation, and what each costs at least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf

import numpy as np

from dovetail.cluster.bounds import best_rates, parts_of
from dovetail.cluster.inputs.prices import Prices
from dovetail.cluster.inputs.setup import AdaptiveKinds, ClusterSetup, begins_s
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies.base import Floats, Ints, Policy

_ENDS = 40  # points in time between which work is counted
ALMOST = 1 + 1e-9


def figure(target: str, jct_s: Floats, arrival_s: Floats, due_s: Floats) -> float:
    """The figure of a target from completion times: `mean`, `makespan`, `deadlines` (the share missed), or `p95`.

    >>> figure("p50", np.array([1.0, 3.0, 9.0]), np.zeros(3), np.full(3, inf))
    3.0
    """
    if target == "mean":
        return float(jct_s.mean())
    if target == "makespan":
        return float((arrival_s + jct_s).max())
    if target == "deadlines":
        due = np.isfinite(due_s)
        return float((jct_s[due] > due_s[due] * ALMOST).mean()) if due.any() else 0.0
    finite = np.where(np.isfinite(jct_s), jct_s, 1e300)  # between two that are infinite nothing can be told
    found = float(np.quantile(finite, float(target[1:]) / 100))
    return inf if found > 1e299 else found


class MeasuredJobs:
    """The jobs of one seed that count: what they need of every type, and what they may take.

    Arrivals are counted from the first of all jobs. With `anywhere` it does not matter in which servers accelerators
    are, as by the older rules.
    """

    def __init__(self, setup: ClusterSetup, policy: Policy, *, anywhere: bool = False) -> None:
        index, first_last = setup.throughputs.index(), setup.window
        jobs = setup.jobs if isinstance(setup.jobs, list) else []
        jobs = jobs if first_last is None else jobs[first_last[0] : first_last[1]]
        self.known = bool(jobs)
        self.ids: Ints = np.array([job.id for job in jobs], dtype=np.int64)
        self.names = [job.name for job in jobs]
        self.begins_s = begins_s(setup.jobs)
        self.arrival_s: Floats = np.array([job.arrival_s for job in jobs]) - self.begins_s
        self.due_s: Floats = np.array([inf if job.due_s is None else job.due_s for job in jobs])
        self.width: Ints = np.array([job.width for job in jobs], dtype=np.int64)
        self.elastic: bool = getattr(policy, "elastic", False)
        self.shares: bool = policy.packs
        self.job: Ints
        self.alone_s: Floats  # of parts of jobs, on every type
        if setup.adaptive is not None:
            self.job, self.alone_s = self._epochs(setup, setup.adaptive, jobs)
            return
        alone = setup.throughputs.alone if anywhere else setup.rates()
        rates = np.maximum(alone, setup.throughputs.spread) * (alone > 0)
        if policy.packs and setup.throughputs.pairs is not None:
            rates = np.maximum(rates, setup.throughputs.pairs.max(axis=1))
        if self.elastic:
            models = [model for model, _ in setup.throughputs.kinds]
            rates = np.stack([rates[[other == model for other in models]].max(axis=0) for model in models])
        parts = [  # a job in phases may be elsewhere in each
            (i, part, kind)
            for i, job in enumerate(jobs)
            for part, kind in parts_of(
                job.steps, index[job.model, job.width], [(end, index[of, job.width]) for end, of in job.phases]
            )
            if part > 0
        ]
        self.job = np.array([job for job, _, _ in parts], dtype=np.int64)
        steps, kinds = np.array([part for _, part, _ in parts]), [kind for _, _, kind in parts]
        with np.errstate(divide="ignore"):
            self.alone_s = steps[:, None] / rates[kinds]

    def _epochs(self, setup: ClusterSetup, adaptive: AdaptiveKinds, jobs: Sequence[Job]) -> tuple[Ints, Floats]:
        """The same of jobs with profiles, whose parts are epochs: each at its best batch, and placed at its best."""
        index, most = setup.throughputs.index(), max(width for _, width in setup.throughputs.kinds)
        rates = [best_rates(setup, of, most) for of in adaptive.applications]
        which, alone_s = [np.zeros(0, dtype=np.int64)], [np.zeros((0, len(setup.types)))]
        for i, job in enumerate(jobs):
            at = int(adaptive.application[index[job.model, job.width]])
            work = np.diff(np.minimum(adaptive.applications[at].progress, job.steps), prepend=0.0)
            speeds = rates[at].max(axis=1) if self.elastic else rates[at][:, job.width - 1]
            with np.errstate(divide="ignore"):
                alone_s.append((work[work > 0] / speeds[:, work > 0]).T)
            which.append(np.full(len(alone_s[-1]), i))
        return np.concatenate(which), np.concatenate(alone_s)

    def least(self, counts: Ints, weight: Floats) -> Floats:
        """Of every job, the least sum over its parts of time by the `weight` of a type; infinite if it cannot run."""
        able = counts[None, :] >= (1 if self.elastic else self.width[self.job][:, None])
        with np.errstate(invalid="ignore"):
            each = np.where(able & np.isfinite(self.alone_s), self.alone_s * weight, inf).min(axis=1, initial=inf)
        return np.bincount(self.job, each, len(self.width)).astype(np.float64)

    def best_s(self, counts: Ints) -> Floats:
        """The least time of every job on these accelerators, if it never waited."""
        return self.least(counts, np.ones(len(counts)))

    def limits(self, target: str, limit: float) -> tuple[Floats, int] | None:
        """How long every job may take, and how many may take longer; None if that is not told by the target."""
        count = len(self.arrival_s)
        if target == "mean":
            return None
        if target == "makespan":
            return limit - self.arrival_s, 0
        if target == "deadlines":
            due = np.isfinite(self.due_s)
            return self.due_s, floor(limit * int(due.sum()) + 1e-9)
        return np.full(count, limit), count - 1 - floor((count - 1) * float(target[1:]) / 100)

    def needed(self, counts: Ints, target: str, limit: float, weight: Floats) -> float:
        """The least capacity, in accelerators by `weight`, that the work between any two points in time needs."""
        given = self.limits(target, limit)
        if given is None or self.shares or self.elastic:
            return 0.0
        within_s, late = given
        demand = self.width * self.least(counts, weight)
        end_s = self.arrival_s + within_s
        counted = np.isfinite(end_s) & np.isfinite(demand)
        arrival_s, end_s, demand = self.arrival_s[counted], end_s[counted], demand[counted]
        if not len(demand):
            return 0.0
        order = np.argsort(-demand)
        arrival_s, end_s, demand = arrival_s[order], end_s[order], demand[order]
        most = 0.0
        for begin in np.unique(np.quantile(arrival_s, np.linspace(0, 1, _ENDS), method="lower")):
            since = arrival_s >= begin
            for end in np.unique(np.quantile(end_s[since], np.linspace(0, 1, _ENDS), method="higher")):
                if end > begin:
                    inside = demand[since & (end_s <= end)]
                    most = max(most, float(inside[late:].sum()) / (end - begin))  # the largest may be late
        return most


class PlanBounds:
    """Bounds for many plans at once: rows of counts over the types of the setups, which have all there may be."""

    def __init__(
        self,
        plans: Ints,
        setups: Sequence[ClusterSetup],
        policy: Policy,
        targets: Mapping[str, float],
        held: Sequence[bool],
        *,
        anywhere: bool = False,
    ) -> None:
        self.jobs = [MeasuredJobs(setup, policy, anywhere=anywhere) for setup in setups]
        self._targets = targets
        known = all(jobs.known for jobs in self.jobs)
        widths = np.unique(np.concatenate([[1], *(jobs.width for jobs in self.jobs)]))  # an elastic job may have one
        shapes = (plans[:, :, None] >= widths).sum(axis=2)  # what a plan can run depends on these alone
        same, which = np.unique(shapes, axis=0, return_inverse=True)
        which = which.reshape(-1)
        self.figures = np.zeros((len(plans), len(targets)))
        self.cost = np.zeros(len(plans))
        self.ruled_out = plans.sum(axis=1) == 0
        if not known:
            return
        weights = [np.ones(plans.shape[1]), self._speeds()]
        for shape in range(len(same)):
            at = np.flatnonzero(which == shape)
            best_s = [jobs.best_s(plans[at[0]]) for jobs in self.jobs]
            if not all(np.isfinite(each).all() for each in best_s):  # some jobs can never run
                self.figures[at], self.cost[at], self.ruled_out[at] = inf, inf, True
                continue
            self._judge(plans, at, best_s, weights)
            self.cost[at] = self._least_cost(plans, at, best_s, setups, held)

    def _speeds(self) -> Floats:
        """How fast types are beside each other, for the work at hand."""
        times = np.concatenate([jobs.alone_s for jobs in self.jobs])
        able = np.isfinite(times).all(axis=1) & (times > 0).all(axis=1)
        if not able.any():
            return np.ones(times.shape[1])
        total = times[able].sum(axis=0)
        speeds: Floats = total.min() / total
        return speeds

    def _judge(self, plans: Ints, at: Ints, best_s: Sequence[Floats], weights: Sequence[Floats]) -> None:
        counts = plans[at[0]]
        for k, (target, limit) in enumerate(self._targets.items()):
            alone = [
                figure(target, each, jobs.arrival_s, jobs.due_s) for each, jobs in zip(best_s, self.jobs, strict=True)
            ]
            self.figures[at, k] = sum(alone) / len(alone)
            if self.figures[at[0], k] > limit * ALMOST:
                self.ruled_out[at] = True
                continue
            for weight in weights:
                needed = min(jobs.needed(counts, target, limit, weight) for jobs in self.jobs)
                short = plans[at] @ weight < needed * (1 - 1e-9)
                self.ruled_out[at[short]] = True

    def _least_cost(
        self,
        plans: Ints,
        at: Ints,
        best_s: Sequence[Floats],
        setups: Sequence[ClusterSetup],
        held: Sequence[bool],
    ) -> Floats:
        """What is paid at least: all the time for some, for others as long as the cheapest way takes."""
        counts, on_demand = plans[at[0]], np.array(held)
        found = np.zeros(len(at))
        for jobs, each, setup in zip(self.jobs, best_s, setups, strict=True):
            prices = setup.prices
            assert isinstance(prices, Prices)
            last_s = figure("makespan", each, jobs.arrival_s, jobs.due_s)
            before, until = (prices.paid_until(jobs.begins_s + of_s) for of_s in (0.0, last_s))
            always = (until - before) * ~on_demand
            lowest = prices.values.min(axis=0)
            beside = self._spent(jobs, counts, np.where(on_demand, lowest, 0.0))
            # What is paid all the time is paid while it is held, too.
            found += np.maximum(plans[at] @ always + beside, self._spent(jobs, counts, lowest))
        least_found: Floats = found / len(self.jobs)
        return least_found

    @staticmethod
    def _spent(jobs: MeasuredJobs, counts: Ints, prices: Floats) -> float:
        """What the jobs cost at least at these prices, each where it is cheapest."""
        total = float((jobs.least(counts, prices) * (1 if jobs.elastic else jobs.width)).sum())
        return total / 3600 * (0.5 if jobs.shares else 1.0)
