"""`dovetail cluster compare`: policies side by side."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, Words, WorkFlags
from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.cluster import DEFAULT

_WORK, _JOBS, _RULES = WorkFlags(), JobFlags(), RuleFlags()
_SHOWN = {
    "makespan_s": "makespan h",
    "avg_jct_s": "average JCT h",
    "p95_jct_s": "P95 JCT h",
    "utilization": "use %",
    "total_cost": "cost",
    "rho_mean": "mean rho",
    "jain": "Jain",
}


def compare(
    *,
    policy: Annotated[Words, Parameter(alias=["-p", "--policies"])] = ("max_min_fairness", DEFAULT),
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    processes: Annotated[int | None, Parameter(alias="-j")] = None,
    format: Format = "table",
) -> int:
    """Compare policies on the same jobs; ratios are to the first one.

    Example: dovetail cluster compare -p fifo max_min_fairness max_min_fairness_perf --jobs 60 -c 8:8:8

    Parameters
    ----------
    policy
        Two or more policies.
    processes
        How many runs at a time; by default one per core.
    format
        table or json.
    """
    from dovetail import cluster

    scenario = work.scenario(jobs, rules)
    with progress("comparing", 1) as done:
        found = cluster.compare(
            scenario, policy, processes=processes, progress=lambda made, of: done(made / of), **rules.how()
        )
    if format == "json":
        print_json(found.rows)
        return 0
    print_table(["policy", *_SHOWN.values()], [[row["policy"], *(_cell(key, row) for key in _SHOWN)] for row in found])
    for note in found.notes:
        print(f"\nnote: {note}")
    return 0


def _cell(key: str, row: dict[str, Any]) -> str:
    """A figure and, in brackets, its ratio to the first policy's."""
    unit = 3600 if key.endswith("_s") else 0.01 if key == "utilization" else 1
    ratio = row["ratios"][key]
    return f"{row[key] / unit:,.2f}" + ("" if ratio is None else f" ({ratio:.2f})")
