"""A run of a batch, real or simulated, as a journal: what was seen of every chunk, and nothing moved.

A device that holds several chunks at once is as many devices of its type in the journal, one for each. Chunks are
written in batches, as rows `ran`; beside them stand rows `asks` and `given`: all that the scheduler was asked and told,
in order and by the clock's own reading, and the ranges that it gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from threading import Event, RLock
from time import perf_counter
from typing import Any

from dovetail.core.events import Rows
from dovetail.core.journal import Clock, Header
from dovetail.core.journal.recorder import Recorder
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.dispatch.bounds import bound_makespan_s, kept_rate
from dovetail.dispatch.chunk import Chunk, ChunkRow, gaps
from dovetail.dispatch.replay import Call, RecordedScheduler
from dovetail.dispatch.words import WORDS

LIVE, SIMULATED = "live", "simulated"
KINDS = ("chunk", "retry", "copy")
WHY = ("as many items as the policy gave", "another device failed on it", "the one that has it is late")
LOST = "another device was first"
_RAN = ("id", "kind", "device", "from_s", "to_s", "why", "outcome", "unused", "start", "stop", "attempt")
_ASKS = ("call", "device", "clock_s", "start", "stop", "number")


def header_of(
    scheduler: RecordedScheduler,
    *,
    policy: str,
    mode: str,
    items: int | None,
    peaks: Sequence[float | None],
    options: Mapping[str, Any] | None = None,
    clock: Clock = Clock(),  # noqa: B008  (it is frozen)
    zero_s: float = 0.0,
    hardware: Mapping[str, str] | None = None,
    seed: int = 0,
    facts: Mapping[str, Any] | None = None,
) -> Header:
    """The header of a run that is about to begin. `zero_s`: what the clock says then; `peaks`: items/s, as far as
    they are known before; `items`: of the batch, None if nobody knows."""
    names = [state.name for state in scheduler.view.devices]
    slots = [name for name, state in zip(names, scheduler.view.devices, strict=True) for _ in range(state.slots)]
    own: dict[str, Any] = {
        "items": items,
        "devices": names,
        "kinds": KINDS,
        "why": WHY,
        "peaks": list(peaks),
        "zero_s": zero_s,
    }
    own["scheduler"] = scheduler.record()
    return Header(
        level="dispatch",
        policy=policy,
        options=dict(options or {}),
        mode=mode,
        seed=seed,
        pool=Pool(
            tuple(Device(i, name) for i, name in enumerate(slots)),
            {name: DeviceType(name) for name in names},
        ),
        facts={**own, **(facts or {})},
        clock=clock,
        order="written",
        hardware=dict(hardware or {}),
        words=WORDS,
    )


class BatchJournal:
    """Writes what a scheduler has logged since it was last asked to.

    With `ended` the run is a real one: its journal is written a few times a second while the workers only append to a
    list, and ends soon after `ended` is set, if nobody ends it before. `lock` guards the scheduler.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        scheduler: RecordedScheduler,
        lock: AbstractContextManager[Any] | None = None,
        ended: Event | None = None,
    ) -> None:
        self._scheduler, self._lock = scheduler, lock or nullcontext()
        self._ended, self._over, self._turn = ended, False, RLock()
        self._claims: dict[str, Any] = {}
        self._wrong: Exception | None = None
        self._zero_s: float = header.facts["zero_s"]
        self._now_s = self._zero_s  # when something was written last
        self._items: int | None = header.facts["items"]
        self._before: list[tuple[int, int]] = header.facts.get("done_before", [])
        self._peaks: list[float | None] = header.facts["peaks"]
        self._free_s: list[list[float]] = []  # by device and slot
        self._first: list[int] = []  # slot of each device
        for state in scheduler.view.devices:
            self._first.append(sum(map(len, self._free_s)))
            self._free_s.append([-inf] * state.slots)
        self._seen = self._skipped = len(scheduler.rows)  # a resumed run has rows of the one before
        self._recorder = Recorder(path, header, gather=None if ended is None else self._follow)

    def _follow(self) -> None:
        with self._turn:
            if self._ended is not None and self._ended.is_set():
                self.end(perf_counter())
            elif not self._over:
                self._write(perf_counter())

    def _write(self, now_s: float) -> list[Chunk]:
        """Write what is new; gives the chunks that were then under way."""
        scheduler = self._scheduler
        with self._lock:
            rows, active = scheduler.rows[self._seen :], list(scheduler.active)
            calls, scheduler.calls = scheduler.calls, []
        # Who reads the clock may have to wait before it writes: by then more has ended, and others may have written.
        self._now_s = max(now_s, self._now_s, *(row[4] for row in rows), *(call[2] for call in calls))
        events = [self._ran(rows)] if rows else []
        events += _called(calls) if calls else []
        if events:
            self._recorder.note(self._now_s - self._zero_s, *events)
        return active

    def _ran(self, rows: Sequence[Sequence[Any]]) -> Rows:
        """A line of columns for chunks that have ended, in the order of their ends."""
        zero_s, copies, lines = self._zero_s, self._scheduler.copies, []
        for number, row in enumerate(map(ChunkRow._make, rows), start=self._seen - self._skipped):
            kind = 1 if row.attempt > 1 else 2 if (row.device, row.start, row.begun_s) in copies else 0
            unused = row.state == "lost"
            outcome = "" if row.state == "done" else LOST if unused else row.state
            from_s, to_s = row.begun_s - zero_s, row.ended_s - zero_s
            slot = self._slot(row.device, from_s, to_s)
            lines.append((number, kind, slot, from_s, to_s, kind, outcome, unused, row.start, row.stop, row.attempt))
        self._seen += len(rows)
        return Rows("ran", dict(zip(_RAN, map(list, zip(*lines, strict=True)), strict=True)))

    def _slot(self, device: int, from_s: float, to_s: float) -> int:
        """The slot that was free last before this chunk came. In the order of ends that finds one for each chunk if at
        no time the device held more than it has slots; otherwise chunks overlap, which the checker names."""
        free_s = self._free_s[device]
        able = [slot for slot, until_s in enumerate(free_s) if until_s <= from_s]
        slot = max(able, key=free_s.__getitem__) if able else min(range(len(free_s)), key=free_s.__getitem__)
        free_s[slot] = max(free_s[slot], to_s)
        return self._first[device] + slot

    def end(self, now_s: float) -> dict[str, Any]:
        """The run came to its end, or nobody waits for it any more: what it claims, and what it lacks."""
        with self._turn:
            if self._over:
                if self._wrong is not None:
                    raise self._wrong
                return self._claims
            self._over = True
            with self._recorder, self._kept_error():
                left = self._write(now_s)
                rows = self._scheduler.rows[self._skipped : self._seen]
                self._claims = summary = self._summary([ChunkRow._make(row) for row in rows])
                if left:
                    summary["left"] = [(c.device, c.start, c.stop, c.begun_s - self._zero_s) for c in left]
                self._recorder.end(self._now_s - self._zero_s, summary)
            return summary

    @contextmanager
    def _kept_error(self) -> Iterator[None]:
        """Whoever asks for the end learns what went wrong, also if it was another thread that wrote it."""
        try:
            yield
        except Exception as error:
            self._wrong = error
            raise

    def _summary(self, rows: Sequence[ChunkRow]) -> dict[str, Any]:
        names = [state.name for state in self._scheduler.view.devices]
        done = [row for row in rows if row.state == "done"]
        ranges = [(row.start, row.stop) for row in done]
        items, peaks = dict.fromkeys(names, 0), []
        for i, (name, known) in enumerate(zip(names, self._peaks, strict=True)):
            mine = [row for row in done if row.device == i]
            items[name] = sum(row.stop - row.start for row in mine)
            spans = [(row.begun_s - self._zero_s, row.ended_s - self._zero_s) for row in mine]
            peaks.append(max(known or 0.0, kept_rate(items[name], spans)))
        makespan_s = max((row.ended_s - self._zero_s for row in rows), default=0.0)
        held_s = sum(row.ended_s - row.begun_s for row in rows)
        slots = sum(map(len, self._free_s))
        total = max((stop for _, stop in ranges), default=0) if self._items is None else self._items
        return {
            "completed": len(done),
            "rejected": len(rows) - len(done),
            "makespan_s": makespan_s,
            "utilisation": held_s / makespan_s / slots if makespan_s else 0.0,
            "items": items,
            "peaks": peaks,
            "bound_makespan_s": bound_makespan_s(sum(items.values()), peaks),
            "total": total,
            "missing": gaps([*ranges, *self._before], total),
        }

    def __enter__(self) -> BatchJournal:
        return self

    def __exit__(self, *_: object) -> None:
        """Without an end before this, the journal is that of a run that was interrupted."""
        self._recorder.close()


def _called(calls: Sequence[Call]) -> list[Rows]:
    columns = dict(zip(_ASKS, map(list, zip(*calls, strict=True)), strict=True))
    given = [(start, stop) for call, _, _, start, stop, _ in calls if call == "ask"]
    ranges = {"start": [start for start, _ in given], "stop": [stop for _, stop in given]}
    return [Rows("asks", columns), Rows("given", ranges, decided=True)]
