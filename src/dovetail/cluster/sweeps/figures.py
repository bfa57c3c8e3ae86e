"""What is published of clusters, each by one function: round lengths, mixes of types, costs, policies' own time, shares
of entities."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from os import PathLike
from typing import Any, Unpack

from dovetail.cluster.inputs.choices import LONGEST_QUEUE
from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, given
from dovetail.cluster.sweeps import entity_shares as recorded
from dovetail.cluster.sweeps import policy_times as times
from dovetail.cluster.sweeps.given import (
    Progress,
    mean_rate_notes,
    notes_of,
    numbers_of,
    policies_of,
    scenario_of,
    seeds_of,
)
from dovetail.cluster.sweeps.rule_options import RuleKeywords, options_of
from dovetail.cluster.sweeps.varied import reasons, varied
from dovetail.core.errors import InputError, check_functions, within
from dovetail.core.files.document import as_path
from dovetail.core.files.plain import scalar
from dovetail.core.journal import open_journal
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.run import Run

AWARE = ("max_min_fairness", "max_min_fairness_perf")  # the same promise, blind and aware
IDEAL = 0.0  # in the place of a round length: shares carried out exactly


def round_lengths(
    scenario: Scenario | LoadedScenario | None = None,
    intervals: Sequence[float] = (360.0, 720.0, 1440.0, 2880.0),
    policies: Sequence[Any] = AWARE,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    longest_queue: float = LONGEST_QUEUE,
    processes: int | None = 1,
    progress: Progress | None = None,
    **how: Unpack[RuleKeywords],
) -> Comparison:
    """Policies over round lengths, and `interval_s` 0: shares carried out exactly, which is what rounds are to come
    near to. A row for each, as `compare` with seeds has them; `over_ideal` is the average JCT over the ideal one's.

    >>> found = round_lengths(given(cluster="a100=2,l4=4", jobs=8), [360, 1440], ["fifo_perf"], seeds=[0, 1])
    >>> [(row["interval_s"], row["over_ideal"] >= 1) for row in found]
    [(0.0, True), (360.0, True), (1440.0, True)]
    """
    if how.get("interval", 360.0) != 360.0 or how.get("ideal") or how.get("compat"):
        raise InputError("round_lengths: expected intervals, without interval, ideal or compat")
    base, run = _checked(scenario, longest_queue, processes, progress)
    drawn = seeds_of(seeds)
    lengths = numbers_of("intervals", intervals, "seconds, more than 0", 1e-3)
    rules: dict[str, Any] = {name: value for name, value in how.items() if name not in ("interval", "ideal", "compat")}
    points = {IDEAL: (base, options_of(**rules | {"ideal": True, "allocate_every_s": None}))}
    points |= {float(s): (base, options_of(interval=s, **rules)) for s in lengths}
    rows = varied(points, policies_of(policies), drawn, axis="interval_s", **run)
    ideal_s = {row["policy"]: row["avg_jct_s"] for row in rows if row["interval_s"] == IDEAL}
    for row in rows:
        took_s, best_s = row["avg_jct_s"], ideal_s[row["policy"]]
        row["over_ideal"] = took_s / best_s if took_s is not None and best_s else None
    shown = ("interval_s", "policy", "seeds", "avg_jct_s", "avg_jct_s_plus_minus", "over_ideal")
    notes = (
        notes_of(base, drawn) + mean_rate_notes(base, points[IDEAL][1]) + reasons(rows, "interval_s", {IDEAL: "ideal"})
    )
    return Comparison(rows, shown, notes)


def type_mixes(
    scenario: Scenario | LoadedScenario | None = None,
    types: Sequence[str] = ("v100", "k80"),
    total: int = 24,
    shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    policies: Sequence[Any] = AWARE,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    longest_queue: float = LONGEST_QUEUE,
    processes: int | None = 1,
    progress: Progress | None = None,
    **how: Unpack[RuleKeywords],
) -> Comparison:
    """Policies over clusters of `total` accelerators of two types, by the share that is of the first. The cluster of
    the scenario is not used. A row for each, as `compare` with seeds has them.

    >>> found = type_mixes(given(jobs=8), ("v100", "k80"), 4, [0.5, 1.0], ["fifo_perf", "isolated"], seeds=[0])
    >>> [(row["share"], row["cluster"], row["policy"]) for row in found][1:3]
    [(0.5, 'v100=2,k80=2', 'isolated'), (1.0, 'v100=4,k80=0', 'fifo_perf')]
    """
    base, run = _checked(scenario, longest_queue, processes, progress)
    drawn = seeds_of(seeds)
    if isinstance(types, str) or len(types) != 2 or types[0] == types[1]:
        raise InputError(f"types: expected two, found {types!r}")
    within("total", total := scalar(total), "accelerators, 2 or more", 2, 1e7, whole=True, optional=False)
    parts = numbers_of("shares", shares, "0 to 1", 0, 1)
    options, points, named = options_of(**how), {}, {}
    for part in parts:
        first = round(part * total)
        named[float(part)] = f"{types[0]}={first},{types[1]}={total - first}"
        points[float(part)] = (given(base, cluster=named[float(part)]), options)
    rows = varied(points, policies_of(policies), drawn, axis="share", **run)
    rows = [{"share": row["share"], "cluster": named[row["share"]]} | row for row in rows]
    shown = ("share", "cluster", "policy", "makespan_s", "avg_jct_s", "avg_jct_s_plus_minus")
    return Comparison(rows, shown, notes_of(base, drawn) + mean_rate_notes(base, options) + reasons(rows, "share"))


def relative_costs(
    scenario: Scenario | LoadedScenario | None = None,
    policies: Sequence[Any] = (
        "max_sum_throughput_perf",
        "max_sum_throughput_normalized_by_cost_perf",
        "max_sum_throughput_normalized_by_cost_perf_SLOs",
    ),
    *,
    seeds: Sequence[int] = (0, 1, 2),
    longest_queue: float = LONGEST_QUEUE,
    processes: int | None = 1,
    progress: Progress | None = None,
    **how: Unpack[RuleKeywords],
) -> Comparison:
    """What policies cost, as a part of what the first one costs with the same seeds (`relative_cost`, its 95 %
    confidence interval from `relative_cost_least` to `relative_cost_most`), beside the deadlines that they miss.

    >>> found = relative_costs(given(cluster="v100=4,k80=4", jobs=8, deadlines=True), seeds=[0, 1])
    >>> found[0]["relative_cost"], found[1]["relative_cost"] < 1.5
    (1.0, True)
    """
    base, run = _checked(scenario, longest_queue, processes, progress)
    drawn = seeds_of(seeds)
    points = {None: (base, options_of(**how))}
    rows = varied(points, policies_of(policies), drawn, **run)
    for row in rows:
        cost, slower = row["paired"].get("total_cost", {}), row["paired"].get("avg_jct_s", {})
        row |= {"relative_cost": cost.get("ratio"), "relative_avg_jct": slower.get("ratio")}
        row |= {"relative_cost_least": cost.get("least"), "relative_cost_most": cost.get("most")}
    shown = ("policy", "seeds", "total_cost", "relative_cost", "relative_cost_least", "relative_cost_most")
    return Comparison(rows, (*shown, "relative_avg_jct", "slo_violations"), notes_of(base, drawn) + reasons(rows))


def policy_times(
    scenario: Scenario | LoadedScenario | None = None,
    job_counts: Sequence[int] = (32, 64, 128, 256, 512, 1024, 2048),
    policies: Sequence[Any] = AWARE,
    *,
    trials: int = 3,
    progress: Progress | None = None,
) -> Comparison:
    """CPU seconds of one allocation against the number of jobs, with an accelerator of each of the scenario's types for
    every four jobs: `cold_s` of a policy's first call, `warm_s` of one after a job left and another came.

    >>> found = policy_times(given(cluster="v100=1,k80=1"), [8, 16], ["max_min_fairness_perf"], trials=1)
    >>> [row["jobs"] for row in found], found[0]["warm_s"] <= found[0]["largest_s"]
    ([8, 16], True)
    """
    check_functions(progress=progress)
    base = scenario_of(scenario)
    if base.trace is not None or base.lam_s or base.window is not None:
        raise InputError("policy_times: expected generated jobs that are all there at the start")
    counts = numbers_of("job_counts", job_counts, "1 or more", 1, 1e6, whole=True)
    within("trials", trials := scalar(trials), "1 or more", 1, 1e6, whole=True, optional=False)
    rows = times.policy_times(base, counts, policies_of(policies), trials, progress)
    return Comparison(rows, ("jobs", "policy", "cold_s", "warm_s", "largest_s"))


def entity_shares(run: Run | str | PathLike[str], parts: int = 40) -> Comparison:
    """What each entity had, in so many equal parts of a run: a simulated one, or its journal's path.

    `share` is of the accelerator time that was held, `progress_share` of what was got done, `entitled` what the weights
    of the entities with jobs at that time come to.

    >>> from dovetail.cluster import load, simulate
    >>> jobs = load(cluster="a100=2,l4=2", jobs=24, entities={"research": 2.0, "product": 1.0})
    >>> run = simulate(jobs, "max_min_fairness_water_filling_perf")
    >>> first, second = entity_shares(run, parts=10)[:2]
    >>> first["entity"], first["share"] + second["share"], round(first["entitled"], 3)
    ('research', 1.0, 0.667)
    """
    within("parts", parts := scalar(parts), "1 or more", 1, 1e5, whole=True, optional=False)
    path = run.journal if isinstance(run, Run) else as_path(run, "run")
    rows = recorded.entity_shares(open_journal(path), parts)
    return Comparison(rows, ("time_s", "entity", "entitled", "share", "progress_share", "accelerators"))


def _checked(scenario: Any, longest_queue: Any, processes: Any, progress: Any) -> tuple[Scenario, dict[str, Any]]:
    """The scenario, and how its runs are made."""
    check_functions(progress=progress)
    within("longest_queue", scalar(longest_queue), "more than 0", 1e-9, inf, optional=False)
    within("processes", scalar(processes), "1 or more", 1, inf, whole=True)
    return scenario_of(scenario), {"processes": processes, "long": scalar(longest_queue), "progress": progress}
