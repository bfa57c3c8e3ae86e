"""A run as the older simulator's text log tells it."""

from __future__ import annotations

from dovetail.cluster.export import measured
from dovetail.cluster.metrics import ClusterResult


def old_log(outcome: ClusterResult, window: tuple[int, int] | None) -> str:
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
