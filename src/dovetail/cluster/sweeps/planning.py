"""`cluster.plan`: what a user asks for, checked; and the answer with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Unpack, get_args

from msgspec.structs import replace

from dovetail.cluster.inputs.choices import DEFAULT, LONGEST_QUEUE, Minimise, one_of
from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, load
from dovetail.cluster.policies import make
from dovetail.cluster.sweeps.given import scenario_of, seeds_of
from dovetail.cluster.sweeps.plan import ClusterPlan, PlanSearch, TriedPlan
from dovetail.cluster.sweeps.rule_options import RuleKeywords, options_of
from dovetail.core.errors import InputError, check_functions, within
from dovetail.core.files.plain import scalar


def plan(
    scenario: Scenario | LoadedScenario | None = None,
    policy: Any = DEFAULT,
    *,
    p95: float | None = None,
    p99: float | None = None,
    mean: float | None = None,
    makespan: float | None = None,
    deadlines: float | None = None,
    percentile: Mapping[float, float] | None = None,
    minimise: Minimise = "cost",
    seeds: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    max_runs: int = 100,
    longest_queue: float = LONGEST_QUEUE,
    progress: Callable[[int], None] | None = None,
    **how: Unpack[RuleKeywords],
) -> ClusterPlan:
    """The cheapest or fewest accelerators with which completion times stay within limits, in seconds.

    The scenario's cluster says how many of each type there may be. Limits are of the 95th or 99th percentile, the mean,
    the makespan, or any `percentile` ({90: 3600}); `deadlines` is the largest share of them that may be missed. Those
    that are given must all be kept: with several `seeds`, by the upper end of the mean's 95 % confidence interval.
    `max_runs` plans are simulated at most, once for every seed.

    >>> from dovetail import cluster
    >>> found = cluster.plan(cluster.load(cluster="a100=4,l4=4", jobs=12), p95=60 * 3600, minimise="accelerators")
    >>> found.plan.counts, found.exact
    ({'a100': 2, 'l4': 0}, True)
    """
    targets = _targets(
        {"p95": p95, "p99": p99, "mean": mean, "makespan": makespan, "deadlines": deadlines}, percentile or {}
    )
    one_of("minimise", minimise, get_args(Minimise))
    max_runs, longest_queue = scalar(max_runs), scalar(longest_queue)
    within("max_runs", max_runs, "1 or more", 1, whole=True, optional=False)
    within("longest_queue", longest_queue, "more than 0", 1e-9, inf, optional=False)
    check_functions(progress=progress)
    rules = options_of(**how)
    make(policy, options)
    asked = scenario_of(scenario)
    if asked.steady_state:
        raise InputError("steady_state fills a cluster with jobs: it needs to be known how large that is")
    drawn = list(seeds_of(seeds or (asked.seed,)))
    loaded = [load(replace(asked, seed=seed)) for seed in drawn]
    spec = parse_cluster(asked.cluster, gpus_per_server=asked.per_server).present()
    if "deadlines" in targets and not _any_due(loaded):
        raise InputError("deadlines: no job has one (assign_SLOs draws some, due_s in a table gives them)")
    search = PlanSearch(
        spec,
        loaded,
        policy,
        options,
        rules,
        targets,
        minimise,
        max_runs,
        longest_queue,
        progress or (lambda done: None),
    )
    exact = search.search()
    found = _answer(search, targets, minimise, exact, drawn, loaded[0].notes)
    if found.plan is not None:
        found.types = spec.with_counts(list(found.plan.counts.values())).present().document()
    return found


def _any_due(loaded: Sequence[LoadedScenario]) -> bool:
    jobs = loaded[0].setup.jobs
    return loaded[0].scenario.deadlines if not isinstance(jobs, list) else any(job.due_s is not None for job in jobs)


def _targets(named: Mapping[str, Any], percentile: Mapping[float, Any]) -> dict[str, float]:
    """
    >>> _targets({"p95": 60, "mean": None}, {90: 30})
    {'p95': 60.0, 'p90': 30.0}
    """
    targets = {name: scalar(limit) for name, limit in named.items() if limit is not None}
    for q, limit in percentile.items():
        within("percentile", q, "0 to 100", 0, 100, optional=False)
        targets[f"p{float(q):g}"] = scalar(limit)
    if not targets:
        raise InputError("give a limit: p95, p99, mean or makespan in seconds, percentile, or deadlines")
    for name, limit in targets.items():
        if name == "deadlines":
            within(name, limit, "a share, 0 or more", 0, 1, optional=False)
        else:
            within(name, limit, "seconds, more than 0", 1e-9, 1e12, optional=False)
    return {name: float(limit) for name, limit in targets.items()}


def _answer(
    search: PlanSearch,
    targets: dict[str, float],
    minimise: Minimise,
    exact: bool,
    seeds: list[int],
    notes: list[str],
) -> ClusterPlan:
    best = search.settle()
    smaller = [] if best is None else search.smaller(best)
    found = None if best is None else search.tried[best]
    told = ClusterPlan(
        targets=targets,
        minimise=minimise,
        plan=found,
        least=search.least(),
        exact=exact,
        monotone=search.monotone,
        reason="",
        smaller=smaller,
        alone={} if best is None else search.alone(best),
        runs=search.runs,
        seeds=seeds,
        tried=list(search.tried.values()),
        late=search.late(search.largest if best is None else best),
        notes=list(notes),
    )
    told.reason = _reason(told, search.judged(search.largest) if found is None else None)
    if not search.monotone:
        told.notes.append(
            "more accelerators are not always better under this policy: a plan failed although it has at least as many "
            "of every type as one that did not"
        )
    if not exact:
        told.notes.append(
            f"{search.runs} plans were simulated; others that could be better were taken to fail like larger ones, or "
            "were not looked at (--max-runs)"
        )
    return told


def _reason(told: ClusterPlan, largest: TriedPlan | None) -> str:
    """What binds: the target that is nearest to its limit, and how the plans with less fail."""
    if told.plan is None:
        if largest is None:
            return f"none of the {told.runs} that were simulated; all there may be was not (--max-runs)"
        return f"all there may be: {largest.why or _over(largest, told.targets)}"
    tight = max(told.targets, key=lambda name: _ratio(told.plan, name, told.targets))
    value, limit = told.plan.figures[tight], told.targets[tight]
    reason = f"{tight} is {_shown(tight, value)} of {_shown(tight, limit)}"
    fails = [each for each in told.smaller if not each.keeps]
    kept = [each for each in told.smaller if each.keeps]
    if kept and told.minimise == "cost":
        cheapest = min(kept, key=lambda each: each.cost)
        reason += f"; {_difference(told.plan, cheapest)} keeps it too, but costs {cheapest.cost:,.2f}"
    if fails:
        least = min(fails, key=lambda each: max(_ratio(each, name, told.targets) for name in told.targets))
        reason += f"; with {_difference(told.plan, least)}: {least.why or _over(least, told.targets)}"
    return reason


def _ratio(plan: TriedPlan | None, name: str, targets: Mapping[str, float]) -> float:
    assert plan is not None
    return (plan.figures[name] + plan.plus_minus.get(name, 0.0)) / max(targets[name], 1e-9)


def _over(plan: TriedPlan, targets: Mapping[str, float]) -> str:
    worst = max(targets, key=lambda name: _ratio(plan, name, targets))
    plus = f" ± {_shown(worst, plan.plus_minus[worst])}" if worst in plan.plus_minus else ""
    return f"{worst} {_shown(worst, plan.figures[worst])}{plus}"


def _shown(target: str, value: float) -> str:
    return f"{100 * value:.1f} % missed" if target == "deadlines" else f"{value:,.0f} s"


def _difference(plan: TriedPlan, less: TriedPlan) -> str:
    name = next(name for name, count in plan.counts.items() if less.counts[name] < count)
    return f"{plan.counts[name] - less.counts[name]} {name} less"
