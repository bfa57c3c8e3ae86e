"""Policies side by side on the same jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from dovetail.cluster.inputs.scenario import Scenario
from dovetail.cluster.rules import ClusterOptions
from dovetail.cluster.sweeps.cell import SweepCell, SweepRow, run_cell
from dovetail.core.errors import DovetailError
from dovetail.core.parallel import run_all

COMPARED = ("makespan_s", "avg_jct_s", "p95_jct_s", "utilization", "total_cost", "rho_mean", "jain")


def compare_policies(
    scenario: Scenario,
    policies: Sequence[str],
    how: ClusterOptions | None = None,
    processes: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[SweepRow]:
    """One row of figures per policy; `ratios` are those of its figures to the first policy's."""
    how = ClusterOptions() if how is None else how
    cells = [SweepCell(scenario=scenario, policy=name, how=how, long=inf) for name in policies]
    rows = run_all(run_cell, cells, processes, progress)
    for row in rows:
        if row["status"] == "failed":
            raise DovetailError(f"{row['policy']}: {row['reason']}")
        del row["jct_quantiles_s"]
        row["ratios"] = {key: row[key] / rows[0][key] if rows[0][key] else None for key in COMPARED}
    return rows
