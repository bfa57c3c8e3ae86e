"""The journal of a real run: a thread beside the workers writes what they log, a few times a second.

Workers themselves only append to a list. A run that is killed leaves what was written up to a moment before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

from dovetail.core.journal import Header
from dovetail.dispatch.recording import BatchJournal
from dovetail.dispatch.replay import RecordedScheduler

_EVERY_S = 0.25


class LiveJournal:
    """Follows one run, from its beginning until it has ended or nobody waits for it any more."""

    def __init__(
        self,
        path: Path,
        header: Callable[[float], Header],
        scheduler: RecordedScheduler,
        lock: AbstractContextManager[Any],
    ) -> None:
        """`header` is made from the clock's reading at the beginning."""
        self._path, self._header, self._scheduler, self._lock = path, header, scheduler, lock
        self._journal: BatchJournal | None = None
        self._thread: Thread | None = None
        self._over = Event()
        self._wrong: BaseException | None = None

    def begin(self, ended: Event) -> None:
        """The run begins now; `ended` is set at its end."""
        self._journal = BatchJournal(self._path, self._header(perf_counter()), self._scheduler, self._lock)
        self._thread = Thread(target=self._follow, args=(self._journal, ended), name="dovetail journal", daemon=True)
        self._thread.start()

    def _follow(self, journal: BatchJournal, ended: Event) -> None:
        try:
            with journal:
                while not (self._over.wait(_EVERY_S) or ended.is_set()):
                    journal.flush(perf_counter())
                journal.end(perf_counter())
        except BaseException as error:
            self._wrong = error

    def finish(self) -> None:
        """The run is over: wait until all of it is written."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._wrong is not None:
            raise self._wrong
