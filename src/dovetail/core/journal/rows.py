"""Rows told as single events: what a level wrote column by column, as those take it who read one event at a time.

Which columns are read is said in docs/journal.md; a level that writes them is checked, explained and drawn for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dovetail.core.events import Added, Arrived, Complete, Event, Failed, Finished, Reject, Rows, Start
from dovetail.core.resources import Device, DeviceType
from dovetail.core.words import Words

_Place = Annotated[int, Meta(ge=0)]


class _Names(Struct):
    """What the numbers in columns stand for: the header's facts, as far as rows need them."""

    kinds: list[str | list[Any]] = []
    types: list[str] = []
    why: list[str] = []
    restart_s: float = 0.0


class _Arrivals(Struct):
    id: list[int]
    kind: list[_Place]
    at_s: list[float]
    name: list[str] = []
    due_s: list[float | None] = []


class _Starts(Struct):
    id: list[int]
    devices: list[tuple[int, ...]]
    why: list[_Place]
    beside: list[int] = []
    setup_s: list[float] = []


class _Ids(Struct):
    id: list[int]


class _Ends(_Ids):
    at_s: list[float] = []


class _Rejections(_Ids):
    why: list[str]


class _Failures(Struct):
    device: list[int]
    jobs: list[list[int]]


class _Joined(Struct):
    device: list[int]
    on: list[_Place]
    server: list[int]


class _Models(Struct):
    model: list[str]


class _Lives(Struct):
    """The whole life of jobs that have one task each."""

    from_s: list[float]
    to_s: list[float]
    kind: list[_Place | str]
    id: list[int] = []
    job: list[str] = []
    device: list[int] = []
    devices: list[tuple[int, ...]] = []
    ready_s: list[float] = []
    why: list[_Place | str] = []
    outcome: list[str] = []
    unused: list[bool] = []  # it ended well, but nobody needed it any more


class _OpenJob(Struct):
    """A job that is not closed yet: since when it waits, or which of its tasks runs."""

    name: str
    kind: str
    since_s: float
    tasks: int = 0
    running: str = ""


Told = tuple[float, Any]  # an instant, and the event


class Unroller:
    """Follows a run and tells its rows as single events, each with its time: arrivals, and whole lives, are told later
    than they were. A job has the word of its level and its number for a name.

    >>> unroller = Unroller(Words(), {"kinds": ["cnn"], "why": ["its turn"]})
    >>> list(unroller.tell(1, 9.0, Rows("arrived", {"id": [4], "kind": [0], "at_s": [7.5]})))[0][1].job
    'job 4'
    >>> t, start = next(unroller.tell(1, 9.0, Rows("started", {"id": [4], "devices": [[0, 1]], "why": [0]})))
    >>> start.task, start.kind, start.devices, start.ready_s, start.why
    ('task 1', 'cnn', (0, 1), 7.5, 'its turn')
    """

    def __init__(self, words: Words, facts: Mapping[str, Any]) -> None:
        """Raises `ValueError` if the facts do not name what rows refer to."""
        names = msgspec.convert(facts, _Names)
        self._words = words
        self._kinds, self._types = [_kind(named) for named in names.kinds], names.types
        self._why, self._restart_s = names.why, names.restart_s
        self._open: dict[int, _OpenJob] = {}
        self._lost: dict[int, str] = {}  # jobs that lose their devices in this step, and why
        self._shared = self._n = 0

    def tell(self, n: int, t: float, rows: Rows) -> Iterator[Told]:
        """Rows of kinds that only the level knows stay what they are. Raises `ValueError` if columns make no sense."""
        if n != self._n:
            self._n = n
            self._lost.clear()
        of, columns = rows.of, rows.columns
        if of == "arrived":
            yield from self._arrived(columns)
        elif of == "started":
            yield from ((t, start) for start in self._started(columns))
        elif of == "stopped":
            yield from ((t, self._stop(t, job)) for job in msgspec.convert(columns, _Ids).id)
        elif of in ("completed", "rejected", "given_up", "cancelled"):
            yield from self._closed(t, of, columns)
        elif of == "joined":
            yield t, self._joined(columns)
        elif of == "ran":
            yield from self._ran(columns)
        else:
            self._note(of, columns)
            yield t, rows

    def _closed(self, t: float, of: str, columns: Mapping[str, Any]) -> Iterator[Told]:
        if of == "completed":
            ends = msgspec.convert(columns, _Ends)
            for job, at_s in zip(ends.id, ends.at_s or [t] * len(ends.id), strict=True):
                yield at_s, Complete(self._close(job).name)
        elif of == "cancelled":
            for job in msgspec.convert(columns, _Ids).id:
                yield t, Reject(self._close(job).name, "it was cancelled", cancelled=True)
        else:
            rejected = msgspec.convert(columns, _Rejections)
            for job, why in zip(rejected.id, rejected.why, strict=True):
                yield t, Reject(self._close(job).name, why)

    def _note(self, of: str, columns: Mapping[str, Any]) -> None:
        """What makes a difference to what is told next."""
        if of == "failed":
            failed = msgspec.convert(columns, _Failures)
            for device, jobs in zip(failed.device, failed.jobs, strict=True):
                self._lost |= dict.fromkeys(jobs, f"{self._words.device} {device} failed")
        elif of == "exited":
            exited = msgspec.convert(columns, _Rejections)
            self._lost |= dict(zip(exited.id, exited.why, strict=True))
        elif of == "kinds":
            self._kinds += msgspec.convert(columns, _Models).model

    def _joined(self, columns: Mapping[str, Any]) -> Added:
        c = msgspec.convert(columns, _Joined)
        devices = (
            Device(device, _place(self._types, on, "type"), server)
            for device, on, server in zip(c.device, c.on, c.server, strict=True)
        )
        return Added("they joined", tuple(devices), {name: DeviceType(name) for name in self._types})

    def _arrived(self, columns: Mapping[str, Any]) -> Iterator[Told]:
        c = msgspec.convert(columns, _Arrivals)
        names, due = c.name or [""] * len(c.id), c.due_s or [None] * len(c.id)
        for job, kind, at_s, name, due_s in zip(c.id, c.kind, c.at_s, names, due, strict=True):
            named, of = self._named(job, name), _place(self._kinds, kind, "kind")
            self._open[job] = _OpenJob(named, of, at_s)
            yield at_s, Arrived(named, of, due_s=due_s, facts={"id": job})

    def _started(self, columns: Mapping[str, Any]) -> Iterator[Start]:
        c = msgspec.convert(columns, _Starts)
        besides, prices = c.beside or [-1] * len(c.id), c.setup_s or [self._restart_s] * len(c.id)
        batches: dict[frozenset[int], int] = {}
        for job, devices, beside, why, price_s in zip(c.id, c.devices, besides, c.why, prices, strict=True):
            opened, batch = self._find(job), 0
            reason = _place(self._why, why, "reason") if self._why else ""
            opened.tasks += 1
            opened.running = f"{self._words.task} {opened.tasks}"
            if beside >= 0:
                reason += f"; it shares with {self._find(beside).name}"
                pair = frozenset((job, beside))
                if pair not in batches:
                    self._shared += 1
                    batches[pair] = self._shared
                batch = batches[pair]
            ready_s = opened.since_s
            yield Start(
                opened.name, opened.running, opened.kind, devices, ready_s, 0.0, reason, setup_s=price_s, batch=batch
            )

    def _stop(self, t: float, job: int) -> Event:
        opened = self._find(job)
        task, opened.running, opened.since_s = opened.running, "", t
        why = self._lost.get(job)
        return Finished(opened.name, task) if why is None else Failed(opened.name, task, why)

    def _ran(self, columns: Mapping[str, Any]) -> Iterator[Told]:
        c = msgspec.convert(columns, _Lives)
        count = len(c.from_s)
        jobs = c.job or [self._named(job) for job in c.id]
        devices = c.devices or [(device,) for device in c.device]
        whys, outcomes, unused = c.why or [""] * count, c.outcome or [""] * count, c.unused or [False] * count
        others = {key: column for key, column in columns.items() if key not in _Lives.__struct_fields__}
        rows = zip(jobs, devices, c.kind, c.ready_s or c.from_s, c.from_s, c.to_s, whys, outcomes, unused, strict=True)
        for i, (job, on, kind, ready_s, from_s, to_s, why, outcome, ended) in enumerate(rows):
            of = kind if isinstance(kind, str) else _place(self._kinds, kind, "kind")
            reason = why if isinstance(why, str) else _place(self._why, why, "reason")
            task = self._words.task
            yield ready_s, Arrived(job, of, facts={key: _place(column, i, key) for key, column in others.items()})
            yield from_s, Start(job, task, of, on, ready_s, to_s - from_s, reason)
            yield to_s, Failed(job, task, outcome) if outcome and not ended else Finished(job, task)
            yield to_s, Reject(job, outcome) if outcome else Complete(job)

    def _named(self, job: int, name: str = "") -> str:
        return f"{self._words.job} {job} {name}".rstrip()

    def _find(self, job: int) -> _OpenJob:
        if job not in self._open:
            raise ValueError(f"{self._named(job)} is not there: it has not arrived, or was completed or rejected")
        return self._open[job]

    def _close(self, job: int) -> _OpenJob:
        opened = self._find(job)
        del self._open[job]
        return opened


def _kind(named: str | list[Any]) -> str:
    if isinstance(named, str):
        return named
    if not named:
        raise ValueError("kinds: found a list without a name")
    return str(named[0])


def _place(column: Any, place: int, what: str) -> Any:
    if not isinstance(column, list) or place >= len(column):
        raise ValueError(f"there is no {what} {place}")
    return column[place]
