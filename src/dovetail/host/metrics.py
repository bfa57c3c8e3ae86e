"""What became of each program, and of a whole run: from the journal's events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
)


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
    status: str = "waiting"
    why: str = ""


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
    """Follows a run, step by step."""

    def __init__(self, cores: int) -> None:
        self.rows: dict[str, ProgramFigures] = {}
        self.stretches: dict[str, list[CoreStretch]] = {}
        self.updates: list[tuple[float, str]] = []
        self.failures: list[tuple[float, str]] = []
        self._cores = cores
        self._has: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._core_s = 0.0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if not isinstance(event, Arrived) and getattr(event, "job", None) not in self.rows:
                continue  # nothing of a program, or of none that is known
            match event:
                case Arrived():
                    asked, priority = event.facts.get("cores", 0), event.facts.get("priority", 0)
                    row = ProgramFigures(program=event.job, image=event.of, asked=asked, priority=priority, arrived_s=t)
                    self.rows[event.job] = row
                case Asked(what="resize"):
                    self.updates.append((t, event.job))
                case Start():
                    self._started(t, event)
                case Resume() | Resize() | Pause():
                    self._changed(t, event)
                case Finished() | Failed():
                    self._ended(t, event)
                case Complete():
                    self._closed(t, event.job, "completed", "")
                case Reject():
                    self._closed(t, event.job, "rejected", event.why)
                case Defer():
                    self.rows[event.job].why = event.why

    def _started(self, t: float, start: Start) -> None:
        row = self.rows[start.job]
        if row.started_s is None:
            row.started_s, row.first_run_s, row.first_cores = t, t - row.arrived_s, len(start.devices)
        row.status, row.why = "running", start.why
        row.waiting_s += t - start.ready_s
        self._has[start.job] = (t, start.devices)

    def _changed(self, t: float, event: Pause | Resume | Resize) -> None:
        self._pass(t, event.job)
        row = self.rows[event.job]
        row.status, row.why = ("paused" if isinstance(event, Pause) else "running"), event.why
        row.pauses += isinstance(event, Pause)
        row.resizes += isinstance(event, Resize)
        self._has[event.job] = (t, () if isinstance(event, Pause) else event.devices)

    def _ended(self, t: float, event: Finished | Failed) -> None:
        self._pass(t, event.job)
        self._has.pop(event.job, None)
        row = self.rows[event.job]
        row.ended_s = t
        if isinstance(event, Failed):
            row.failures += 1
            row.status, row.why = "failed", event.why
            self.failures.append((t, event.job))

    def _pass(self, t: float, job: str) -> None:
        """Time passes for a program since its last change."""
        since, cores = self._has.get(job, (t, ()))
        row = self.rows[job]
        if cores:
            row.service_s += t - since
            row.core_s += len(cores) * (t - since)
            self._core_s += len(cores) * (t - since)
        else:
            row.waiting_s += t - since
        if t > since:
            self.stretches.setdefault(job, []).append(CoreStretch(since, t, cores))

    def _closed(self, t: float, job: str, status: str, why: str) -> None:
        row = self.rows[job]
        row.status, row.why = status, why
        if status == "completed" and row.started_s is not None:
            row.total_s, row.turnaround_s = t - row.started_s, t - row.arrived_s

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
