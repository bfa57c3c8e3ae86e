"""The witness of runs that no engine drives: what was seen is written as it was seen, while the run goes on.

Whoever sees something notes it, from any thread and in any order, with the time at which it happened. Nothing is moved
and nothing is refused: a journal that does not hold together is the checker's to name. A run that is killed leaves what
it noted up to a moment before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Lock, Thread
from typing import Any

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Clock, Ended, Header, Observer, Recorded, Writer

_FLUSH_S = 0.25


def host_clock() -> Clock:
    """The clock that all processes of one host share, `time.monotonic`, and its resolution.

    >>> host_clock().source
    'monotonic'
    """
    return Clock("monotonic", time.get_clock_info("monotonic").resolution)


class Recorder:
    """Writes a journal in the order in which things are noted, and sends it on its way to the disk every `flush_s`
    seconds, which bounds what a killed process loses. What goes wrong then is raised at the next note.

    >>> from dovetail.core.events import Observed
    >>> from dovetail.core.journal import Reader
    >>> from dovetail.core.resources import Pool
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> header = Header(level="mine", policy="none", pool=Pool.parse("1", {}), clock=host_clock(), order="written")
    >>> with Recorder(path, header) as recorder:
    ...     recorder.note(0.5, Observed("ready"))
    ...     recorder.end(1.0, {})
    >>> [(t, type(event).__name__) for _, t, event in Reader(path)]
    [(0.5, 'Observed'), (1.0, 'Ended')]
    """

    def __init__(
        self,
        path: Path | None,
        header: Header,
        observers: Sequence[Observer] = (),
        flush_s: float | None = None,
        gather: Callable[[], object] | None = None,
    ) -> None:
        """Without a path only the observers are told. `gather` is called before each of those flushes: it notes what a
        run only logs while it is busy, and may close the journal."""
        if flush_s is not None and not 0 < flush_s <= TIMEOUT_MAX:
            raise InputError(f"flush_s: expected a positive number of seconds, found {flush_s}")
        self.header = header
        self._writer = Writer(path, header) if path is not None else None
        self._observers: tuple[Observer, ...] = (*([self._writer] if self._writer else ()), *observers)
        self._lock, self._closed = Lock(), Event()
        self._failed: DovetailError | None = None  # what came of a flush that nobody had asked for
        self._n = 0
        if self._writer is not None:
            self._writer.flush()
            every_s = _FLUSH_S if flush_s is None else flush_s
            Thread(target=self._flush_until_closed, args=(every_s, gather), name="journal", daemon=True).start()

    def note(self, t: float, *events: Recorded) -> None:
        """This happened, or was decided, at one instant."""
        with self._lock:
            self._step(t, events)

    def rows(self, of: str, columns: Mapping[str, Sequence[Any]], t: float, decided: bool = False) -> None:
        """Many things of one kind at once, column by column; `t` is when they are told."""
        self.note(t, Rows(of, dict(columns), decided))

    def flush(self) -> None:
        """Send what was noted on its way to the disk now."""
        with self._lock:
            if self._writer is not None:
                self._writer.flush()

    def end(self, t: float, summary: Mapping[str, Any]) -> None:
        """The run came to its end, with these figures."""
        with self._lock:
            self._step(t, (Ended(dict(summary)),))
        self.flush()

    def close(self) -> None:
        """Without an end before it, the journal is that of a run that was interrupted."""
        with self._lock:
            self._closed.set()
            if self._writer is not None:
                self._writer.close()
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, t: float, events: Sequence[Any]) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed.is_set():
            raise DovetailError(f"{events} at {t} s was noted after the journal was closed")
        self._n += 1
        for observer in self._observers:
            observer.step(self._n, t, events)

    def _flush_until_closed(self, every_s: float, gather: Callable[[], object] | None) -> None:
        while not self._closed.wait(every_s):
            try:
                if gather is not None:
                    gather()
                self.flush()
            except DovetailError as error:
                self._failed = error
                return
