"""The level's own rules over a run: every item is done exactly once, what was seen of the chunks is what the scheduler
was told of them, and nothing is faster than its devices ever were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Reject, Rows, Start
from dovetail.core.files.document import explain
from dovetail.core.findings import Findings, Report, close
from dovetail.core.journal import Ended, Header, Reader
from dovetail.core.metrics import recount
from dovetail.dispatch.bounds import bound_makespan_s, kept_rate
from dovetail.dispatch.chunk import gaps
from dovetail.dispatch.recording import SIMULATED

CODES = core.CODES | {
    "range": "a chunk without a range of items, or with one that the batch does not have",
    "gap": "items that no chunk did, and of which the run does not say that they lack a result",
    "double": "items that two chunks did",
    "result": "items that lack a result by the summary, but were done",
    "log": "a chunk of which the scheduler was not told so, or one that it was told of and that is not recorded",
    "given": "ranges that are not the answers to what the scheduler was asked",
    "peak": "a peak rate that is neither known before the run nor kept in it",
    "bound": "a bound that is missing, or not items over the sum of the peak rates, or a run that is faster than it",
}
_ENDS = {"done", "late", "failed", "lost", "refused", "memory"}


class _Range(Struct):
    start: int
    stop: int


class BatchFacts(Struct):
    """What the level adds to a header. `peaks`: items/s, as far as they were known before; `done_before`: ranges that
    an earlier run did; `shared`: others take from the batch too; `noise`: how much times vary by chance."""

    devices: list[str]
    peaks: list[float | None]
    items: int | None = None
    zero_s: float = 0.0
    done_before: list[tuple[int, int]] = []
    shared: bool = False
    noise: float = 0.0


class BatchSummary(Struct):
    """What the level adds to a summary. `missing`: ranges without a result; `left`: chunks (device, range, begin) that
    were under way at the end, and nobody waited for them."""

    total: int = 0
    missing: list[tuple[int, int]] = []
    peaks: list[float] = []
    items: dict[str, int] = {}
    left: list[tuple[int, int, int, float]] = []
    bound_makespan_s: float | None = None


class _Asks(Struct):
    call: list[str]
    device: list[int]
    clock_s: list[float]
    start: list[int]
    stop: list[int]
    number: list[float | None]


class _Ranges(Struct):
    start: list[int]
    stop: list[int]


class _Life(NamedTuple):
    """A chunk as rows, or the scheduler's log, tell it; without an end it is still under way."""

    device: int
    start: int
    stop: int
    from_s: float
    to_s: float
    good: bool


class _Chunk(Struct):
    start: int
    stop: int
    device: int = -1
    from_s: float = 0.0


class BatchRules:
    """Follows a run that the core's checker finds possible."""

    def __init__(self, header: Header, facts: BatchFacts, findings: Findings) -> None:
        self._facts, self._findings = facts, findings
        self._exact = header.mode == SIMULATED and not facts.noise
        places = {name: i for i, name in enumerate(facts.devices)}
        self._device_of = [places.get(device.type, -1) for device in header.pool.devices]
        self._open: dict[str, _Chunk] = {}
        self._done: list[tuple[int, int, str]] = []
        self._recorded: Counter[_Life] = Counter()
        self._told: Counter[_Life] = Counter()
        self._given: dict[tuple[int, int, int], float] = {}
        self._answers: list[list[int]] | None = None  # to what was asked last, until they are met
        self._clock_s = -inf  # when the scheduler was asked or told something last
        self._summary: dict[str, Any] = {}

    @property
    def items_done(self) -> int:
        return sum(stop - start for start, stop, _ in self._done)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event)
            elif isinstance(event, Start) and event.job in self._open:
                chunk = self._open[event.job]
                chunk.device, chunk.from_s = self._device_of[event.devices[0]] if event.devices else -1, t
            elif isinstance(event, Complete | Reject) and event.job in self._open:
                self._closed(t, event)
            elif isinstance(event, Rows) and event.of == "asks":
                self._asked(event)
            elif isinstance(event, Rows) and event.of == "given":
                self._answered(event)
            elif isinstance(event, Ended):
                self._summary = event.summary

    def _arrived(self, event: Arrived) -> None:
        try:
            found = msgspec.convert(event.facts, _Range)
        except msgspec.ValidationError as error:
            self._findings.add("range", event.job, f"expected start and stop: {error}")
            return
        items = self._facts.items
        if 0 <= found.start < found.stop and (items is None or found.stop <= items):
            self._open[event.job] = _Chunk(found.start, found.stop)
        else:
            expected = f"expected a range within 0 to {items}"
            self._findings.add("range", event.job, f"found {found.start} to {found.stop}, {expected}")

    def _closed(self, t: float, event: Complete | Reject) -> None:
        chunk, good = self._open.pop(event.job), isinstance(event, Complete)
        self._recorded[_Life(chunk.device, chunk.start, chunk.stop, chunk.from_s, t, good)] += 1
        if good:
            self._done.append((chunk.start, chunk.stop, event.job))

    def _asked(self, rows: Rows) -> None:
        """What the scheduler was asked and told, as lives of chunks."""
        try:
            asks = msgspec.convert(rows.columns, _Asks)
        except msgspec.ValidationError as error:
            self._findings.add("log", "", f"rows of what the scheduler was asked cannot be read: {error}")
            return
        self._check_answered()
        self._answers = [r for call, *r in zip(asks.call, asks.start, asks.stop, strict=False) if call == "ask"]
        columns = asks.call, asks.device, asks.start, asks.stop, asks.clock_s, asks.number
        for call, device, start, stop, clock_s, number in zip(*columns, strict=False):
            t = clock_s - self._facts.zero_s
            if t < self._clock_s:
                self._findings.add("log", call, f"is told at {t:.9g} s, behind what was at {self._clock_s:.9g} s")
            self._clock_s = t
            if call == "ask" and stop > start:
                self._given[device, start, stop] = t
            elif call in _ENDS and (device, start, stop) in self._given:
                from_s = self._given.pop((device, start, stop))
                self._told[_Life(device, start, stop, from_s, t, call == "done")] += 1
                if (number or 0.0) > t - from_s and not close(number or 0.0, t - from_s):
                    who = f"items {start} to {stop} on {self._name(device)}"
                    self._findings.add("log", who, f"charged with {number:.9g} s, expected at most {t - from_s:.9g} s")
            elif call in _ENDS:
                who = f"items {start} to {stop} on {self._name(device)}"
                self._findings.add("log", who, f"{call} at {t:.9g} s, but given to nobody then, or ended before")

    def _answered(self, rows: Rows) -> None:
        """What the scheduler gave must be what it was asked for, each once."""
        expected, self._answers = self._answers, None
        try:
            ranges = msgspec.convert(rows.columns, _Ranges)
        except msgspec.ValidationError as error:
            self._findings.add("given", "", f"rows of what was given cannot be read: {error}")
            return
        found = [list(pair) for pair in zip_longest(ranges.start, ranges.stop)]
        if expected is None:
            self._findings.add(
                "given", "", f"{len(found)} ranges were given, but nothing was asked, or it was answered"
            )
        elif found != expected:
            at = next(i for i, (a, b) in enumerate(zip_longest(found, expected)) if a != b)
            one, other = (f"{r[at][0]} to {r[at][1]}" if at < len(r) else "none" for r in (found, expected))
            self._findings.add("given", f"answer {at + 1} of {len(expected)}", f"found {one}, expected {other}")

    def _check_answered(self) -> None:
        if self._answers is not None:
            self._findings.add("given", "", f"{len(self._answers)} questions have no answer")

    def finish(self) -> None:
        """What only the end can tell."""
        self._findings.nowhere()
        self._check_answered()
        try:
            summary = msgspec.convert(self._summary, BatchSummary)
        except msgspec.ValidationError as error:
            self._findings.add("summary", "", f"cannot be read: {error}")
            return
        if summary.missing:
            ranges = ", ".join(f"{start} to {stop}" for start, stop in summary.missing)
            self._findings.notes.append(f"these items have no result, and the run says so: {ranges}")
        self._check_items(summary)
        self._check_log(summary)
        self._check_peaks(summary)

    def claims(self) -> dict[str, float]:
        """Its bound, to be shown beside what was counted."""
        bound_s = self._summary.get("bound_makespan_s")
        return {"bound_makespan_s": bound_s} if isinstance(bound_s, int | float) else {}

    def _check_items(self, summary: BatchSummary) -> None:
        before = [(start, stop, "an earlier run") for start, stop in self._facts.done_before]
        at, last = 0, ""
        for start, stop, job in sorted([*self._done, *before]):
            if start < at:
                self._findings.add("double", job, f"items {start} to {min(at, stop)} were done by {last} too")
            if stop > at:
                at, last = stop, job
        total = summary.total if self._facts.items is None else self._facts.items
        if summary.total != total:
            self._findings.add("summary", "total", f"found {summary.total}, expected {total}")
        done = [(start, stop) for start, stop, _ in (*self._done, *before)]
        if not self._facts.shared:
            for start, stop in gaps([*done, *summary.missing], total):
                self._findings.add("gap", "", f"items {start} to {stop} were not done")
        lacking = gaps(done, total)
        for start, stop in summary.missing:
            if not any(a <= start and stop <= b for a, b in lacking):
                message = f"items {start} to {stop} are called missing, but some of them were done"
                self._findings.add("result", "", message)

    def _check_log(self, summary: BatchSummary) -> None:
        """The chunks that were seen must be those that the scheduler was told of, to the last digit of their times."""
        for life in sorted((self._recorded - self._told).elements()):
            self._findings.add("log", self._named(life), "is recorded, but the scheduler was not told so")
        for life in sorted((self._told - self._recorded).elements()):
            self._findings.add("log", self._named(life), "the scheduler was told so, but it is not recorded")
        left = {(device, start, stop): from_s for device, start, stop, from_s in summary.left}
        for place, from_s in sorted((left.items() | self._given.items()) - (left.items() & self._given.items())):
            device, start, stop = place
            who = f"items {start} to {stop} on {self._name(device)} from {from_s:.6g} s"
            self._findings.add("log", who, "given to a device, but neither taken back nor called left")

    def _named(self, life: _Life) -> str:
        how = "done" if life.good else "given up"
        where = f"items {life.start} to {life.stop} on {self._name(life.device)}"
        return f"{where} from {life.from_s:.9g} to {life.to_s:.9g} s, {how}"

    def _name(self, device: int) -> str:
        names = self._facts.devices
        return names[device] if 0 <= device < len(names) else f"device {device}"

    def _check_peaks(self, summary: BatchSummary) -> None:
        peaks = []
        for i, (name, known) in enumerate(zip(self._facts.devices, self._facts.peaks, strict=False)):
            mine = [life for life in self._recorded.elements() if life.good and life.device == i]
            items = sum(life.stop - life.start for life in mine)
            kept = kept_rate(items, [(life.from_s, life.to_s) for life in mine])
            peaks.append(max(known or 0.0, kept))
            if summary.items.get(name) != items:
                self._findings.add("summary", f"items on {name}", f"found {summary.items.get(name)}, expected {items}")
            if self._exact and kept > (known or 0.0) and not close(kept, known or 0.0):
                self._findings.add("peak", name, f"kept {kept} items/s, expected at most {known} by its curve")
            elif known and kept > known and not close(kept, known):
                better = f"{name} kept {kept / known:.3f} times the best rate that was known before"
                self._findings.notes.append(better)
        if len(summary.peaks) != len(peaks) or not all(map(close, summary.peaks, peaks)):
            self._findings.add("peak", "", f"found {summary.peaks}, expected {peaks} items/s")
        expected = bound_makespan_s(self.items_done, peaks)
        if summary.bound_makespan_s is None or not close(summary.bound_makespan_s, expected):
            what = f"{self.items_done} items over {sum(peaks)} items/s"
            self._findings.add("bound", "", f"found {summary.bound_makespan_s} s, expected {expected} s: {what}")


def check_journal(path: Path) -> Report:
    """Check a journal of this level."""
    reader, findings = Reader(path), Findings()
    header = core.check_header(reader.header, path)
    try:
        facts = msgspec.convert(header.facts, BatchFacts)
    except msgspec.ValidationError as error:
        keys, message = explain(error)
        raise InputError(f"{path}:1: {'.'.join(['facts', *map(str, keys)])}: {message}") from None
    rules = BatchRules(header, facts, findings)
    figures = core.check_journal(reader, findings, [rules])
    counted = recount(figures)
    if findings.interrupted:
        findings.notes.append(f"{rules.items_done} of {facts.items or 'unknown'} items had been done")
    else:
        rules.finish()
        counted |= rules.claims()
    return Report.of(str(path), "journal", findings, [], counted)
