"""Decisions that can be had again: a scheduler that logs all that it is asked, and one that goes by the log."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.dispatch.chunk import Chunk, ResultFormError
from dovetail.dispatch.inputs.cursor import Cursor, LocalCursor
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.policies.base import DeviceState, Policy
from dovetail.dispatch.scheduler import ChunkScheduler

Call = tuple[
    str, int, float, int, int, float
]  # what, device, the clock's reading, range, and a number that goes with it


class RecordedScheduler(ChunkScheduler):
    """Decides the same, and logs what it is asked and told, in order, with what it answers.

    | call | its number |
    |---|---|
    | `ask`: a device is free; the range is the answer, empty if it gets none | items that nobody has yet |
    | `done`, `late` (another was first) | seconds, as the device is charged for them |
    | `failed`, `lost` (and the device with it), `refused` (for good), `memory` (it did not fit) | |
    | `claim`: the result was stored, and then the chunk failed | |
    | `gone`: nothing more goes to this device; `stop`: nothing more goes to any | |
    | `away`, `back`: the device is busy with another batch, or free again | until when about |
    """

    def __init__(self, cursor: Cursor, policy: Policy, devices: list[DeviceState], **options: Any) -> None:
        self._left = _Seen(cursor)
        super().__init__(self._left, policy, devices, **options)
        for state in devices:  # several runs may search at once: what the others find is not in this one's log
            state.search = deepcopy(state.search)
        self.calls: list[Call] = []
        self._several = len(devices) > 1
        self._away: dict[int, float] = {}
        self._now_s = 0.0
        self._nested = False

    def record(self) -> dict[str, Any]:
        """What the same scheduler is made of, as a journal keeps it; asked before the first call."""
        own = self._left.cursor
        record = SchedulerRecord(
            self.view.devices,
            own.stop if isinstance(own, LocalCursor) else None,
            None if self.view.total == inf else self.view.total,
            self.backup,
            self.retries,
            self.on_error,
            [(chunk.start, chunk.stop) for chunk in self.returned],
            self.copied,
        )
        kept: dict[str, Any] = msgspec.to_builtins(record, enc_hook=lambda curve: curve.points, str_keys=True)
        return kept

    def _log(self, call: str, chunk: Chunk, now_s: float, number: float = 0.0) -> None:
        self._now_s = now_s
        self.calls.append((call, chunk.device, now_s, chunk.start, chunk.stop, number))

    def take(self, device: int, now_s: float) -> Chunk | None:
        if self._several:
            self._log_away(now_s)
        self._now_s = now_s
        chunk = super().take(device, now_s)
        start, stop = (chunk.start, chunk.stop) if chunk is not None else (0, 0)
        self.calls.append(("ask", device, now_s, start, stop, self._left.last))
        return chunk

    def _log_away(self, now_s: float) -> None:
        away = {i: state.busy_until_s for i, state in enumerate(self.view.devices) if state.away}
        if away != self._away:
            for i in self._away.keys() - away.keys():
                self.calls.append(("back", i, now_s, 0, 0, self.view.devices[i].busy_until_s))
            self.calls += [("away", i, now_s, 0, 0, until_s) for i, until_s in away.items()]
            self._away = away

    def done(self, chunk: Chunk, now_s: float, seconds: float) -> None:
        self._log("done" if chunk.claimed else "late", chunk, now_s, seconds)
        super().done(chunk, now_s, seconds)

    def halved(self, chunk: Chunk, now_s: float, error: BaseException) -> None:
        self._log("memory", chunk, now_s)
        self._nested = True  # it may turn out to be a failure, which follows from this
        super().halved(chunk, now_s, error)
        self._nested = False

    def failed(self, chunk: Chunk, now_s: float, error: BaseException, *, lost: bool = False) -> None:
        if not self._nested:
            if chunk.claimed:
                self._log("claim", chunk, now_s)
            self._log("lost" if lost else "refused" if isinstance(error, ResultFormError) else "failed", chunk, now_s)
        super().failed(chunk, now_s, error, lost=lost)

    def lose(self, device: int, error: BaseException) -> None:
        if self.view.devices[device].alive:
            self.calls.append(("gone", device, self._now_s, 0, 0, 0.0))
        super().lose(device, error)

    def stop(self, error: BaseException | None = None) -> None:
        self.calls.append(("stop", 0, self._now_s, 0, 0, 0.0))
        super().stop(error)


class SchedulerRecord(Struct, frozen=True):
    """A scheduler before its first call. `stop`: the end of a batch that it has to itself; None: others take from it,
    or only its end will tell. `total`: None if nobody knows it."""

    devices: list[DeviceState]
    stop: int | None
    total: float | None
    backup: bool
    retries: int
    on_error: str
    returned: list[tuple[int, int]]
    copied: float = 1.0


class _Seen:
    """A cursor that remembers what it last said: others may take from it too."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.last = 0.0

    @property
    def remaining(self) -> float:
        self.last = self.cursor.remaining
        return self.last

    def take(self, n: int) -> tuple[int, int]:
        return self.cursor.take(n)


class _Again:
    """A cursor that says what it said before. Where others took from it too, or nobody knew the end, it gives no more
    than it gave: whether it was asked for more cannot be told."""

    def __init__(self) -> None:
        self.remaining: float = 0
        self.given = (0, 0)

    def take(self, n: int) -> tuple[int, int]:
        start, stop = self.given
        return start, min(start + n, stop)


class ReplayedScheduler:
    """Decides again from a log: rows `asks` go in, rows `given` come out."""

    hears = decides = (Rows,)

    def __init__(self, record: SchedulerRecord, policy: Policy) -> None:
        self._again = _Again() if record.stop is None else None
        self._scheduler = ChunkScheduler(
            self._again or LocalCursor(0, int(record.stop or 0)),
            policy,
            record.devices,
            total=inf if record.total is None else record.total,
            backup=record.backup,
            retries=record.retries,
            on_error=record.on_error,
            copied=record.copied,
        )
        self._scheduler.returned += [Chunk(start, stop, -1) for start, stop in record.returned]

    def handle(self, stimuli: Sequence[Any], now: float) -> list[Any]:
        found: list[Any] = []
        for rows in stimuli:
            if isinstance(rows, Rows) and rows.of == "asks":
                names = ("call", "device", "clock_s", "start", "stop", "number")
                given = [self._call(*call) for call in zip(*(rows.columns[name] for name in names), strict=True)]
                ranges = [each for each in given if each is not None]
                columns = {"start": [start for start, _ in ranges], "stop": [stop for _, stop in ranges]}
                found.append(Rows("given", columns, decided=True))
        return found

    def _call(
        self, call: str, device: int, now_s: float, start: int, stop: int, number: float | None
    ) -> tuple[int, int] | None:
        scheduler = self._scheduler
        if call == "ask":
            if self._again is not None:
                self._again.remaining = inf if number is None else number
                self._again.given = (start, stop)
            chunk = scheduler.take(device, now_s)
            return (chunk.start, chunk.stop) if chunk is not None else (0, 0)
        state = scheduler.view.devices[device]
        if call in ("away", "back"):
            state.away, state.busy_until_s = call == "away", number or 0.0
        elif call == "gone":
            scheduler.lose(device, _REPLAYED)
        elif call == "stop":
            scheduler.stop()
        else:
            held = (c for c in scheduler.active if (c.device, c.start, c.stop) == (device, start, stop))
            if (chunk := next(held, None)) is not None:  # else its range was given differently, which has shown
                self._ended(call, chunk, now_s, number or 0.0)
        return None

    def _ended(self, call: str, chunk: Chunk, now_s: float, seconds: float) -> None:
        if call in ("done", "claim"):
            chunk.claimed = True
        if call in ("done", "late"):
            self._scheduler.done(chunk, now_s, seconds)
        elif call == "memory":
            self._scheduler.halved(chunk, now_s, _REPLAYED)
        elif call in ("failed", "lost", "refused"):
            error = ResultFormError(str(_REPLAYED)) if call == "refused" else _REPLAYED
            self._scheduler.failed(chunk, now_s, error, lost=call == "lost")


_REPLAYED = RuntimeError("it failed when it was recorded")


def scheduler_for(reader: Reader, policy: Policy | None = None) -> ReplayedScheduler:
    """The scheduler of a recorded run, to decide again; `policy` if the run had one that has no name."""
    header = reader.header
    try:
        given, curve = header.facts.get("scheduler"), lambda _, points: Curve(points)
        record = msgspec.convert(given, SchedulerRecord, dec_hook=curve, str_keys=True)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise InputError(f"{reader.path}:1: facts.scheduler: {error}") from None
    if policy is None:
        if not header.facts.get("by_name", True):
            raise InputError(
                f"{reader.path}: its policy, {header.policy}, was given as an object: replay it from Python"
            )
        policy = registry.create("dispatch", header.policy, header.options)
    return ReplayedScheduler(record, policy)
