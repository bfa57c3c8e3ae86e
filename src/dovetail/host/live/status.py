"""What is known of every program, from the steps of the loop alone: of a live run, and of its recorded past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.events import (
    Arrived,
    Asked,
    Complete,
    Defer,
    Failed,
    Finished,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
    Stop,
)

State = Literal["waiting", "running", "paused", "stopping", "completed", "failed", "cancelled"]
CLOSED = frozenset({"completed", "failed", "cancelled"})


class ProgramStatus(Struct):
    """One program. Times are seconds since the service first began."""

    job: str
    arrived_s: float
    facts: dict[str, Any]
    state: State = "waiting"
    why: str = ""
    devices: tuple[int, ...] = ()
    attempts: int = 0
    pauses: int = 0
    resizes: int = 0
    first_start_s: float | None = None
    ended_s: float | None = None
    service_s: float = 0.0
    core_s: float = 0.0
    since_s: float = 0.0
    wanted: Literal["", "run", "pause", "stop"] = ""  # of an attempt that has begun and whose end is not known
    end: Literal["", "completed", "failed", "cancelled"] = ""

    def until(self, now: float) -> tuple[float, float]:
        """Seconds that it has run, and core-seconds that it was given."""
        on = now - self.since_s if self.devices else 0.0
        return self.service_s + on, self.core_s + on * len(self.devices)

    def waited_s(self, now: float) -> float:
        """In the queue or paused."""
        return (now if self.ended_s is None else self.ended_s) - self.arrived_s - self.until(now)[0]

    def _hold(self, devices: tuple[int, ...], now: float) -> None:
        self.service_s, self.core_s = self.until(now)
        self.devices, self.since_s = devices, now


class StatusBoard:
    """All programs, in the order of their arrival."""

    def __init__(self) -> None:
        self.rows: dict[str, ProgramStatus] = {}
        self.steps = 0
        self.now = 0.0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.steps, self.now = n, t
        for event in events:
            if isinstance(event, Arrived):
                self.rows[event.job] = ProgramStatus(event.job, t, event.facts)
            elif (row := self.rows.get(getattr(event, "job", ""))) is not None:
                _follow(row, event, t)

    def open(self) -> list[ProgramStatus]:
        """Programs that are not closed, or still have something running."""
        return [row for row in self.rows.values() if row.state not in CLOSED]


def _follow(row: ProgramStatus, event: Any, now: float) -> None:
    match event:
        case Start():
            row.attempts += 1
            row.first_start_s = now if row.first_start_s is None else row.first_start_s
            row.wanted, row.state, row.why = "run", "running", event.why
            row._hold(event.devices, now)
        case Resume() | Resize():
            row.resizes += isinstance(event, Resize)
            row.wanted, row.state, row.why = "run", "running", event.why
            row._hold(event.devices, now)
        case Pause():
            row.pauses += 1
            row.wanted, row.state, row.why = "pause", "paused", event.why
            row._hold((), now)
        case Stop():
            row.wanted, row.state, row.why = "stop", "stopping", event.why
        case Finished() | Failed():
            row.wanted = ""
            row._hold((), now)
            if not row.end:
                row.state, row.why = "waiting", event.why if isinstance(event, Failed) else ""
        case Defer():
            row.why = event.why
        case Asked() if event.what in ("priority", "resize") and event.value is not None:
            row.facts = row.facts | {"priority" if event.what == "priority" else "cores": int(event.value)}
        case Complete():
            row.end, row.why = "completed", ""
        case Reject():
            row.end, row.why = "cancelled" if event.cancelled else "failed", event.why
    if row.end and not row.wanted and row.ended_s is None:
        row.state, row.ended_s = row.end, now
