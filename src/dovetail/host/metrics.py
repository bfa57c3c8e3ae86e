"""What became of each program, and of a whole run: from the journal's events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

Status = Literal["waiting", "running", "paused", "stopping", "completed", "rejected"]
_WANTED: dict[str, Literal["", "run", "pause", "stop"]] = {"running": "run", "paused": "pause", "stopping": "stop"}


class CoreStretch(Struct, frozen=True):
    """A program had so many cores from then to then; none: it was paused."""

    from_s: float
    to_s: float
    cores: tuple[int, ...]


class ProgramFigures(Struct, kw_only=True):
    """One program. `waiting_s` is in the queue or paused, `service_s` running, `total_s` from first start to end."""

    program: str
    image: str
    asked: int
    priority: int
    arrived_s: float
    started_s: float | None = None
    ended_s: float | None = None
    first_run_s: float | None = None
    waiting_s: float = 0.0
    total_s: float | None = None
    service_s: float = 0.0
    turnaround_s: float | None = None
    core_s: float = 0.0
    first_cores: int = 0
    resizes: int = 0
    pauses: int = 0
    failures: int = 0
    status: Status = "waiting"
    why: str = ""


class ProgramStatus(ProgramFigures, kw_only=True):
    """And what is known of it while it goes on: what it asks for now, what it has, and since when."""

    asks: dict[str, float]  # cores and priority, as its user last wanted them
    devices: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    since_s: float | None = None  # its last change, while an attempt has begun and its end is not known
    attempts: int = 0
    closed_s: float | None = None
    cancelled: bool = False
    held: bool = False  # whether its user has paused it, and not resumed it

    def figures(self) -> ProgramFigures:
        """What is told of it in the end."""
        return ProgramFigures(**{name: getattr(self, name) for name in ProgramFigures.__struct_fields__})

    @property
    def wanted(self) -> Literal["", "run", "pause", "stop"]:
        """What ought to be, of an attempt that has begun and whose end is not known."""
        return "" if self.since_s is None else _WANTED[self.status]

    def until(self, now: float) -> tuple[float, float]:
        """Seconds that it has run, and core-seconds that it was given."""
        on = now - self.since_s if self.devices and self.since_s is not None else 0.0
        return self.service_s + on, self.core_s + on * len(self.devices)

    def waited_s(self, now: float) -> float:
        """In the queue or paused."""
        return (now if self.closed_s is None else self.closed_s) - self.arrived_s - self.until(now)[0]


class Totals(Struct, frozen=True, kw_only=True):
    """A whole run, over the programs that were completed."""

    arrived: int
    completed: int
    rejected: int
    makespan_s: float
    mean_first_run_s: float
    mean_turnaround_s: float
    mean_total_s: float
    mean_waiting_s: float
    mean_service_s: float
    core_use: float
    throughput_per_h: float
    resizes: int
    pauses: int

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


class Programs:
    """Follows a run, step by step: what became of every program, and what is known of it now."""

    def __init__(self, cores: int) -> None:
        self.rows: dict[str, ProgramStatus] = {}
        self.stretches: dict[str, list[CoreStretch]] = {}
        self.updates: list[tuple[float, str]] = []
        self.failures: list[tuple[float, str]] = []
        self.steps = 0
        self._cores = cores
        self._core_s = 0.0

    def open(self) -> list[ProgramStatus]:
        """Those that are not closed."""
        return [row for row in self.rows.values() if row.closed_s is None]

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.steps = n
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(t, event)
            elif (row := self.rows.get(getattr(event, "job", ""))) is not None:
                self._follow(t, event, row)

    def _arrived(self, t: float, event: Arrived) -> None:
        asks = {"cores": event.facts.get("cores", 0), "priority": event.facts.get("priority", 0)}
        self.rows[event.job] = ProgramStatus(
            program=event.job, image=event.of, asked=asks["cores"], priority=asks["priority"], arrived_s=t, asks=asks
        )

    def _follow(self, t: float, event: Any, row: ProgramStatus) -> None:
        match event:
            case Asked():
                self._asked(t, event, row)
            case Start():
                if row.started_s is None:
                    row.started_s, row.first_run_s, row.first_cores = t, t - row.arrived_s, len(event.devices)
                row.attempts += 1
                row.waiting_s += t - event.ready_s
                row.status, row.why, row.devices, row.since_s = "running", event.why, event.devices, t
                row.gpus = event.gpus
            case Resume() | Resize() | Pause():
                self._pass(t, row)
                paused = isinstance(event, Pause)
                row.pauses += paused
                row.resizes += isinstance(event, Resize)
                row.status, row.why, row.since_s = "paused" if paused else "running", event.why, t
                row.devices = () if isinstance(event, Pause) else event.devices
            case Stop():
                row.status, row.why = "stopping", event.why
            case Finished() | Failed():
                self._pass(t, row)
                row.devices, row.gpus, row.since_s, row.ended_s = (), (), None, t
                row.status, row.why = "waiting", event.why if isinstance(event, Failed) else ""
                if isinstance(event, Failed):
                    row.failures += 1
                    self.failures.append((t, event.job))
            case Complete():
                row.status, row.why, row.closed_s = "completed", "", t
                if row.started_s is not None:
                    row.total_s, row.turnaround_s = t - row.started_s, t - row.arrived_s
            case Reject():
                row.status, row.why, row.closed_s, row.cancelled = "rejected", event.why, t, event.cancelled
            case Defer():
                row.why = event.why

    def _asked(self, t: float, event: Asked, row: ProgramStatus) -> None:
        match event:
            case Asked(what="resize" | "priority", value=float() | int() as value):
                row.asks["cores" if event.what == "resize" else "priority"] = value
                if event.what == "resize":
                    self.updates.append((t, event.job))
            case Asked(what="pause" | "resume" | "requeue" | "cancel"):
                row.held = event.what == "pause"
            case Asked(what="edit", facts=facts) if row.status == "waiting":
                row.asks = {name: facts.get(name, 0) for name in row.asks}

    def _pass(self, t: float, row: ProgramStatus) -> None:
        """Time passes for a program since its last change."""
        since = t if row.since_s is None else row.since_s
        if row.devices:
            row.service_s += t - since
            row.core_s += len(row.devices) * (t - since)
            self._core_s += len(row.devices) * (t - since)
        else:
            row.waiting_s += t - since
        if t > since:
            self.stretches.setdefault(row.program, []).append(CoreStretch(since, t, row.devices))

    def totals(self, end_s: float | None = None) -> Totals:
        """The run from time 0 to its last end."""
        done = [row for row in self.rows.values() if row.status == "completed"]
        span = max((row.ended_s or 0.0 for row in self.rows.values()), default=0.0) if end_s is None else end_s

        ran = [row for row in done if row.started_s is not None]  # all of them, unless the record is damaged

        def mean(name: str) -> float:
            return sum(getattr(row, name) for row in ran) / len(ran) if ran else 0.0

        return Totals(
            arrived=len(self.rows),
            completed=len(done),
            rejected=sum(row.status == "rejected" for row in self.rows.values()),
            makespan_s=span,
            mean_first_run_s=mean("first_run_s"),
            mean_turnaround_s=mean("turnaround_s"),
            mean_total_s=mean("total_s"),
            mean_waiting_s=mean("waiting_s"),
            mean_service_s=mean("service_s"),
            core_use=self._core_s / (self._cores * span) if span else 0.0,
            throughput_per_h=3600 * len(done) / span if span else 0.0,
            resizes=sum(row.resizes for row in self.rows.values()),
            pauses=sum(row.pauses for row in self.rows.values()),
        )


def means_by_priority(rows: Iterable[ProgramFigures]) -> dict[int, dict[str, float]]:
    """The mean times of the completed programs of each priority, the most urgent first."""
    groups: dict[int, list[ProgramFigures]] = {}
    for row in rows:
        if row.status == "completed" and row.started_s is not None:
            groups.setdefault(row.priority, []).append(row)
    names = ("total_s", "first_run_s", "turnaround_s")
    return {
        priority: {
            f"mean_{name}": sum(getattr(row, name) for row in groups[priority]) / len(groups[priority])
            for name in names
        }
        for priority in sorted(groups)
    }
