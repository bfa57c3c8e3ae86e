"""The level's own rules over a run: every item is done exactly once, and nothing is faster than its devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete
from dovetail.core.files import explain
from dovetail.core.findings import Findings, Report, close
from dovetail.core.journal import Header, Reader
from dovetail.core.metrics import recount
from dovetail.dispatch.recording import gaps

CODES = core.CODES | {
    "range": "a chunk without a range of items, or with one that the batch does not have",
    "gap": "items that no chunk did, and of which the header does not say that they lack a result",
    "double": "items that two chunks did",
    "result": "items that lack a result by the header, but were done",
    "bound": "a bound that is not items over the sum of the peak rates, or a run that is faster than it",
}


class _Range(Struct):
    start: int
    stop: int


class BatchFacts(Struct):
    """What the level adds to a header. `missing`: ranges without a result; `noise`: how much times vary by chance."""

    items: int
    devices: list[str] = []
    missing: list[tuple[int, int]] = []
    peaks: list[float] = []
    bound_makespan_s: float | None = None
    noise: float = 0.0


class BatchRules:
    """Follows a run that the core's checker finds possible."""

    def __init__(self, header: Header, facts: BatchFacts, findings: Findings) -> None:
        self._facts, self._findings = facts, findings
        self._open: dict[str, tuple[int, int]] = {}
        self._done: list[tuple[int, int, str]] = []

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event)
            elif isinstance(event, Complete) and event.job in self._open:
                self._done.append((*self._open.pop(event.job), event.job))

    def _arrived(self, event: Arrived) -> None:
        try:
            found = msgspec.convert(event.facts, _Range)
        except msgspec.ValidationError as error:
            self._findings.add("range", event.job, f"expected start and stop: {error}")
            return
        if 0 <= found.start < found.stop <= self._facts.items:
            self._open[event.job] = (found.start, found.stop)
        else:
            expected = f"expected a range within 0 to {self._facts.items}"
            self._findings.add("range", event.job, f"found {found.start} to {found.stop}, {expected}")

    def finish(self) -> None:
        """What only the end can tell."""
        self._findings.nowhere()
        at, before = 0, ""
        for start, stop, job in sorted(self._done):
            if start < at:
                self._findings.add("double", job, f"items {start} to {min(at, stop)} were done by {before} too")
            if stop > at:
                at, before = stop, job
        done = [(start, stop) for start, stop, _ in self._done]
        for start, stop in gaps([*done, *self._facts.missing], self._facts.items):
            self._findings.add("gap", "", f"items {start} to {stop} were not done")
        lacking = gaps(done, self._facts.items)
        for start, stop in self._facts.missing:
            if not any(a <= start and stop <= b for a, b in lacking):
                self._findings.add(
                    "result", "", f"items {start} to {stop} are called missing, but some of them were done"
                )
        self._check_bound(sum(stop - start for start, stop in done))

    def _check_bound(self, items: int) -> None:
        bound_s, peak = self._facts.bound_makespan_s, sum(self._facts.peaks)
        if bound_s is None:
            return
        if peak <= 0 or not close(bound_s, items / peak):
            self._findings.add("bound", "", f"found {bound_s} s, expected {items} items over {peak} items/s")


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
    if not findings.interrupted:
        rules.finish()
    counted = recount(figures)
    if facts.bound_makespan_s is not None:
        counted["bound_makespan_s"] = facts.bound_makespan_s
    missing = ", ".join(f"{start} to {stop}" for start, stop in facts.missing)
    notes = [f"these items have no result, and the run says so: {missing}"] if missing else []
    return Report.of(str(path), "journal", findings, notes, counted)
