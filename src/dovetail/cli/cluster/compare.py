"""`dovetail cluster compare`: policies side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, Words, WorkFlags
from dovetail.cli.common import Format, Numbers, interval, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cluster import DEFAULT, LONGEST_QUEUE

if TYPE_CHECKING:
    from dovetail.core.results.comparison import Comparison

_WORK, _JOBS, _RULES = WorkFlags(), JobFlags(), RuleFlags()
_SHOWN = {
    "makespan_s": "makespan h",
    "avg_jct_s": "average JCT h",
    "p95_jct_s": "P95 JCT h",
    "utilization": "use %",
    "total_cost": "cost",
    "rho_mean": "mean rho",
    "rho_max": "largest rho",
    "jain": "Jain",
}


def compare(
    *,
    policy: Annotated[Words, policies_of("cluster"), Parameter(alias=["-p", "--policies"])] = (
        "max_min_fairness",
        DEFAULT,
    ),
    seeds: Numbers = (),
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    longest_queue: float = LONGEST_QUEUE,
    processes: Annotated[int | None, Parameter(alias="-j")] = None,
    format: Format = "table",
) -> int:
    """Compare policies on the same jobs; ratios are to the first one.

    Example: dovetail cluster compare -p fifo max_min_fairness max_min_fairness_perf --jobs 60 -c 8:8:8

    Parameters
    ----------
    policy
        The policies, with options as max_min_fairness_perf or sia,power=-1.
    seeds
        Several seeds, in the place of --seed: means over them, and differences to the first policy seed by seed.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable, and has no figures.
    processes
        How many runs at a time; by default one per core.
    format
        table or json.
    """
    from dovetail import cluster

    scenario = work.scenario(jobs, rules)
    with progress("comparing", 1) as done:
        found = cluster.compare(
            scenario,
            policy,
            seeds=seeds or None,
            longest_queue=longest_queue,
            processes=processes,
            progress=lambda made, of: done(made / of),
            **rules.how(),
        )
    ended = [row for row in found if row["makespan_s"] is not None]
    if format == "json":
        print_json(found.rows)
        return 0 if ended else 1
    print_table(["policy", *_SHOWN.values()], [[row["policy"], *(_cell(key, row) for key in _SHOWN)] for row in found])
    if len(seeds) > 1 and len(found) > 1 and found[0] in ended:
        _differences(found)
    for note in found.notes:
        print(f"\nnote: {note}")
    return 0 if ended else 1


def _differences(found: Comparison) -> None:
    """Figures against the first policy's with the same seeds: ratios and their confidence intervals."""
    shown = {key: _SHOWN[key] for key in ("makespan_s", "avg_jct_s", "p95_jct_s", "total_cost")}
    rows = [[row["policy"], *(interval(row["paired"].get(key)) for key in shown)] for row in found.rows[1:]]
    first = f"{found[0]['policy']} ({found[0]['seeds']} seeds)"
    print(f"\nRatios to {first}, seed by seed, with 95 % intervals; * where they leave 1 out\n")
    print_table(["policy", *(name.removesuffix(" h") for name in shown.values())], rows)


def _cell(key: str, row: dict[str, Any]) -> str:
    """A figure and, in brackets, its ratio to the first policy's."""
    if row[key] is None:
        return "stopped" if key == "makespan_s" else "-"
    unit = 3600 if key.endswith("_s") else 0.01 if key == "utilization" else 1
    ratio = row["ratios"].get(key)
    return f"{row[key] / unit:,.2f}" + ("" if ratio is None else f" ({ratio:.2f})")
