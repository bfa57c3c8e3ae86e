"""Journals of levels that decide in rounds: their rows told as single arrivals, starts and ends, as reports take them.

Which columns are read is said in docs/journal.md; a level that writes them gets its reports for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Event, Failed, Finished, Reject, Rows, Start
from dovetail.core.journal import Reader, Recorded
from dovetail.report.words import words_for


class _OpenJob(Struct):
    """A job that is not closed yet: since when it waits, or which of its leases runs."""

    name: str
    kind: str
    since_s: float
    leases: int = 0
    running: str = ""


class Rounds(Reader):
    """A journal of rows as one of events. A job has the word of its level and its number for a name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._words = words_for(self.header.level)
        facts = self.header.facts
        self._kinds = [_kind(named) for named in facts.get("kinds", [])]
        self._why = facts.get("why", [])
        self._restart_s = float(facts.get("restart_s", 0.0))
        window = facts.get("window")
        self.window: tuple[int, int] | None = (window[0], window[1]) if window else None
        self.unmeasured: set[str] = set()  # jobs that are there and outside the window
        self._open: dict[int, _OpenJob] = {}
        self._lost: dict[int, str] = {}  # jobs that lose their devices in this step, and why
        self._shared = 0
        self._now = 0.0

    def steps(self) -> Iterator[tuple[int, float, list[Any]]]:
        """Arrivals come at the instant when they happened, which may lie before the step that tells of them."""
        self._open.clear()
        for n, t, events in super().steps():
            self._now = t
            self._lost.clear()
            try:
                told = [event for row in events for event in self._tell(row)]
            except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise InputError(f"{self.path}: step {n} at {t} s: rows that a report cannot read ({what})") from None
            early = [event for event in told if isinstance(event, tuple)]
            for at_s, event in early:
                yield n, at_s, [event]
            yield n, t, [event for event in told if not isinstance(event, tuple)]
            self.unmeasured.difference_update(event.job for event in told if isinstance(event, Complete | Reject))

    def waiting_since(self) -> list[float]:
        """Since when each job waits that is open and does not run."""
        return [opened.since_s for opened in self._open.values() if not opened.running]

    def _tell(self, event: Recorded) -> Iterator[Event | tuple[float, Event]]:
        if not isinstance(event, Rows):
            yield event
        elif event.of == "arrived":
            yield from self._arrived(event.columns)
        elif event.of == "started":
            yield from self._started(event.columns)
        elif event.of == "stopped":
            yield from map(self._stop, event.columns["id"])
        elif event.of == "completed":
            yield from (Complete(self._open.pop(job).name) for job in event.columns["id"])
        elif event.of == "rejected":
            rows = zip(event.columns["id"], event.columns["why"], strict=True)
            yield from (Reject(self._open.pop(job).name, why) for job, why in rows)
        elif event.of == "failed":
            for device, jobs in zip(event.columns["device"], event.columns.get("jobs", []), strict=True):
                self._lost |= dict.fromkeys(jobs, f"{self._words.device} {device} failed")

    def _arrived(self, columns: Mapping[str, Any]) -> Iterator[tuple[float, Event]]:
        count = len(columns["id"])
        names, due = columns.get("name") or [""] * count, columns.get("due_s") or [None] * count
        rows = zip(columns["id"], columns["kind"], columns["at_s"], names, due, strict=True)
        for job, kind, at_s, name, due_s in rows:
            named = f"{self._words.job} {job} {name}".rstrip()
            self._open[job] = _OpenJob(named, self._kinds[kind], at_s)
            if self.window and not self.window[0] <= job < self.window[1]:
                self.unmeasured.add(named)
            yield at_s, Arrived(named, self._kinds[kind], due_s=due_s)

    def _started(self, columns: Mapping[str, Any]) -> Iterator[Event]:
        count = len(columns["id"])
        besides = columns.get("beside") or [-1] * count
        prices = columns.get("setup_s") or [self._restart_s] * count
        batches: dict[frozenset[int], int] = {}
        rows = zip(columns["id"], columns["devices"], besides, columns["why"], prices, strict=True)
        for job, devices, beside, why, price_s in rows:
            opened, reason, batch = self._open[job], self._why[why] if self._why else "", 0
            opened.leases += 1
            opened.running = f"{self._words.task} {opened.leases}"
            if beside >= 0:
                reason += f"; it shares with {self._open[beside].name}"
                pair = frozenset((job, beside))
                if pair not in batches:
                    self._shared += 1
                    batches[pair] = self._shared
                batch = batches[pair]
            yield Start(
                opened.name,
                opened.running,
                opened.kind,
                tuple(devices),
                opened.since_s,
                0.0,
                reason,
                price_s,
                None,
                batch,
            )

    def _stop(self, job: int) -> Event:
        opened = self._open[job]
        task, opened.running, opened.since_s = opened.running, "", self._now
        why = self._lost.get(job)
        return Finished(opened.name, task) if why is None else Failed(opened.name, task, why)


def _kind(named: Any) -> str:
    return named if isinstance(named, str) else str(named[0])


def unrolled(reader: Reader) -> Reader:
    """The journal as one of events: as it is, unless it is written in rows."""
    first = next(iter(reader), None)
    return Rounds(reader.path) if first is not None and isinstance(first.event, Rows) else reader
