"""Bars of a Gantt chart: what each device did from when to when, put together from a run's starts and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Added, Failed, Finished, Pause, Prepare, PrepareEnded, Resize, Resume, Settled, Start
from dovetail.core.journal.preloads import Preloads
from dovetail.core.resources import Pool

DONE, FAILED, OPEN = 0, 1, 2
_LANES = 8  # in which slots are drawn at most: with more, several are drawn over each other


class Bar(Struct, gc=False):
    """One stretch of time on some devices: set up until `start_s + setup_s`, then running until `end_s`.

    `tasks` counts the tasks of a batch. Of jobs that share devices each has its bar: number `place` of `sharing`. Tasks
    in a `slot` have, too; the last one to leave brings the `whole` stretch in which its devices were in use.
    A bar that `Shelf` merged stands for `merged` bars; what it names then (job, task, kind, reason) is the longest of
    them, and `setup_s` and `run_s` are sums.
    """

    devices: tuple[int, ...]
    start_s: float
    setup_s: float
    run_s: float
    end_s: float
    job: str
    task: str
    kind: str
    why: str
    wait_s: float
    replaces: str | None = None
    tasks: int = 1
    state: int = DONE
    merged: int = 1
    longest_s: float = 0.0
    place: int = 0
    sharing: int = 1
    slot: int | None = None
    whole: Bar | None = None

    @property
    def setup_end_s(self) -> float:
        return min(self.start_s + self.setup_s, self.end_s)


class _Slots:
    """Which slots of some devices are taken, and since when any is; with what set-up the first began."""

    __slots__ = ("free", "taken", "used", "whole")

    def __init__(self, whole: Bar) -> None:
        self.whole = whole
        self.free: list[int] = []
        self.taken = self.used = 0

    def take(self) -> int:
        """The lowest one that is free: so how high the bars reach tells how many slots are taken."""
        self.taken += 1
        if self.free:
            return heappop(self.free)
        self.used += 1
        return self.used - 1

    def give_back(self, slot: int) -> None:
        self.taken -= 1
        heappush(self.free, slot)


class Bars:
    """Follows a run and gives each bar when it ends. Keeps only what is running.

    A task that needs no device is followed all the same: its bar has no devices, so there is nothing to draw.
    """

    def __init__(self, pool: Pool, where: str, apart: bool = False) -> None:
        """With `apart`, tasks of a batch are jobs that share devices, each with a bar of its own."""
        self._apart = apart
        self._sharing: dict[int, list[Bar]] = {}
        self._devices = len(pool)
        self._where = where
        self._running: dict[tuple[str, str], Bar] = {}
        self._batch_of: dict[tuple[str, str], int] = {}
        self._batches: dict[int, tuple[Bar, int]] = {}
        self._slots: dict[tuple[int, ...], _Slots] = {}
        self._ahead: Preloads[Bar] = Preloads()

    def step(self, t: float, events: Iterable[Any]) -> Iterator[Bar]:
        self._sharing.clear()  # who shares starts at the same instant
        for event in events:
            kind = type(event)
            if kind is Start:
                if self._ahead and (found := self._ahead.find(event)) is not None and found.under_way:
                    yield self._end_preload(t, found.kept)
                self._start(t, event)
            elif kind is Finished or kind is Failed:
                bar = self._end(t, event)
                if bar is not None:
                    yield bar
            elif kind is Prepare:
                of = (t, event.setup_s, 0.0, t, "preload", str(event.id), event.kind, event.why, 0.0, event.replaces)
                self._ahead.begin(event, Bar(self._known(event.devices), *of, tasks=0))
            elif kind is PrepareEnded:
                ended = self._ahead.end(event)
                if ended is not None and not ended[1]:
                    yield self._end_preload(t, ended[0], FAILED if event.why else DONE)
            elif kind is Pause or kind is Resume or kind is Resize:
                bar = self._change(t, event)
                if bar is not None:
                    yield bar
            elif kind is Added:
                self._devices += len(event.devices)
            elif kind is Settled:
                self._settle(t, event)

    def in_use_since(self, devices: tuple[int, ...]) -> float | None:
        """Since when tasks have slots of these devices, if any has."""
        slots = self._slots.get(devices)
        return None if slots is None else slots.whole.start_s

    def _known(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(device for device in devices if 0 <= device < self._devices)

    def _end_preload(self, t: float, bar: Bar, state: int = DONE) -> Bar:
        """A load ahead of need is over, or a task goes on with it."""
        bar.setup_s = t - bar.start_s
        return _close(bar, t, state)

    def _settle(self, t: float, event: Settled) -> None:
        """A set-up was seen to be over."""
        bar = self._running.get((event.job, event.task))
        if bar is not None and bar.setup_s:
            bar.setup_s = t - bar.start_s
            if bar.slot is not None and (whole := self._slots[bar.devices].whole).setup_s:
                whole.setup_s = t - whole.start_s

    def still_open(self, t: float) -> Iterator[Bar]:
        """What had started and not ended when the journal broke off."""
        bars = [bar for key, bar in self._running.items() if key not in self._batch_of]
        bars += [*[bar for bar, _ in self._batches.values()], *self._ahead.under_way]
        for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.devices)):
            yield self._vacate(_close(bar, max(t, bar.start_s), OPEN))

    def _start(self, t: float, start: Start) -> None:
        key = (start.job, start.task)
        if key in self._running:
            raise InputError(f"{self._where}: {start.job}/{start.task} started again at {t} s while it was running")
        if not all(0 <= d < self._devices for d in start.devices):
            raise InputError(
                f"{self._where}: {start.job}/{start.task} started at {t} s on devices {list(start.devices)}; "
                f"the pool has 0 to {self._devices - 1}"
            )
        if self._apart:
            self._running[key] = _open(t, start)
            self._share(key, start.batch)
            return
        known = self._batches.get(start.batch) if start.batch else None
        bar = known[0] if known else _open(t, start)
        self._running[key] = bar
        if start.batch:
            members = known[1] + 1 if known else 1
            self._batches[start.batch] = (bar, members)
            self._batch_of[key] = start.batch
            bar.tasks = members
        elif start.slots > 1:
            slots = self._slots.setdefault(start.devices, _Slots(_open(t, start)))
            bar.slot, bar.sharing = slots.take(), min(start.slots, _LANES)
            bar.place = min(bar.slot * bar.sharing // start.slots, bar.sharing - 1)

    def _share(self, key: tuple[str, str], batch: int) -> None:
        if not batch:
            return
        together = self._sharing.setdefault(batch, [])
        self._running[key].place = len(together)
        together.append(self._running[key])
        for bar in together:
            bar.sharing = len(together)

    def _end(self, t: float, event: Finished | Failed) -> Bar | None:
        """The bar that ends, unless other tasks of its batch still run."""
        key = (event.job, event.task)
        bar = self._running.pop(key, None)
        if bar is None:
            raise InputError(f"{self._where}: {event.job}/{event.task} ended at {t} s but had not started")
        state = FAILED if isinstance(event, Failed) else bar.state
        batch = self._batch_of.pop(key, 0)
        if batch:
            members = self._batches[batch][1] - 1
            if members:
                self._batches[batch] = (bar, members)
                bar.state = state
                return None
            del self._batches[batch]
        return self._vacate(_close(bar, t, state))

    def _vacate(self, bar: Bar) -> Bar:
        """Give back its slot, if it has one."""
        if bar.slot is not None:
            slots = self._slots[bar.devices]
            slots.give_back(bar.slot)
            if not slots.taken:
                bar.whole = _close(self._slots.pop(bar.devices).whole, bar.end_s, DONE)
        return bar

    def _change(self, t: float, event: Pause | Resume | Resize) -> Bar | None:
        """The bar that ends where a task goes on with other devices, or with none: it stands for no task of its own."""
        key = (event.job, event.task)
        bar = self._running.get(key)
        devices = () if isinstance(event, Pause) else event.devices
        if bar is None or not all(0 <= d < self._devices for d in devices):
            raise InputError(f"{self._where}: {event.job}/{event.task} changed at {t} s to devices {list(devices)}")
        self._running[key] = Bar(devices, t, 0.0, 0.0, t, bar.job, bar.task, bar.kind, event.why, 0.0)
        if not bar.devices or t <= bar.start_s:
            return None
        bar.tasks = 0
        return _close(bar, t, DONE)


def _open(t: float, start: Start) -> Bar:
    return Bar(
        start.devices,
        t,
        start.setup_s,
        0.0,
        t,
        start.job,
        start.task,
        start.kind,
        start.why,
        max(t - start.ready_s, 0.0),
        start.replaces,
    )


def _close(bar: Bar, t: float, state: int) -> Bar:
    bar.end_s = t
    bar.setup_s = min(bar.setup_s, t - bar.start_s)
    bar.run_s = bar.longest_s = t - bar.start_s - bar.setup_s
    bar.state = state
    return bar


class Shelf:
    """Keeps at most `limit` bars of a time window, whatever the length of the run.

    When there are more, neighbours are merged: bars on the same devices that are shorter than `resolution_s` and begin
    in the same stretch of that length become one. The resolution doubles until half of the limit is free again. So a
    picture of the whole window looks the same, long bars stay as they are, and only a deep zoom meets merged ones.

    >>> shelf = Shelf(limit=4)
    >>> for i in range(6):
    ...     shelf.put(Bar((0,), i * 1.0, 0.0, 1.0, i + 1.0, f"w{i}", "p", "llm", "", 0.0))
    >>> [(bar.start_s, bar.end_s, bar.merged) for bar in shelf.take()]
    [(0.0, 3.0, 3), (3.0, 5.0, 2), (5.0, 6.0, 1)]
    """

    def __init__(
        self, limit: int, from_s: float = 0.0, to_s: float | None = None, every: Callable[[Bar], None] | None = None
    ) -> None:
        """Once there are too many, `every` is given each bar as it was before it may be merged."""
        self.limit = limit
        self._every = every
        self.resolution_s = 0.0
        self.seen = 0
        self.outside = 0
        self._from = from_s
        self._to = to_s
        self._bars: list[Bar] = []

    def put(self, bar: Bar) -> None:
        self.seen += 1
        if bar.end_s < self._from or (self._to is not None and bar.start_s > self._to):
            self.outside += 1
            return
        self._bars.append(bar)
        if self.resolution_s:
            self._tell(bar)
        if len(self._bars) > self.limit:
            if not self.resolution_s:
                for each in self._bars:
                    self._tell(each)
            self._shrink()

    def _tell(self, bar: Bar) -> None:
        if self._every is not None:
            self._every(bar)

    def take(self) -> list[Bar]:
        """The bars kept, in the order of their start; the shelf is empty afterwards."""
        if self.resolution_s:
            self._merge()
        bars, self._bars = self._bars, []
        return sorted(bars, key=lambda bar: (bar.start_s, bar.devices))

    def _shrink(self) -> None:
        span = max(bar.end_s for bar in self._bars) - self._from
        if self.resolution_s:
            self._merge()
        while len(self._bars) > self.limit // 2 and self.resolution_s <= span:
            self.resolution_s = 2 * self.resolution_s or max(span / self.limit, 1e-9)
            self._merge()
        if len(self._bars) > self.limit // 2:  # more device windows than bars allowed: one bar each, and no more job
            self.limit *= 2

    def _merge(self) -> None:
        lanes: dict[tuple[tuple[int, ...], int], int] = {}
        lane = np.array([lanes.setdefault((bar.devices, _lane(bar)), len(lanes)) for bar in self._bars])
        starts = np.array([bar.start_s for bar in self._bars])
        long = np.array([bar.end_s for bar in self._bars]) - starts > self.resolution_s
        long &= np.array([bar.merged for bar in self._bars]) == 1
        cell = (starts - self._from) // self.resolution_s
        order = np.lexsort((starts, lane))
        lane, long, cell = lane[order], long[order], cell[order]
        joins = (lane[1:] == lane[:-1]) & (cell[1:] == cell[:-1]) & ~long[1:] & ~long[:-1]
        kept = [self._bars[order[0]]]
        for i, absorbed in zip(order[1:].tolist(), joins.tolist(), strict=True):
            if absorbed:
                _absorb(kept[-1], self._bars[i])
            else:
                kept.append(self._bars[i])
        self._bars = kept


def _lane(bar: Bar) -> int:
    """Bars of slots are merged with those at the same height."""
    return -1 if bar.slot is None else bar.place


def _absorb(into: Bar, bar: Bar) -> None:
    if bar.longest_s > into.longest_s:
        into.longest_s, into.wait_s, into.replaces = bar.longest_s, bar.wait_s, bar.replaces
        into.job, into.task, into.kind, into.why = bar.job, bar.task, bar.kind, bar.why
    into.end_s = max(into.end_s, bar.end_s)
    if (into.place, into.sharing) != (bar.place, bar.sharing):
        into.setup_s, into.run_s = into.setup_s / into.sharing, into.run_s / into.sharing
        into.place, into.sharing = 0, 1
    into.setup_s += bar.setup_s * into.sharing / bar.sharing
    into.run_s += bar.run_s * into.sharing / bar.sharing
    into.tasks += bar.tasks
    into.merged += bar.merged
    into.state = max(into.state, bar.state)
