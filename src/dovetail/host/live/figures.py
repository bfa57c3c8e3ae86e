"""The figures of a live run: per program and for the whole; what cores were given, and what was used of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from dovetail.host.export import as_csv as csv_text
from dovetail.host.live.status import LiveProgram

COLUMNS = (
    "id",
    "name",
    "state",
    "cores",
    "priority",
    "attempts",
    "pauses",
    "resizes",
    "arrived_s",
    "first_run_s",
    "waiting_s",
    "service_s",
    "total_s",
    "turnaround_s",
    "core_s",
    "cpu_s",
)


def figures(programs: Sequence[LiveProgram], cores: int) -> dict[str, Any]:
    """For the whole run, over what has been completed; use is over the time from the first arrival to the last end.

    >>> times = {"arrived_s": 1.0, "first_run_s": 1.0, "waiting_s": 1.0, "service_s": 3.0, "turnaround_s": 4.0}
    >>> row = LiveProgram(id="1", name="train", cores=2, state="completed", core_s=6.0, cpu_s=4.0, **times)
    >>> found = figures([row], 2)
    >>> found["makespan_s"], found["core_use"], found["core_use_really"], found["throughput_per_h"]
    (4.0, 0.75, 0.5, 900.0)
    """
    done = [row for row in programs if row.state == "completed"]
    ended = [(row, row.arrived_s or 0.0, row.turnaround_s) for row in programs if row.turnaround_s is not None]
    first = min((arrived_s for _, arrived_s, _ in ended), default=0.0)
    makespan_s = max((arrived_s + took_s for _, arrived_s, took_s in ended), default=0.0) - first
    there_s = cores * makespan_s
    found: dict[str, Any] = {"programs": len(programs), "completed": len(done), "makespan_s": makespan_s}
    for name in ("first_run_s", "waiting_s", "service_s", "turnaround_s"):
        found[f"mean_{name}"] = fmean(getattr(row, name) for row in done) if done else None
    found["throughput_per_h"] = 3600 * len(done) / makespan_s if makespan_s else None
    found["core_use"] = sum(row.core_s for row, *_ in ended) / there_s if there_s else None
    found["core_use_really"] = sum(row.cpu_s for row, *_ in ended) / there_s if there_s else None
    return found


def as_csv(programs: Sequence[LiveProgram]) -> str:
    """A line for each program."""
    return csv_text(COLUMNS, ([getattr(row, name) for name in COLUMNS] for row in programs))
