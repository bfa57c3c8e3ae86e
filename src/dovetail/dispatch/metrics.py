"""What a run did: per device, as figures, as a log of chunks, and as a trace that Perfetto opens."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.journal import Reader
from dovetail.core.loop.replay import Agreement, replay_journal
from dovetail.core.results.run import JournalFile, Run
from dovetail.dispatch.bounds import busy_time_s
from dovetail.dispatch.chunk import ChunkRow
from dovetail.dispatch.export import Span, write_trace
from dovetail.dispatch.policies.base import Policy
from dovetail.dispatch.replay import scheduler_for
from dovetail.dispatch.scheduler import ChunkScheduler


class DispatchRun(Run):
    """One batch over devices, real or simulated: its figures, and the journal behind them."""

    def __init__(self, journal: JournalFile, metrics: dict[str, Any], policy: Policy | None = None) -> None:
        """`policy`: the user's own, if the journal cannot tell how to make it again."""
        super().__init__(journal, metrics)
        self._policy = policy

    @property
    def makespan_s(self) -> float:
        """Seconds from the beginning until the last chunk was there."""
        return float(self.metrics["makespan_s"])

    @property
    def efficiency(self) -> float | None:
        """Items per second over the sum of what the devices reach alone; None if that is not known."""
        share: float | None = self.metrics["efficiency"]
        return share

    @property
    def items(self) -> dict[str, int]:
        """How many items each device did."""
        return dict(self.metrics["items"])

    def replay(self) -> Agreement:
        """Decide the run again, from what was seen, and compare with what is recorded."""
        own: Any = None if self._policy is None else scheduler_for(Reader(self.journal), self._policy)
        return replay_journal(self.journal, own)

    def _headline(self) -> str:
        done, chunks = sum(self.items.values()), self.metrics["chunks"]
        above = "" if self.gap is None else f" ({100 * self.gap:.1f} % above the bound)"
        work = f"{done:,} items in {chunks:,} chunk{'s' * (chunks != 1)}"
        return f"{self.metrics['policy']}, {work}, makespan {self.makespan_s:,.6g} s{above}"


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


class BatchReport(Struct, frozen=True):
    """`efficiency`: items per second over the sum of what the devices reach alone; None while that is not known.

    `total` is how many items the batch has, of which `items` were done; None if nobody knew before the end. `way`:
    which devices did it, and what is known of other ways, if that was chosen.
    """

    items: int
    wall_s: float
    devices: list[DeviceReport]
    rows: list[ChunkRow]
    begun_s: float = 0.0
    spans: list[Span] = []
    total: int | None = None
    way: str = ""

    @property
    def rate(self) -> float:
        return self.items / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def efficiency(self) -> float | None:
        alone = [device.alone for device in self.devices]
        return self.rate / sum(alone) if alone and all(alone) else None

    def metrics(self, policy: str) -> dict[str, Any]:
        """The figures of the run as a plain dictionary."""
        figures: dict[str, Any] = {
            "policy": policy,
            "makespan_s": self.wall_s,
            "rate": self.rate,
            "efficiency": self.efficiency,
        }
        figures |= {"chunks": len(self.rows), "items": {device.name: device.items for device in self.devices}}
        return {**figures, "way": self.way} if self.way else figures

    def write_trace(self, path: str | Path) -> None:
        """Write the chunks in Chrome's trace format, one track per device."""
        write_trace(path, [device.name for device in self.devices], self.rows, self.spans, self.begun_s)


def report_of(
    scheduler: ChunkScheduler,
    names: Sequence[str],
    begun_s: float,
    ended_s: float,
    spans: Sequence[Span] = (),
    way: str = "",
) -> BatchReport:
    """The figures of a run that has ended, from its log."""
    wall_s = max(ended_s - begun_s, 1e-9)
    devices, log = [], scheduler.log
    for i, (name, state) in enumerate(zip(names, scheduler.view.devices, strict=True)):
        rows = [row for row in log if row.device == i]
        items = sum(row.stop - row.start for row in rows if row.state == "done")
        busy_s = busy_time_s((row.begun_s, row.ended_s) for row in rows)
        alone = state.curve.rate / state.factor if state.curve is not None and state.factor > 0 else 0.0
        rate = items / busy_s if busy_s else 0.0
        share = min(1.0, busy_s / wall_s)
        devices.append(DeviceReport(name, items, len(rows), busy_s, share, rate, alone, state.best))
    items, total = sum(device.items for device in devices), scheduler.view.total
    whole = None if total == inf else int(total)
    return BatchReport(items, wall_s, devices, log, begun_s, list(spans), whole, way)
