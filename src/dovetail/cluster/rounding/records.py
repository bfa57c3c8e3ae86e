"""What this level writes into the journal, column by column: arrivals, leases begun and ended, completions.

A lease is a stretch of time in which a job holds the same accelerators; `stopped` tells when it began and what it
brought, so that figures need nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from dovetail.cluster.goodput.application import Batch
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.core.events import Rows

ROUND, KEPT, FREE, GATHERED, CHANGED, MOVED = 0, 1, 2, 3, 4, 5
WHY = (
    "its turn: it is owed the most time",
    "kept its place: only its company changed",
    "accelerators were free",
    "moved into one server: it was spread over several",
)
WHY_IN_PHASES = (
    *WHY,
    "kept its place: its batch or its phase changed",
    "moved to other servers, as many accelerators in each: another job needs a whole one",
)


def arrived(
    jobs: Sequence[Job],
    kinds: Sequence[int],
    entities: Sequence[int] | None = None,
    phases: Sequence[Sequence[tuple[float, int]]] | None = None,
) -> Rows:
    """`entities` are places in the header's list of their weights; `phases` are of each job (done when it ends, kind),
    where any has some."""
    columns: dict[str, Any] = {
        "id": [job.id for job in jobs],
        "kind": list(kinds),
        "steps": [job.steps for job in jobs],
        "at_s": [job.arrival_s for job in jobs],
    }
    if any(job.name for job in jobs):
        columns["name"] = [job.name for job in jobs]
    if any(job.weight != 1.0 for job in jobs):
        columns["weight"] = [job.weight for job in jobs]
    if any(job.due_s is not None for job in jobs):
        columns["due_s"] = [inf if job.due_s is None else job.due_s for job in jobs]
    if any(job.duration_s is not None for job in jobs):
        columns["duration_s"] = [job.duration_s for job in jobs]
    if entities is not None:
        columns["entity"] = list(entities)
    if phases is not None:
        columns["phases"] = list(phases)
    return Rows("arrived", columns)


def started(
    ids: Ints | Sequence[int],
    on: Ints | Sequence[int],
    devices: Sequence[Sequence[int]],
    why: Sequence[int],
    beside: Ints | None = None,
    setup_s: Floats | None = None,
    kinds: Ints | None = None,
    batches: Sequence[Batch] | None = None,
) -> Rows:
    """`why` is a place in the header's list of reasons. The others are written where somebody has company, where a
    start may cost another price than a restart's, where jobs may have another width than they came with, and where
    they may choose their batch."""
    columns: dict[str, Any] = {"id": ids, "on": on, "devices": devices, "why": why}
    more: dict[str, Any] = {"kind": kinds, "beside": beside, "setup_s": setup_s}
    if batches is not None:
        more |= {"local": [batch.local for batch in batches], "accumulation": [batch.steps for batch in batches]}
    return Rows("started", columns | {name: column for name, column in more.items() if column is not None}, True)


def stopped(
    ids: Ints | Sequence[int],
    on: Ints | Sequence[int],
    beside: Ints | Sequence[int],
    from_s: float | Floats | Sequence[float],
    to_s: Floats | Sequence[float],
    steps: Floats | Sequence[float],
) -> Rows:
    columns = {"id": ids, "on": on, "beside": beside, "from_s": from_s, "to_s": to_s, "steps": steps}
    return Rows("stopped", columns, True)


def phase(ids: Sequence[int]) -> Rows:
    """Jobs have reached the end of a phase, and begin the next one."""
    return Rows("phase", {"id": ids})


def completed(ids: Ints | Sequence[int], at_s: Floats | Sequence[float], decided: bool = False) -> Rows:
    """Jobs ended by themselves, or had nothing to do, which is decided when they come."""
    return Rows("completed", {"id": ids, "at_s": at_s}, decided)


def rejected(ids: Ints | Sequence[int], why: str) -> Rows:
    return Rows("rejected", {"id": ids, "why": [why] * len(ids)}, True)
