"""A run as a trace that Perfetto opens: Chrome's format, one track per device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.files.output import written_whole
from dovetail.dispatch.chunk import ChunkRow

Span = tuple[int, str, int, float, float]  # device, what, first item, begin and end in seconds
_US = 1e6
_TRACKS = {"copy in": 1, "compute": 2, "copy out": 3}


def write_trace(
    path: str | Path, devices: Sequence[str], rows: Sequence[ChunkRow], spans: Sequence[Span], begun_s: float
) -> None:
    """Write the chunks of a run that began at this time, and what was seen of copies and kernels."""
    events = trace_events(devices, rows, spans, begun_s)
    with written_whole(Path(path)) as file:
        file.write(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n")


def trace_events(
    devices: Sequence[str], rows: Sequence[ChunkRow], spans: Sequence[Span], begun_s: float
) -> list[dict[str, Any]]:
    """The events of the trace: a name per device, a slice per chunk."""

    def piece(name: str, pid: int, tid: int, from_s: float, to_s: float, args: dict[str, Any]) -> dict[str, Any]:
        times = {"ts": round((from_s - begun_s) * _US, 3), "dur": round((to_s - from_s) * _US, 3)}
        return {"ph": "X", "name": name, "cat": "chunk", "pid": pid, "tid": tid, **times, "args": args}

    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dispatch"}}]
    for i, device in enumerate(devices):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": i + 1, "args": {"name": device}})
    for row in rows:
        name = "task" if row.state == "done" else row.state.partition(":")[0]
        args: dict[str, Any] = {"device": devices[row.device], "batch size": row.stop - row.start}
        args |= {"start": row.start, "attempt": row.attempt, "state": row.state}
        events.append(piece(name, 1, row.device + 1, row.begun_s, row.ended_s, args))
    for at, name, start, from_s, to_s in spans:
        args = {"device": devices[at], "start": start}
        events.append(piece(name, 2 + at, _TRACKS[name], from_s, to_s, args))
    return events
