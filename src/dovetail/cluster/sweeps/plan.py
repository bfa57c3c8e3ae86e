"""The cheapest or fewest accelerators that keep a target, found with few simulations, and why not fewer.

Plans are counts of every type, from none to as many as the cluster has, in steps of whole servers. Bounds that hold for
every schedule rule many out. If those that are left and could be better are few, all are simulated. Otherwise each type
is bisected in turn, and then whichever plan rules most others out is tried, on the assumption that a plan fails if one
with at least as many of every type does. Policies break it now and then; where that is seen, it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from math import inf
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from dovetail.cluster.inputs.choices import Minimise
from dovetail.cluster.inputs.cluster_spec import ClusterSpec
from dovetail.cluster.inputs.failures import RandomFailures
from dovetail.cluster.inputs.prices import Prices
from dovetail.cluster.inputs.scenario import LoadedScenario
from dovetail.cluster.inputs.setup import ClusterSetup, begins_s
from dovetail.cluster.policies.base import Ints
from dovetail.cluster.rounding.stimuli import NeverDoneError
from dovetail.cluster.rules import ClusterOptions
from dovetail.cluster.simulate import run
from dovetail.cluster.sweeps.late_jobs import LateJob, late_jobs, late_sentences
from dovetail.cluster.sweeps.plan_bounds import ALMOST, PlanBounds, figure
from dovetail.cluster.sweeps.stability import QueueWatch, StoppedError
from dovetail.core.errors import InputError
from dovetail.core.files.reading import yaml_text
from dovetail.core.results.confidence import mean

MOST_PLANS = 2_000_000
_LOOKED_AT = 64  # plans among which the one is chosen that rules most others out


class TriedPlan(Struct, kw_only=True):
    """A plan and how it did: counts by type, what it costs, its figures by target. By a `bound`, nothing was simulated:
    figures and cost are what no schedule can be below."""

    counts: dict[str, int]
    accelerators: int
    cost: float
    figures: dict[str, float]
    plus_minus: dict[str, float] = field(default_factory=dict)  # half of 95 % confidence intervals, of several seeds
    by: Literal["simulation", "bound"] = "simulation"
    keeps: bool
    why: str = ""


class ClusterPlan(Struct, kw_only=True):
    """The answer: the best plan, or none; what it is compared with; and how sure it is.

    `least` is what no plan can be below, whatever the policy. `exact`: all plans that could be better were simulated or
    ruled out. `smaller` are plans with one server less of a type, as far as there were runs for them. `alone` are
    figures if no job ever waited. `late` are, where deadlines were asked for, the jobs that miss theirs with the plan,
    or if there is none with all there may be.
    """

    targets: dict[str, float]
    minimise: Minimise
    plan: TriedPlan | None
    least: float
    exact: bool
    monotone: bool
    reason: str
    smaller: list[TriedPlan]
    alone: dict[str, float]
    runs: int
    seeds: list[int]
    tried: list[TriedPlan]
    late: list[LateJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    types: dict[str, Any] = field(default_factory=dict)  # the plan as a cluster's file holds it

    def cluster_file(self) -> bytes:
        """The plan as a cluster's file, which `simulate` takes."""
        return yaml_text({"types": self.types}).encode()

    def late_in_words(self) -> list[str]:
        """Which deadlines no schedule keeps, and which others are missed."""
        return late_sentences(self.late)

    @property
    def gap(self) -> float | None:
        """How far the plan is above what no plan can be below, as a share of that."""
        return None if self.plan is None or not self.least else self.value(self.plan) / self.least - 1

    def value(self, plan: TriedPlan) -> float:
        """What is made small."""
        return plan.cost if self.minimise == "cost" else float(plan.accelerators)


class PlanSearch:
    """Looks for the best plan on one set of jobs for every seed."""

    def __init__(
        self,
        spec: ClusterSpec,
        loaded: Sequence[LoadedScenario],
        policy: Any,
        options: Mapping[str, Any] | None,
        how: ClusterOptions,
        targets: Mapping[str, float],
        minimise: Minimise,
        max_runs: int,
        longest_queue: float,
        progress: Callable[[int], None],
    ) -> None:
        self._spec, self._loaded, self._policy, self._options = spec, loaded, policy, options
        self._how, self._targets, self._minimise = how, targets, minimise
        self._max_runs, self._long, self._progress = max_runs, longest_queue, progress
        self._last = 0  # runs that are kept for the last comparisons
        self.runs = 0
        self._digits = [_choices(most, step) for most, step in zip(spec.counts, spec.per_server, strict=True)]
        size = int(np.prod([len(each) for each in self._digits], dtype=float))
        if size > MOST_PLANS:
            raise InputError(
                f"cluster: {size:,} plans are too many to look through, expected at most {MOST_PLANS:,}: give fewer "
                "accelerators, or larger servers (plans are of whole ones)"
            )
        grid = np.meshgrid(*self._digits, indexing="ij")
        self.plans: Ints = np.stack([each.reshape(-1) for each in grid], axis=1)
        self._strides = [int(np.prod([len(each) for each in self._digits[i + 1 :]])) for i in range(len(self._digits))]
        held = [paid == "held" for paid in spec.paid]
        self._held = held
        self.bounds = PlanBounds(
            self.plans,
            [each.setup for each in loaded],
            loaded[0].policy(policy, options),
            targets,
            held,
            anywhere=how.compat,
        )
        self._size = self.plans.sum(axis=1)
        self.lower = self.bounds.cost if minimise == "cost" else self._size.astype(float)
        self.tried: dict[int, TriedPlan] = {}
        self._took_s: dict[int, list[dict[int, float]]] = {}  # by plan and seed: of jobs that missed their deadlines
        self.monotone = True

    # --- single plans -------------------------------------------------------------------------------------------------

    def keeps(self, at: int) -> bool:
        """Whether a plan keeps the targets; bounds first, then a simulation."""
        return not self.bounds.ruled_out[at] and self.simulated(at).keeps

    def simulated(self, at: int) -> TriedPlan:
        if at not in self.tried:
            self.tried[at] = found = self._simulate(at)
            self.runs += 1
            self._progress(self.runs)
            self.monotone = self.monotone and not any(self._odd(at, other, found) for other in self.tried)
        return self.tried[at]

    def _odd(self, at: int, other: int, found: TriedPlan) -> bool:
        """Whether of these two the one with no fewer accelerators of any type fails, and the other does not."""
        if found.keeps == self.tried[other].keeps:
            return False
        small, large = (at, other) if found.keeps else (other, at)
        return bool((self.plans[small] <= self.plans[large]).all())

    def judged(self, at: int) -> TriedPlan | None:
        """A plan and how it does: by a bound where that is enough; None if there are no runs left to tell."""
        if not self.bounds.ruled_out[at]:
            return self.simulated(at) if at in self.tried or self.runs < self._max_runs else None
        figures = dict(zip(self._targets, self.bounds.figures[at].tolist(), strict=True))
        over = [name for name, limit in self._targets.items() if figures[name] > limit * ALMOST]
        why = f"no schedule {_bound(over[0], figures[over[0]])}" if over else "too little for the work that comes"
        if self._size[at] == 0 or not all(np.isfinite(value) for value in figures.values()):
            why = "some jobs can never run"
        return self._plan(at, figures, float(self.bounds.cost[at]), False, why=why, by="bound")

    def _plan(self, at: int, figures: dict[str, float], cost: float, keeps: bool, **more: Any) -> TriedPlan:
        counts = dict(zip(self._spec.types, self.plans[at].tolist(), strict=True))
        return TriedPlan(
            counts=counts, accelerators=int(self._size[at]), cost=cost, figures=figures, keeps=keeps, **more
        )

    def _simulate(self, at: int) -> TriedPlan:
        runs = []
        missed = self._took_s[at] = []
        for loaded in self._loaded:
            setup = self._setup(loaded, self.plans[at])
            watch = QueueWatch(setup, long=self._long)
            try:
                policy = LoadedScenario(scenario=loaded.scenario, setup=setup, believed=_believed(loaded, setup))
                outcome = run(
                    setup,
                    policy.policy(self._policy, self._options),
                    self._how.rules,
                    observers=[watch],
                    compat=self._how.compat,
                    ideal=self._how.ideal,
                )
            except StoppedError as stopped:
                return self._plan(
                    at, dict.fromkeys(self._targets, inf), inf, False, why=f"its queue only grows: {stopped}"
                )
            except NeverDoneError as error:
                return self._plan(at, dict.fromkeys(self._targets, inf), inf, False, why=str(error))
            if outcome.figures.rejected:
                return self._plan(at, dict.fromkeys(self._targets, inf), inf, False, why="some jobs can never run")
            missed.append(_missed(setup, outcome.completion_s) if "deadlines" in self._targets else {})
            runs.append((_figures(setup, outcome.completion_s, self._targets), self._cost(setup, outcome)))
        over_seeds = {name: mean([figures[name] for figures, _ in runs]) for name in self._targets}
        cost = sum(spent for _, spent in runs) / len(runs)
        keeps = all(found.value + found.half <= self._targets[name] * ALMOST for name, found in over_seeds.items())
        figures = {name: found.value for name, found in over_seeds.items()}
        half = {name: found.half for name, found in over_seeds.items()} if len(runs) > 1 else {}
        return self._plan(at, figures, cost, keeps, plus_minus=half)

    def _setup(self, loaded: LoadedScenario, counts: Ints) -> ClusterSetup:
        base, at = loaded.setup, np.flatnonzero(counts).tolist()
        assert isinstance(base.prices, Prices)
        types = tuple(base.types[i] for i in at)
        return replace(
            base,
            counts=counts[at],
            per_server=base.per_server[at],
            throughputs=base.throughputs.of_types(types),
            prices=base.prices.of_types(at),
            outages=RandomFailures(self._spec.with_counts(counts.tolist()).present(), base.seed, begins_s(base.jobs)),
            restarts=None if base.restarts is None else base.restarts[:, at],
            restarts_ahead=None if base.restarts_ahead is None else base.restarts_ahead[:, at],
        )

    def _cost(self, setup: ClusterSetup, outcome: Any) -> float:
        """What is paid from the first arrival until all is done."""
        assert isinstance(setup.prices, Prices)
        first_s = begins_s(setup.jobs)
        before, until = (setup.prices.paid_until(t) for t in (first_s, first_s + outcome.figures.makespan_s))
        always = dict(zip(setup.types, (until - before) * setup.counts, strict=True))
        held = dict(zip(self._spec.types, self._held, strict=True))
        return float(sum(outcome.cost_by_type[name] if held[name] else always[name] for name in setup.types))

    # --- the search ---------------------------------------------------------------------------------------------------

    @property
    def best(self) -> int | None:
        """The best plan that was simulated and keeps the targets."""
        kept = [at for at, found in self.tried.items() if found.keeps]
        return min(kept, key=lambda at: (*self._value(at), at), default=None)

    def _value(self, at: int) -> tuple[float, float]:
        found = self.tried[at]
        return (found.cost, found.accelerators) if self._minimise == "cost" else (found.accelerators, found.cost)

    @cached_property
    def _open(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = ~self.bounds.ruled_out
        return found

    def _better(self) -> NDArray[np.bool_]:
        """Plans that no bound rules out, that were not tried, and that could be better than the best."""
        found = self._open.copy()
        found[list(self.tried)] = False
        if self.best is not None:
            value, second = self._value(self.best)
            fewer = self._size < second if self._minimise == "cost" else self.bounds.cost < second / ALMOST
            found &= (self.lower < value / ALMOST) | ((self.lower <= value * ALMOST) & fewer)
        return found

    def search(self) -> bool:
        """Look for the best plan; whether all that could be better were simulated or ruled out."""
        if int(self._better().sum()) > self._max_runs:
            self._last = min(len(self._digits), self._max_runs - 1)
            prices = np.array([float(each) for each in self._mean_prices()])
            for order in (np.argsort(-prices, kind="stable"), np.argsort(prices, kind="stable")):
                self._descend(order.tolist())
            self._step_aside()
        while (left := self._left) > 0:
            better = self._better()
            count = int(better.sum())
            if not count:
                return True
            likely = better & ~self._beaten()
            if count <= left or (self.best is None and not likely.any()):  # all of them, or what only an odd one keeps
                at = np.flatnonzero(better)
                self.simulated(int(at[np.lexsort((self._size[at], self.lower[at]))[0]]))
            elif likely.any():
                self.simulated(self._telling(likely))
            else:
                return False
        return not self._better().any()

    @property
    def _left(self) -> int:
        """Runs that are left to search with."""
        return self._max_runs - self.runs - (0 if self.best is None else self._last)

    def _mean_prices(self) -> list[float]:
        prices = self._loaded[0].setup.prices
        assert isinstance(prices, Prices)
        return [float(price) for price in prices.paid_until(max(prices.times_s[-1], 3600.0))]

    def _descend(self, order: Sequence[int]) -> None:
        """From all there are, as few of each type as keep the targets, one type after the other."""
        at = len(self.plans) - 1
        if self._left <= 0 or not self.keeps(at):
            return
        for t in order:
            low, high = -1, (at // self._strides[t]) % len(self._digits[t])
            base = at - high * self._strides[t]
            while high - low > 1 and self._left > 0:
                middle = (low + high) // 2
                if self.keeps(base + middle * self._strides[t]):
                    high = middle
                else:
                    low = middle
            at = base + high * self._strides[t]

    def _step_aside(self) -> None:
        """From the best plan to its neighbours, a server more or less of a type or one of another, while that helps."""
        before = None
        while self.best is not None and self.best != before:
            before = self.best
            steps = [sign * stride for stride in self._strides for sign in (-1, 1)]
            for by in [*steps, *(a + b for a, b in permutations(steps, 2) if a < 0 < b)]:
                at = before + by
                near = self._left > 0 and 0 <= at < len(self.plans) and self._near(before, at)
                if near and self._better()[at]:
                    self.simulated(at)

    def _near(self, one: int, other: int) -> bool:
        """Whether plans differ by one step of a type, or by one of two."""
        shape = [len(each) for each in self._digits]
        apart = np.subtract(np.unravel_index(one, shape), np.unravel_index(other, shape))
        return int(np.abs(apart).max()) == 1

    def _beaten(self) -> NDArray[np.bool_]:
        """Plans with no more of any type than one that failed."""
        found = np.zeros(len(self.plans), dtype=np.bool_)
        for at, tried in self.tried.items():
            if not tried.keeps:
                found |= (self.plans <= self.plans[at]).all(axis=1)
        return found

    def _telling(self, likely: NDArray[np.bool_]) -> int:
        """Of the dearest plans that could be better, the one that rules most others out if it fails."""
        at = np.flatnonzero(likely)
        dear = at[np.argsort(-self.lower[at], kind="stable")[:_LOOKED_AT]]
        ruled = [int((self.plans[at] <= self.plans[each]).all(axis=1).sum()) for each in dear]
        return int(dear[int(np.argmax(ruled))])

    def settle(self) -> int | None:
        """The best plan, once all that have one server less of a type were judged too, while there are runs left."""
        before = None
        while self.best is not None and self.best != before:
            before = self.best
            self.smaller(before)
        return before

    def smaller(self, at: int) -> list[TriedPlan]:
        """Plans with one server less of a type."""
        digits = [(at // stride) % len(each) for stride, each in zip(self._strides, self._digits, strict=True)]
        less = [at - stride for digit, stride in zip(digits, self._strides, strict=True) if digit]
        return [found for each in less if (found := self.judged(each)) is not None]

    def least(self) -> float:
        """What no plan that keeps the targets can be below, whatever the policy."""
        return float(self.lower[self._open].min(initial=inf))

    def alone(self, at: int) -> dict[str, float]:
        return dict(zip(self._targets, self.bounds.figures[at].tolist(), strict=True))

    def late(self, at: int) -> list[LateJob]:
        """Who misses a deadline with a plan: by its simulation, if there was one, and whoever does with all there may
        be."""
        if "deadlines" not in self._targets:
            return []
        most = self.plans[self.largest]
        took = dict(enumerate(self._took_s.get(at, [])))
        seeds = [each.setup.seed for each in self._loaded]
        both = zip(seeds, self.bounds.jobs, strict=True)
        return [found for k, (seed, jobs) in enumerate(both) for found in late_jobs(seed, jobs, most, took.get(k))]

    @property
    def largest(self) -> int:
        return len(self.plans) - 1


def _choices(most: int, step: int) -> Ints:
    """Whole servers, and what is left over.

    >>> _choices(10, 4).tolist()
    [0, 4, 8, 10]
    """
    return np.array(sorted({*range(0, most, step), most}))


def _believed(loaded: LoadedScenario, setup: ClusterSetup) -> Any:
    return None if loaded.believed is None else loaded.believed.of_types(setup.types)


def _bound(target: str, value: float) -> str:
    """What a schedule cannot be below."""
    return f"misses less than {100 * value:.1f} %" if target == "deadlines" else f"has {target} below {value:,.6g}"


def _missed(setup: ClusterSetup, completion_s: Mapping[int, float]) -> dict[int, float]:
    """Times of jobs that missed their deadlines."""
    jobs = setup.jobs if isinstance(setup.jobs, list) else []
    first, end = setup.window or (0, len(jobs))
    took = [(job, completion_s.get(job.id, inf)) for job in jobs[first:end] if job.due_s is not None]
    return {job.id: took_s for job, took_s in took if took_s > (job.due_s or 0.0) * ALMOST}


def _figures(setup: ClusterSetup, completion_s: Mapping[int, float], targets: Mapping[str, float]) -> dict[str, float]:
    jobs = setup.jobs if isinstance(setup.jobs, list) else []
    if setup.window is not None or not jobs:
        first, end = setup.window or (0, len(completion_s))
        done = {job: took for job, took in completion_s.items() if first <= job < end}
        jobs = [job for job in jobs if first <= job.id < end]
        if not jobs:
            jct = np.array(list(done.values()))
            return {name: figure(name, jct, np.zeros(len(jct)), np.full(len(jct), inf)) for name in targets}
    jct = np.array([completion_s.get(job.id, inf) for job in jobs])
    arrival = np.array([job.arrival_s for job in jobs]) - begins_s(setup.jobs)
    due = np.array([inf if job.due_s is None else job.due_s for job in jobs])
    return {name: figure(name, jct, arrival, due) for name in targets}
