"""The runs of a sweep as means over seeds, and two sweeps point by point."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.cluster.sweeps.cell import SweepRow
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.results.confidence import Mean, Paired, mean, paired

FIGURES = (
    *("avg_jct_s", "p95_jct_s", "makespan_s", "utilization", "cost_per_job", "rho_mean", "jain", "envy"),
    "late",  # share of deadlines that were missed
)


class SweepGroup(Struct):
    """The runs that differ only in their seed. `status` is that of the worst; means are there if all runs ended, each
    over the runs that have such a figure."""

    cluster: str
    line: str
    load: float
    static: bool
    seeds: list[int]
    status: str
    reason: str
    means: dict[str, Mean]
    quantiles_s: list[float]
    by_seed: dict[str, dict[int, float]]  # figures of the runs that have one


def groups(rows: Sequence[SweepRow]) -> list[SweepGroup]:
    """Rows as means over seeds, in the order in which they are met."""
    varied = {(row.get("profiling_percentage"), row.get("num_reference_models")) for row in rows}
    gathered: dict[tuple[str, str, float], list[SweepRow]] = {}
    for row in rows:
        name = row["policy"]
        if len(varied) > 1:
            references = row["num_reference_models"]
            name += f", {100 * row['profiling_percentage']:g} % profiled, {references or 'all'} references"
        gathered.setdefault((row["cluster"], name, _load(row)), []).append(row)
    return [_group(key, runs) for key, runs in gathered.items()]


def _load(row: SweepRow) -> float:
    return float(row["jobs_per_hour"] or row["num_total_jobs"])


def _group(key: tuple[str, str, float], runs: list[SweepRow]) -> SweepGroup:
    worst = max(runs, key=lambda row: ("done", "unstable", "timeout", "failed").index(row["status"]))
    means = {}
    if all(row.get("avg_jct_s") is not None for row in runs):
        for name in FIGURES:
            values = [value for row in runs if (value := _value(row, name)) is not None]
            if values:
                means[name] = mean(values)
    known = [row["jct_quantiles_s"] for row in runs if means and row.get("jct_quantiles_s")]
    together = [math.fsum(each) / len(each) for each in zip(*known, strict=True)]
    reason = worst["reason"] if worst["status"] != "done" else ""
    by_seed: dict[str, dict[int, float]] = {}
    for row in runs if means else ():
        for name in means:
            if (value := _value(row, name)) is not None:
                by_seed.setdefault(name, {})[row["seed"]] = value
    return SweepGroup(
        *key,
        not runs[0]["jobs_per_hour"],
        [row["seed"] for row in runs],
        worst["status"],
        reason,
        means,
        together,
        by_seed,
    )


def difference(one: SweepGroup, two: SweepGroup, key: str) -> Paired | None:
    """By how much the second group's figure is larger, in the seeds that both have."""
    return paired(one.by_seed.get(key, {}), two.by_seed.get(key, {}))


def differences(groups: Sequence[SweepGroup], baseline: str, keys: Sequence[str]) -> list[SweepRow]:
    """Every other policy against one, at the same cluster and load and with the same seeds, and so the same jobs."""
    first = {(group.cluster, group.load): group for group in groups if group.line == baseline}
    if not first:
        lines = list(dict.fromkeys(group.line for group in groups))
        raise InputError(f"against {baseline!r}: expected one of {', '.join(lines)}{did_you_mean(baseline, lines)}")
    found = []
    for group in groups:
        base = first.get((group.cluster, group.load))
        if group.line == baseline or base is None:
            continue
        for key in keys:
            if (apart := difference(base, group, key)) is not None:
                row: SweepRow = {"cluster": group.cluster, "policy": group.line, "load": group.load}
                found.append(row | {"against": baseline, "figure": key} | asdict(apart))
    return found


COMPARED = ("avg_jct_s", "p95_jct_s", "makespan_s", "utilization", "cost_per_job", "rho_mean")


def compared_sweeps(a: Sequence[SweepGroup], b: Sequence[SweepGroup]) -> list[SweepRow]:
    """The second sweep's figures over the first one's, for every cluster, policy and load that both have."""
    others = {(group.cluster, group.line, group.load): group for group in b}
    found = []
    for one in a:
        two = others.get((one.cluster, one.line, one.load))
        if two is None:
            continue
        row: SweepRow = {"cluster": one.cluster, "policy": one.line, "load": one.load, "a": one.status, "b": two.status}
        for key in COMPARED:
            x, y = one.means.get(key), two.means.get(key)
            row[key] = None
            if x is not None and y is not None:
                apart = difference(one, two, key)
                ratio = y.value / x.value if x.value else None
                row[key] = {"a": x.value, "b": y.value, "ratio": ratio, "common_seeds": apart.pairs if apart else 0}
                if apart is not None:
                    row[key] |= {"difference": apart.difference, "plus_minus": apart.plus_minus, "sure": apart.sure}
        found.append(row)
    return found


def _value(row: SweepRow, key: str) -> float | None:
    if key == "cost_per_job":
        return row["total_cost"] / row["completed"] if row["completed"] else None
    if key == "late":
        return row["slo_violations"] / row["slo_jobs"] if row["slo_jobs"] else None
    found: float | None = row.get(key)
    return found
