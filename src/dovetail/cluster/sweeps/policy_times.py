"""What one allocation of a policy takes, against the number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace

from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.inputs.setup import JobKinds
from dovetail.cluster.policies import name_of
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import TimedPolicy

_WARM = 10  # calls after the first one, before each of which a job has left and another has come


def policy_times(
    base: Scenario,
    counts: Sequence[int],
    policies: Sequence[Any],
    trials: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """CPU seconds of a new policy's first call, and of later ones; medians over `trials` seeds. As the older system's
    script has it, there is an accelerator of each type for every four jobs."""
    rows = []
    for jobs in counts:
        spec = parse_cluster(base.cluster)
        cluster = ",".join(f"{name}={max(jobs // 4, 1)}" for name in spec.types)
        for policy in policies:
            calls = [
                _calls(replace(base, cluster=cluster, jobs=jobs + _WARM, seed=seed), policy) for seed in range(trials)
            ]
            row: dict[str, Any] = {"jobs": jobs, "policy": name_of(policy), "trials": trials}
            row["cold_s"] = median(each[0] for each in calls)
            row["warm_s"] = median(spent for each in calls for spent in each[1:])
            rows.append(row | {"largest_s": max(max(each) for each in calls)})
            if progress is not None:
                progress(len(rows), len(counts) * len(policies))
    return rows


def _calls(scenario: Scenario, policy: Any) -> list[float]:
    loaded = load(scenario)
    setup, made = loaded.setup, TimedPolicy(loaded.policy(policy), name_of(policy))
    mechanism = Mechanism(
        made,
        setup.types,
        setup.counts,
        setup.rates(),
        setup.throughputs.pairs,
        RoundRules(),
        Random(setup.seed),
        setup.entities,
        kinds=setup.throughputs.kinds,
    )
    mechanism.see_prices(setup.prices.price_at(0.0))
    kinds, jobs = JobKinds(setup), iter(setup.jobs)

    def come(many: int) -> None:
        new = list(islice(jobs, many))
        entities = [kinds.entity(job) for job in new] if setup.entities else None
        mechanism.arrive(records.arrived(new, [kinds.kind(job) for job in new], entities).columns)

    assert scenario.jobs is not None
    come(scenario.jobs - _WARM)
    spent = []
    for call in range(_WARM + 1):
        if call:
            mechanism.leave(np.arange(len(mechanism.jobs)) == 0)
            come(1)
        before = made.cpu_s
        made.allocate(mechanism.problem(360.0 * call))
        spent.append(made.cpu_s - before)
    return spent
