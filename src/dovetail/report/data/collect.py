"""What a report tells of a run, gathered in one pass over its journal and in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.events import Added, Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.journal import Ended, Header, Reader, open_journal
from dovetail.core.metrics import Figures, Metrics, Spread
from dovetail.core.results.charts import Chart, Series, charts_of
from dovetail.core.words import Words
from dovetail.report.data.bars import DONE, Bar, Bars, Shelf
from dovetail.report.data.devices import together
from dovetail.report.data.pieces import Finest, Kept
from dovetail.report.data.timeline import Strip, Timeline
from dovetail.report.data.units import unit_for
from dovetail.report.data.waiting import Waited, Waits

MAX_BARS = 100_000
MAX_FINEST = 1_500_000
MAX_LISTED = 100
_EVENLY = 0.03  # of all the time between the first and the last, that none is further off
FIRST_ARRIVALS = 1000  # that tell one work from another
RUN, SETUP, QUEUE, ACTIVE, RUNNING, BY_TYPE = 0, 1, 2, 3, 4, 5  # from the last on, one for each type of device


class KindFigures(Struct):
    """What one kind of task (a model) took. Times on devices count each device of a window."""

    kind: str
    starts: int = 0
    tasks: int = 0
    failures: int = 0
    run_device_s: float = 0.0
    setup_device_s: float = 0.0
    setups: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0


class TypeFigures(Struct, frozen=True):
    """The response times of one type of job (a workflow)."""

    type: str
    arrived: int
    response_s: Spread
    completed: int


class Incident(Struct, frozen=True):
    """A job that was rejected, or a task that failed, and why."""

    t_s: float
    job: str
    what: str
    why: str


class Story(Struct):
    """A run as the reports show it. `figures` are of the whole run, the rest that has a time is of the window.

    Where `bars` had to be merged, `finest` has each of them, unless they are too many for that too.
    """

    name: str
    header: Header
    figures: Figures
    summary: dict[str, Any]
    ended: bool
    torn: bool
    end_s: float
    last_arrival_s: float
    first_arrivals_s: list[float]
    unfinished: int
    from_s: float
    to_s: float
    windowed: bool
    bars: list[Bar]
    bars_seen: int
    bars_outside: int
    resolution_s: float
    strip: Strip
    responses_s: array[float]
    kinds: list[KindFigures]
    types: list[TypeFigures]
    charts: list[Chart]
    by_round: bool
    window: tuple[int, int] | None
    finest: list[Kept] = field(default_factory=list)
    waits: list[Waited] = field(default_factory=list)
    rejected: list[Incident] = field(default_factory=list)
    failed: list[Incident] = field(default_factory=list)

    def claim(self, key: str) -> float | None:
        """A number of the journal's closing summary, or else of its header's facts, if it is there and is one."""
        value = self.summary.get(key, self.header.facts.get(key))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    @property
    def bound_at_s(self) -> float | None:
        """When the run cannot have ended before, of which its makespan has a lower bound."""
        bound_s = self.claim("bound_makespan_s")
        counts = self.header.from_first_arrival and self.first_arrivals_s
        return bound_s and bound_s + (self.first_arrivals_s[0] if counts else 0.0)

    @property
    def words(self) -> Words:
        return self.header.words

    @property
    def evenly(self) -> bool:
        """Whether its jobs all came at once and left at an even pace: then their response times say nothing more."""
        if len(self.responses_s) < 3 or self.last_arrival_s > self.first_arrivals_s[0]:
            return False
        times = np.sort(np.asarray(self.responses_s))
        straight = np.linspace(times[0], times[-1], len(times))
        return bool(np.abs(times - straight).max() <= _EVENLY * (times[-1] - times[0]))

    @property
    def scheduled(self) -> bool:
        """Whether there is a schedule to draw: a level that decides in rounds may leave its leases out."""
        return not self.by_round or self.bars_seen > 0

    @property
    def left_out(self) -> list[str]:
        """What the pictures do not show, in sentences."""
        notes = []
        words = self.words
        if not self.ended:
            notes.append(
                f"This run did not end: its journal breaks off at {self.end_s:,.12g} s"
                + (" in the middle of a record" if self.torn else "")
                + f", with {self.unfinished:,} {words.jobs} unfinished."
                + ("" if self.by_round else " What was still waiting then is not in the queue curve.")
            )
        if self.window:
            notes.append(
                f"Only {words.jobs} {self.window[0]:,} to {self.window[1] - 1:,} are measured: {words.response} times "
                "are theirs, and the run ends with the last of them."
            )
        if not self.scheduled:
            summary = self.header.facts.get("mode") == "summary"
            none = f"The journal is a summary: it holds no {words.tasks}" if summary else f"There were no {words.tasks}"
            notes.append(f"{none}, so there is no schedule to draw.")
        if self.windowed:
            notes.append(
                f"The pictures over time show {self.from_s:,.12g} s to {self.to_s:,.12g} s; "
                f"{self.bars_outside:,} of {self.bars_seen:,} bars lie outside. The figures are of the whole run."
            )
        if self.resolution_s and not self.finest:
            notes.append(
                f"{self.bars_seen - self.bars_outside:,} bars are drawn as {len(self.bars):,}: neighbours on the same "
                f"devices shorter than {self.resolution_s:,.3g} s are merged. "
                "--from and --to choose a stretch of time in which each is drawn."
            )
        return notes


def collect(
    journal: Path | Reader,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    max_bars: int = MAX_BARS,
    max_finest: int = MAX_FINEST,
) -> Story:
    """Read a journal once. A window of time limits the bars and curves, not the figures; without one they begin where
    the run does.

    Beyond `max_bars` the bars are merged as `Shelf` describes. Up to `max_finest` each is kept beside them as
    `Story.finest`; beyond that `Story.left_out` says that they are merged.
    """
    if not (math.isfinite(from_s or 0.0) and math.isfinite(to_s or 0.0)):
        name, found = ("end", to_s) if math.isfinite(from_s or 0.0) else ("begin", from_s)
        raise InputError(f"the window cannot {name} at {found} s; expected a number of seconds")
    reader = journal if isinstance(journal, Reader) else open_journal(journal)
    begin_s = _begins_s(reader) if from_s is None else from_s
    if to_s is not None and to_s <= begin_s:
        raise InputError(f"the window ends at {to_s:.12g} s, but begins at {begin_s:.12g} s")
    collector = _Collector(reader, begin_s, to_s, max_bars, max_finest)
    reader.feed(collector)
    return collector.story(windowed=from_s is not None or to_s is not None)


def _begins_s(reader: Reader) -> float:
    """Where a run's length counts from: 0 s, or its first arrival."""
    if not reader.header.from_first_arrival:
        return 0.0
    arrivals = (t for _, t, events in reader.steps() if any(type(event) is Arrived for event in events))
    return next(arrivals, 0.0)


class _Collector:
    """Follows the recorded run; keeps some bytes per job, the bars of the shelf, and what is still open."""

    def __init__(self, reader: Reader, from_s: float, to_s: float | None, max_bars: int, max_finest: int) -> None:
        self._reader = reader
        self._pool = reader.header.pool
        self._from, self._to = from_s, to_s
        self._metrics = Metrics(self._pool, from_first_arrival=reader.header.from_first_arrival)
        self._by_round = reader.in_rounds
        self._window = _window(reader.header.facts) if self._by_round else None
        self._unmeasured: set[str] = set()  # jobs outside the window
        self._waiting: dict[str, float] = {}  # jobs of a run in rounds that do not run, since when
        self._bars = Bars(self._pool, str(reader.path), apart=self._by_round)
        self._on = together(reader.header)
        self._finest = Finest(max_finest, lambda devices: self._on(devices))
        self._shelf = Shelf(max_bars, from_s, to_s, self._finest.put)
        self._types = {name: BY_TYPE + i for i, name in enumerate(dict.fromkeys(d.type for d in self._pool.devices))}
        self._line = Timeline(BY_TYPE + len(self._types), from_s, to_s)
        self._open: dict[str, tuple[float, str]] = {}
        self._arrived: dict[str, int] = {}
        self._responses: dict[str, array[float]] = {}
        self._kinds: dict[str, KindFigures] = {}
        self._waits = Waits()
        self._rejected: list[Incident] = []
        self._failed: list[Incident] = []
        self._ended: Ended | None = None
        self._now = self._last_arrival = 0.0
        self._first_arrivals: list[float] = []

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._now = max(self._now, t)
        for bar in self._bars.step(t, events):
            self._put(bar)
        for event in events:
            kind = type(event)  # which is several times faster to ask for than `isinstance`
            if kind is Start:
                self._start(t, event)
            elif kind is Finished or kind is Failed:
                self._waiting[event.job] = t
                if kind is Failed and len(self._failed) < MAX_LISTED:
                    self._failed.append(Incident(t, event.job, event.task, event.why))
            elif kind is Arrived:
                self._arrive(t, event)
            elif kind is Complete:
                arrived, type_ = self._close(event.job, t)
                if event.job not in self._unmeasured:
                    self._responses.setdefault(type_, array("d")).append(t - arrived)
            elif kind is Reject:
                _, type_ = self._close(event.job, t)
                if len(self._rejected) < MAX_LISTED:
                    self._rejected.append(Incident(t, event.job, type_, event.why))
            elif kind is Added:
                self._pool = self._pool.joined(event.devices, event.types)
                self._on = together(replace(self._reader.header, pool=self._pool))
                for new in {device.type: None for device in event.devices if device.type not in self._types}:
                    self._types[new] = self._line.grow()
            elif kind is Ended:
                self._ended = event
        self._metrics.step(n, t, events)

    def _arrive(self, t: float, event: Arrived) -> None:
        self._last_arrival = t
        if len(self._first_arrivals) < FIRST_ARRIVALS:
            self._first_arrivals.append(t)
        self._open[event.job] = (t, event.of)
        self._arrived[event.of] = self._arrived.get(event.of, 0) + 1
        self._waiting[event.job] = t
        if self._window and not self._window[0] <= event.facts.get("id", -1) < self._window[1]:
            self._unmeasured.add(event.job)

    def _close(self, job: str, t: float) -> tuple[float, str]:
        try:
            arrived_s, type_ = self._open.pop(job)
        except KeyError:
            raise InputError(f"{self._reader.path}: {job} was closed at {t} s but is not open") from None
        self._line.add(ACTIVE, arrived_s, t)
        self._waiting.pop(job, None)
        return arrived_s, type_

    def _kind(self, name: str) -> KindFigures:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = KindFigures(name)
        return kind

    def _start(self, t: float, start: Start) -> None:
        """Waits are counted per task, also where several start as one."""
        kind = self._kind(start.kind)
        self._waiting.pop(start.job, None)
        wait_s = max(t - start.ready_s, 0.0)
        kind.starts += 1
        kind.wait_s += wait_s
        kind.longest_wait_s = max(kind.longest_wait_s, wait_s)
        self._line.add(QUEUE, start.ready_s, t)
        if not self._by_round:
            self._waits.start(start.kind, start.devices, start.ready_s, t, self._bars.in_use_since(start.devices))

    def _put(self, bar: Bar) -> None:
        kind = self._kind(bar.kind)
        kind.tasks += bar.tasks
        kind.failures += bar.state != DONE
        self._line.add(RUNNING, bar.start_s, bar.end_s)
        if bar.slot is None:
            self._use(bar, kind, len(bar.devices) / bar.sharing)
        elif bar.whole is not None:  # devices with slots are in use once, however many share them
            self._use(bar.whole, kind, len(bar.devices))
        if bar.devices:
            self._shelf.put(bar)

    def _use(self, bar: Bar, kind: KindFigures, width: float) -> None:
        kind.run_device_s += bar.run_s * width
        kind.setup_device_s += bar.setup_s * width
        kind.setups += bar.setup_s > 0 or (bar.replaces is not None and not self._by_round)
        if not self._by_round:
            self._waits.used(bar.devices, bar.start_s, bar.setup_end_s, bar.end_s)
        self._line.add(RUN, bar.start_s + bar.setup_s, bar.end_s, width)
        self._line.add(SETUP, bar.start_s, bar.start_s + bar.setup_s, width)
        if bar.devices:
            self._line.add(self._types[self._pool.devices[bar.devices[0]].type], bar.start_s, bar.end_s, width)

    def story(self, windowed: bool) -> Story:
        for bar in self._bars.still_open(self._now):
            self._put(bar)
        for arrived_s, _ in self._open.values():
            self._line.add(ACTIVE, arrived_s, self._now)
        for since_s in self._waiting.values() if self._by_round else ():
            self._line.add(QUEUE, since_s, self._now)
        to_s = self._to if self._to is not None else max(self._now, self._from)
        strip = self._line.strip(self._now)
        devices = max(len(self._pool), 1)
        busy = [[value / devices for value in strip.means[row]] for row in (RUN, SETUP)]
        responses = array("d")
        for values in self._responses.values():
            responses.extend(values)
        figures = self._metrics.figures()
        if self._window:
            figures = replace(figures, response_s=Spread.of(responses))
        summary, unfinished = self._ended.summary if self._ended else {}, len(self._open)
        if self._ended is None:
            unfinished = self._reader.header.unfinished(figures.completed, unfinished)
        where = self._reader.path.stem
        charts = [*charts_of(self._reader.header.facts, where), *charts_of(summary, where, "summary")]
        return Story(
            name=self._reader.path.stem,
            header=replace(self._reader.header, pool=self._pool),
            figures=figures,
            summary=summary,
            ended=self._ended is not None,
            torn=self._reader.torn,
            end_s=self._now,
            last_arrival_s=self._last_arrival,
            first_arrivals_s=self._first_arrivals,
            unfinished=unfinished,
            from_s=self._from,
            to_s=to_s,
            windowed=windowed,
            bars=self._shelf.take(),
            bars_seen=self._shelf.seen,
            bars_outside=self._shelf.outside,
            resolution_s=self._shelf.resolution_s,
            strip=Strip(strip.from_s, strip.bin_s, [*busy, strip.means[QUEUE]]),
            responses_s=responses,
            kinds=sorted(self._kinds.values(), key=lambda k: (-k.run_device_s - k.setup_device_s, k.kind)),
            types=self._by_type(),
            charts=[*(self._over_time(strip) if self._by_round else []), *charts],
            by_round=self._by_round,
            window=self._window,
            finest=self._finest.pieces(self._shelf.resolution_s),
            waits=self._waits.kinds,
            rejected=self._rejected,
            failed=self._failed,
        )

    def _over_time(self, strip: Strip) -> list[Chart]:
        """How many jobs there were, and how much of each type of device was used."""
        words, means = self._reader.header.words, strip.means
        unit = unit_for(strip.bin_s * len(means[RUN]))
        middles = [(strip.from_s + (i + 0.5) * strip.bin_s) / unit.seconds for i in range(len(means[RUN]))]

        def line(name: str, row: int, scale: float = 1.0) -> Series:
            values = [round(value * scale, 4) for value in means[row]]
            return Series(name, list(zip(middles, values, strict=True)))

        counts = Counter(device.type for device in self._pool.devices)
        lines = [line("active", ACTIVE)]
        used = [line(name, row, 100 / counts[name]) for name, row in self._types.items()]
        if not self._shelf.seen:
            return [Chart(f"Active {words.jobs} over time", f"time, {unit.name}", words.jobs, lines)]
        lines += [line("running", RUNNING), line("waiting", QUEUE)]
        return [
            Chart(f"{words.jobs.capitalize()} over time", f"time, {unit.name}", words.jobs, lines),
            Chart(f"{words.devices.capitalize()} in use, by type", f"time, {unit.name}", "in use, %", used),
        ]

    def _by_type(self) -> list[TypeFigures]:
        empty: array[float] = array("d")
        return [
            TypeFigures(name, count, Spread.of(self._responses.get(name, empty)), len(self._responses.get(name, ())))
            for name, count in sorted(self._arrived.items())
        ]


def _window(facts: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first of the jobs that are measured, and the one behind the last."""
    try:
        return msgspec.convert(facts.get("window"), tuple[int, int] | None)
    except msgspec.ValidationError as error:
        raise InputError(f"facts.window: {error}") from None
