"""What a run gave, as a row of figures for programs and as the older simulator's text log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dovetail.cluster.recording import Outcome

QUANTILES = 100  # steps in which the distribution of completion times is kept


def figures(outcome: Outcome) -> dict[str, Any]:
    """All figures of a run by name, those of its records first, then what it took."""
    found = outcome.figures
    row = {name: getattr(found, name) for name in found.__struct_fields__}
    took = ("rounds", "allocations", "policy_s", "cpu_s", "bound_makespan_s")
    return row | {name: getattr(outcome, name) for name in took}


def measured(outcome: Outcome, window: tuple[int, int] | None) -> dict[int, float]:
    """Completion times by job id, of the window if there is one."""
    first, end = window or (0, float("inf"))
    return {job: time_s for job, time_s in outcome.completion_s.items() if first <= job < end}


def quantiles(times_s: Iterable[float]) -> list[float]:
    """The distribution of completion times, from the least to the largest; nothing if there are none.

    >>> quantiles([])
    []
    >>> quantiles(range(201))[:3]
    [0.0, 2.0, 4.0]
    """
    values = np.fromiter(times_s, dtype=np.float64)
    return np.quantile(values, np.linspace(0, 1, QUANTILES + 1)).tolist() if len(values) else []


def old_log(outcome: Outcome, window: tuple[int, int] | None) -> str:
    """The lines that scripts for the older simulator's logs look for."""
    found, times = outcome.figures, measured(outcome, window)
    lines = [f"Job {job}: {time_s:.3f}" for job, time_s in sorted(times.items())]
    lines.append("Average job completion time: " + _duration(found.avg_jct_s))
    for name, value_s in (("low", found.avg_jct_low_s), ("high", found.avg_jct_high_s)):
        if value_s is not None:
            lines.append(f"Average job completion time ({name} priority): {_duration(value_s)}")
    lines.append(f"Cluster utilization: {found.utilization:.6f}")
    lines.append(f"Total cost: ${found.total_cost:.2f}")
    if found.slo_jobs:
        lines.append(f"Number of SLO violations: {found.slo_violations}")
    lines.append("Total duration: " + _duration(found.makespan_s))
    return "\n".join(lines) + "\n"


def _duration(value_s: float) -> str:
    return f"{value_s:.3f} seconds ({value_s / 3600:.2f} hours)"
