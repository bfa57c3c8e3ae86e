"""Recorded runs as tables, for whoever goes on with pandas, polars or columns of his own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Settled, Start, Stop
from dovetail.core.journal import Reader

Columns = dict[str, list[Any]]
_STATES: dict[type, str] = {Finished: "finished", Failed: "failed", Stop: "stopped"}


def as_frame(columns: Columns) -> Any:
    """A frame of pandas, or of polars where that is in use or alone there; without both the columns as they are."""
    names = ("pandas", "polars")
    used = [name for name in names if name in sys.modules] or [name for name in names if find_spec(name) is not None]
    if not used:
        return columns
    library: Any = __import__(used[0])
    return library.DataFrame(columns)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Rows as columns; what a row lacks is None.

    >>> columns_of([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [None, 3]}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def jobs_of(reader: Reader) -> Columns:
    """A row for each job of a recorded run: when it came, first started and ended, and how."""
    rows: dict[str, dict[str, Any]] = {}
    for _, t, event in reader:
        if isinstance(event, Arrived):
            of = {"job": event.job, "of": event.of, "arrived_s": t}
            rows[event.job] = of | {"started_s": None, "ended_s": None, "response_s": None, "state": "unfinished"}
            continue
        row = rows.get(getattr(event, "job", ""))
        if row is None:
            continue
        if isinstance(event, Start) and row["started_s"] is None:
            row["started_s"] = t
        elif isinstance(event, Complete | Reject):
            row["state"] = "completed" if isinstance(event, Complete) else "rejected"
            row["ended_s"] = t
            row["response_s"] = t - row["arrived_s"] if isinstance(event, Complete) else None
    names = ("job", "of", "arrived_s", "started_s", "ended_s", "response_s", "state")
    return {name: [row[name] for row in rows.values()] for name in names}


def tasks_of(reader: Reader) -> Columns:
    """A row for each start of a task in a recorded run: where, from when to when, and why there."""
    rows: list[dict[str, Any]] = []
    running: dict[tuple[str, str], dict[str, Any]] = {}
    for _, t, event in reader:
        if isinstance(event, Start):
            row: dict[str, Any] = {
                "job": event.job,
                "task": event.task,
                "kind": event.kind,
                "devices": list(event.devices),
            }
            row |= {"ready_s": event.ready_s, "started_s": t, "setup_s": event.setup_s, "ended_s": None}
            running[event.job, event.task] = row | {"state": "running", "why": event.why}
            rows.append(running[event.job, event.task])
        elif isinstance(event, Settled) and (settled := running.get((event.job, event.task))) and settled["setup_s"]:
            settled["setup_s"] = t - settled["started_s"]
        elif isinstance(event, Finished | Failed | Stop) and (ended := running.pop((event.job, event.task), None)):
            ended |= {"ended_s": t, "state": _STATES[type(event)]}
    return columns_of(rows)
