"""What a service looks after every second beside its programs' use of the machine: times to begin, and logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dovetail.core.events import Asked
from dovetail.core.loop.inbox import Inbox
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.log_rotation import rotate
from dovetail.host.live.specs import Spec
from dovetail.host.metrics import ProgramStatus

_CLOCK_NEWS_S = 1.0


class Upkeep:
    """`now` is the service's clock, by which the scheduler decides."""

    def __init__(self, inbox: Inbox, book: ProgramBook, now: Callable[[], float]) -> None:
        self._inbox, self._book, self._now = inbox, book, now
        self._begins: dict[str, float] = {}  # what the scheduler was last told, where that is not the program's own

    def look(self, rows: Iterable[ProgramStatus]) -> None:
        for row in rows:
            spec = self._book.specs.get(row.program)
            if spec is None:
                continue
            if spec.begin is not None and row.status == "waiting":
                self._look_at_clock(row.program, spec, spec.begin)
            if spec.log_mib:
                for errors in (False, True):
                    with suppress(OSError):
                        rotate(Path(self._book.log_of(row.program, errors)), spec.log_mib)

    def _look_at_clock(self, job: str, spec: Spec, begin: float) -> None:
        """Who begins at a time of the system's clock does so even if that is set, or the machine was asleep."""
        now, told_s = self._now(), self._begins.get(job, spec.begin_s)
        at_s = now + begin - time.time()
        if told_s > now and abs(at_s - told_s) > _CLOCK_NEWS_S:
            self._begins[job] = at_s
            self._inbox.put(Asked(job, "begin", max(at_s, 0.0)))
