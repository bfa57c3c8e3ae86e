"""The witness of runs that no engine drives: what was seen is written as it was seen, while the run goes on.

Whoever sees something notes it, from any thread and in any order, with the time at which it happened. Nothing is moved
and nothing is refused: a journal that does not hold together is the checker's to name. A run that is killed leaves what
it noted up to a moment before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from dovetail.core.events import Rows
from dovetail.core.journal import Clock, Ended, Header, Observer, Recorded, Writer

_FLUSH_S = 0.25  # what is noted is on its way to the disk after so long, if anything is noted later


def host_clock() -> Clock:
    """The clock that all processes of one host share, `time.monotonic`, and its resolution.

    >>> host_clock().source
    'monotonic'
    """
    return Clock("monotonic", time.get_clock_info("monotonic").resolution)


class Recorder:
    """Writes a journal in the order in which things are noted; `flush_s` bounds what a killed process loses.

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
        flush_s: float = _FLUSH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a path only the observers are told."""
        self.header = header
        self._writer = Writer(path, header) if path is not None else None
        self._observers: tuple[Observer, ...] = (*([self._writer] if self._writer else ()), *observers)
        self._flush_s, self._clock = flush_s, clock
        self._flushed_s = clock()
        self._lock = Lock()
        self._n = 0
        if self._writer is not None:
            self._writer.flush()

    def note(self, t: float, *events: Recorded) -> None:
        """This happened, or was decided, at one instant."""
        with self._lock:
            self._step(t, events)
            if self._clock() - self._flushed_s >= self._flush_s:
                self._flush()

    def rows(self, of: str, columns: Mapping[str, Sequence[Any]], t: float, decided: bool = False) -> None:
        """Many things of one kind at once, column by column; `t` is when they are told."""
        self.note(t, Rows(of, dict(columns), decided))

    def flush(self) -> None:
        """Send what was noted on its way to the disk now."""
        with self._lock:
            self._flush()

    def end(self, t: float, summary: Mapping[str, Any]) -> None:
        """The run came to its end, with these figures."""
        with self._lock:
            self._step(t, (Ended(dict(summary)),))
            self._flush()

    def close(self) -> None:
        """Without an end before it, the journal is that of a run that was interrupted."""
        if self._writer is not None:
            with self._lock:
                self._writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, t: float, events: Sequence[Any]) -> None:
        self._n += 1
        for observer in self._observers:
            observer.step(self._n, t, events)

    def _flush(self) -> None:
        self._flushed_s = self._clock()
        if self._writer is not None:
            self._writer.flush()
