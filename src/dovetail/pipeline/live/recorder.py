"""What happened in a run, kept small while it runs: when each stage computed, sent and received each microbatch."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable

from msgspec import Struct

from dovetail.pipeline.live.wire import StageSpan
from dovetail.pipeline.plan import Plan

DATA_HOST = "data host"


class Column:
    """Spans of one kind, on one host, in one layout."""

    def __init__(self) -> None:
        self.numbers = array("q")
        self.starts_s = array("d")
        self.ends_s = array("d")
        self.bits = 32

    def index(self) -> dict[int, tuple[float, float]]:
        """Start and end by microbatch."""
        return dict(zip(self.numbers, zip(self.starts_s, self.ends_s, strict=True), strict=True))


class LayoutRecord(Struct):
    """A plan that was carried out: until when, and why no longer."""

    generation: int
    plan: Plan
    end_s: float | None = None
    why: str = ""


class Recorder:
    """Any thread may note; whoever evaluates does so when the run is over. Times are seconds since the first feed."""

    def __init__(self) -> None:
        self._origin_s: float | None = None
        self._columns: dict[tuple[int, str, str], Column] = {}
        self._lock = threading.Lock()
        self.layouts: list[LayoutRecord] = []

    def note(self, host: str, spans: Iterable[StageSpan], offset_s: float = 0.0) -> None:
        """Take spans by a host whose clock is `offset_s` behind ours."""
        shift_s = offset_s - (self._origin_s or 0.0)
        with self._lock:
            for span in spans:
                key = (span.generation, host, span.what)
                column = self._columns.get(key) or self._columns.setdefault(key, Column())
                column.numbers.append(span.number)
                column.starts_s.append(span.start_s + shift_s)
                column.ends_s.append(span.end_s + shift_s)
                column.bits = span.bits

    def start(self, now_s: float) -> None:
        """Something is fed from now on."""
        if self._origin_s is None:
            self._origin_s = now_s

    def begin(self, generation: int, plan: Plan) -> None:
        self.layouts.append(LayoutRecord(generation, plan))

    def end(self, now_s: float, why: str = "") -> None:
        """The present layout is over."""
        if self.layouts and self.layouts[-1].end_s is None:
            self.layouts[-1].end_s = now_s - (self._origin_s or now_s)
            self.layouts[-1].why = why

    def column(self, generation: int, host: str, what: str) -> Column:
        return self._columns.get((generation, host, what)) or Column()
