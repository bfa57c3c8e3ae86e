"""Policies over points that differ in one thing, with the same seeds: means, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from msgspec.structs import asdict, replace

from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.policies import name_of
from dovetail.cluster.rules import ClusterOptions
from dovetail.cluster.sweeps.cell import SweepCell, SweepRow, finished, run_cell
from dovetail.core.errors import DovetailError
from dovetail.core.parallel import run_all
from dovetail.core.results.confidence import mean, paired

VARIED = (
    *("makespan_s", "avg_jct_s", "p95_jct_s", "utilization", "total_cost", "rho_mean", "rho_max", "jain"),
    *("slo_violations", "leases", "rounds", "allocations"),
)


def varied(
    points: Mapping[Any, tuple[Scenario, ClusterOptions]],
    policies: Sequence[Any],
    seeds: Sequence[int],
    *,
    axis: str = "at",
    processes: int | None = 1,
    long: float = inf,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each point and policy: figures as means over seeds, half of their 95 % confidence intervals as
    `NAME_plus_minus`, and `paired`: each figure against the first policy's at that point, with the same seeds.

    A policy of which a run was stopped, because its queue was longer than `long` times all accelerators, has a reason
    and no figures: means over the other seeds would flatter it."""
    for scenario, _ in points.values():
        load(scenario)  # what is wrong in a file is told as such, not as a run that failed
    cells = [
        SweepCell(scenario=replace(scenario, seed=seed), policy=policy, how=how, long=long)
        for scenario, how in points.values()
        for policy in policies
        for seed in seeds
    ]
    own = not all(isinstance(policy, str) for policy in policies)
    done = (lambda made: None) if progress is None else lambda made: progress(made, len(cells))
    found = iter(run_all(run_cell, cells, 1 if own else processes, done))
    rows = []
    for at in points:
        first: dict[str, dict[Hashable, float]] | None = None
        for policy in policies:
            runs = [next(found) for _ in seeds]
            by_seed = _by_seed(runs)
            first = by_seed if first is None else first
            row: dict[str, Any] = {} if at is None else {axis: at}
            row |= {"policy": name_of(policy), "seeds": len(seeds)}
            for name, values in by_seed.items():
                told = mean(list(values.values())) if values else None
                row |= {name: told and told.value, f"{name}_plus_minus": told and told.half}
            against = {name: paired(first[name], by_seed[name]) for name in VARIED}
            row["ratios"] = {name: each.ratio for name, each in against.items() if each is not None}
            row["paired"] = {name: asdict(each) for name, each in against.items() if each is not None}
            row["reason"] = next((run["reason"] for run in sorted(runs, key=finished) if run["reason"]), "")
            rows.append(row)
    return rows


def reason_of(row: Mapping[str, Any]) -> str:
    """What there is to say of how a policy's runs went."""
    if row["makespan_s"] is not None or not row["reason"]:
        return str(row["reason"])
    return f"stopped: the load is too heavy: {row['reason']} (--longest-queue lets it grow longer)"


def reasons(
    rows: Sequence[Mapping[str, Any]], axis: str = "", named: Mapping[float, str] = MappingProxyType({})
) -> list[str]:
    """The notes on rows whose policy was stopped, or ended with a long queue; some places have names."""
    where = (f" at {axis} {named.get(row[axis], format(row[axis], 'g'))}" if axis else "" for row in rows)
    return [f"{row['policy']}{at}: {reason_of(row)}" for row, at in zip(rows, where, strict=True) if row["reason"]]


def _by_seed(runs: Sequence[SweepRow]) -> dict[str, dict[Hashable, float]]:
    for run in runs:
        if run["status"] == "failed":
            raise DovetailError(f"{run['policy']}: {run['reason']}")
    ended = runs if all(map(finished, runs)) else ()
    return {name: {run["seed"]: float(run[name]) for run in ended} for name in VARIED}
