"""What a run did: per device, as figures, as a log of chunks, as a journal, and as a trace that Perfetto opens."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.files import written_whole
from dovetail.core.metrics import Figures
from dovetail.dispatch import recording
from dovetail.dispatch.ledger import Ledger, Row

_US = 1e6
_TRACKS = {"copy in": 1, "compute": 2, "copy out": 3}


class DeviceReport(Struct, frozen=True):
    """`rate`: items per second while busy. `alone`: what its curve says it reaches alone; 0 when not known."""

    name: str
    items: int
    chunks: int
    busy_s: float
    busy: float
    rate: float
    alone: float
    size: int


class Report(Struct, frozen=True):
    """`efficiency`: items per second over the sum of what the devices reach alone; None while that is not known.

    `total` is how many items the batch has, of which `items` were done; None if nobody knew before the end.
    """

    items: int
    wall_s: float
    devices: list[DeviceReport]
    rows: list[Row]
    begun_s: float = 0.0
    spans: list[tuple[int, str, int, float, float]] = []
    total: int | None = None
    policy: str = ""

    @property
    def rate(self) -> float:
        return self.items / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def efficiency(self) -> float | None:
        alone = [device.alone for device in self.devices]
        return self.rate / sum(alone) if alone and all(alone) else None

    def write_journal(self, path: str | Path) -> Figures:
        """Write the run as a journal, which `dovetail check` and `dovetail report` read."""
        run = recording.Run(
            policy=self.policy,
            mode=recording.LIVE,
            devices=[device.name for device in self.devices],
            peaks=[device.alone for device in self.devices],
            items=self.total,
            rows=self.rows,
            begun_s=self.begun_s,
            ended_s=self.begun_s + self.wall_s,
        )
        return recording.write(Path(path), run)

    def write_trace(self, path: str | Path) -> None:
        """Write the chunks in Chrome's trace format, one track per device."""
        with written_whole(Path(path)) as file:
            file.write(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": self.trace()}) + b"\n")

    def trace(self) -> list[dict[str, Any]]:
        """The events of the trace: a name per device, a slice per chunk."""
        events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dispatch"}}]
        for i, device in enumerate(self.devices):
            events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": i + 1, "args": {"name": device.name}})
        for row in self.rows:
            name = "task" if row.state == "done" else row.state.partition(":")[0]
            args: dict[str, Any] = {"device": self.devices[row.device].name, "batch size": row.stop - row.start}
            args |= {"start": row.start, "attempt": row.attempt, "state": row.state}
            events.append(self._slice(name, 1, row.device + 1, row.begun_s, row.ended_s, args))
        for at, name, start, begun_s, ended_s in self.spans:
            args = {"device": self.devices[at].name, "start": start}
            events.append(self._slice(name, 2 + at, _TRACKS[name], begun_s, ended_s, args))
        return events

    def _slice(
        self, name: str, pid: int, tid: int, begun_s: float, ended_s: float, args: dict[str, Any]
    ) -> dict[str, Any]:
        begin_us, length_us = (begun_s - self.begun_s) * _US, (ended_s - begun_s) * _US
        times = {"ts": round(begin_us, 3), "dur": round(length_us, 3)}
        return {"ph": "X", "name": name, "cat": "chunk", "pid": pid, "tid": tid, **times, "args": args}


def report_of(
    ledger: Ledger, names: Sequence[str], begun_s: float, ended_s: float, spans: Sequence[Any] = ()
) -> Report:
    """The figures of a run that has ended, from its log."""
    wall_s = max(ended_s - begun_s, 1e-9)
    devices, log = [], ledger.log
    for i, (name, state) in enumerate(zip(names, ledger.view.devices, strict=True)):
        rows = [row for row in log if row.device == i]
        items = sum(row.stop - row.start for row in rows if row.state == "done")
        busy_s = _union_s(rows)
        alone = state.curve.rate / state.factor if state.curve is not None and state.factor > 0 else 0.0
        rate = items / busy_s if busy_s else 0.0
        share = min(1.0, busy_s / wall_s)
        devices.append(DeviceReport(name, items, len(rows), busy_s, share, rate, alone, state.best))
    items, total = sum(device.items for device in devices), ledger.view.total
    whole = None if total == inf else int(total)
    return Report(items, wall_s, devices, log, begun_s, list(spans), whole, recording.name_of(ledger.policy))


def _union_s(rows: Sequence[Row]) -> float:
    """How long at least one chunk was under way."""
    busy, end = 0.0, float("-inf")
    for row in sorted(rows, key=lambda row: row.begun_s):
        if row.ended_s > end:
            busy += row.ended_s - max(row.begun_s, end)
            end = row.ended_s
    return busy
