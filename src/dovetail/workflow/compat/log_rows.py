"""The rows of an execution log as a checker reads them, and how they become the events of a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct

from dovetail.core.events import Arrived, Complete, Failed, Finished, Grew, Observed, Reject, Start
from dovetail.core.findings import Findings
from dovetail.core.journal import Ended
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraphRecord
from dovetail.workflow.check.examination import Steps
from dovetail.workflow.compat.execution_log import ExecutionRow, Maybe, RequestRow
from dovetail.workflow.gpus.sharing import FIRST_TOKEN


class LoggedRun(Struct):
    """An execution log; in the older ones only the first two are there."""

    executions: list[ExecutionRow]
    summary: dict[str, Any] = {}
    made_by: str = ""
    policy: str = ""
    options: dict[str, Any] = {}
    seed: int = 0
    bounds: dict[str, Any] | None = None
    pool: Pool | None = None
    models: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    compat: bool = False
    facts: dict[str, Any] = {}
    graphs: tuple[TaskGraphRecord, ...] = ()
    grown: list[Grew] = []
    preloads: int = 0
    requests: list[RequestRow] = []
    failures: list[ExecutionRow] = []
    rejected_requests: list[dict[str, str]] = []
    gpu_assignments: dict[str, dict[str, Any]] = {}


class LogSpan(Struct, gc=False):
    """From the decision to the end; `failed` is why it failed."""

    n: int
    t: float
    end: float
    start: Start
    failed: str = ""
    decision: int = 0  # orders simultaneous starts
    first_s: float | None = None  # when its first token came


def events_of(
    spans: Sequence[LogSpan],
    arrivals: Sequence[tuple[float, Arrived]],
    closings: Sequence[tuple[float, Complete | Reject]],
    grown: Sequence[Grew] = (),
) -> Steps:
    """The events of a log in an order in which they can have happened: at one instant ends come before starts."""
    entries: list[tuple[float, int, int, int]] = []
    added = {(event.job, event.task): event for event in grown}
    batches: dict[tuple[int, float], list[Start]] = {}
    for i, span in enumerate(spans):
        batch = (span.start.batch, span.t)
        if span.end == span.t:
            entries.append((span.t, 2, span.decision, i))
            continue
        entries.append((span.end, 0, i, i))
        if batch in batches:
            batches[batch].append(span.start)
            continue
        if span.start.batch:
            batches[batch] = [span.start]
        entries.append((span.t, 3, span.decision, i))
    entries += [(span.first_s, 5, i, i) for i, span in enumerate(spans) if span.first_s is not None]
    entries += [(t, 1, i, i) for i, (t, _) in enumerate(arrivals)]
    entries += [(t, 4, i, i) for i, (t, _) in enumerate(closings)]
    entries.sort()
    last = max([t for t, _, _, _ in entries if t < inf], default=0.0)
    for t, kind, _, i in entries:
        if kind == 1:
            yield -1 - i, t, [arrivals[i][1]]
        elif kind == 4:
            yield -1 - i, min(t, last), [closings[i][1]]
        elif kind == 5:
            start = spans[i].start
            yield spans[i].n, t, [Observed(FIRST_TOKEN, {"job": start.job, "task": start.task})]
        else:
            span = spans[i]
            start = span.start
            ends: list[Any] = [Failed(start.job, start.task, span.failed)]
            if not span.failed:
                growth = added.get((start.job, start.task))
                ends = [*([growth] if growth is not None else []), Finished(start.job, start.task)]
            if kind == 3:
                yield span.n, t, list(batches.get((start.batch, t), [start]))
            else:
                yield span.n, t, [start, *ends] if kind == 2 else ends
    yield 0, last, [Ended()]


def number(value: Maybe, default: float = 0.0) -> float:
    return value if isinstance(value, int | float) else default


def end_of(row: ExecutionRow, t: float, faults: Findings) -> float:
    """When a row ends; one that ends before it begins is a fault and takes no time."""
    if row.end_time >= row.start_time and row.end_time >= t:
        return row.end_time
    who = f"{row.request_id}/{row.node_id}"
    faults.add("duration", who, f"ends at {row.end_time} s, before it starts at {row.start_time} s")
    return t


def check_workflows(rows: Sequence[ExecutionRow], of: Mapping[str, str], faults: Findings) -> None:
    for i, row in enumerate(rows):
        if row.workflow_id != of.get(row.request_id, row.workflow_id):
            faults.at(i, row.start_time)
            message = f"found workflow_id {row.workflow_id!r}, expected {of[row.request_id]!r} as its request says"
            faults.add("row", f"{row.request_id}/{row.node_id}", message)
