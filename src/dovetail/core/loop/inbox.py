"""Where what happens comes in, from any thread, for a loop that takes it out in order."""

from __future__ import annotations

from collections.abc import Iterable
from threading import TIMEOUT_MAX, Condition

from dovetail.core.events import Stimulus


class Inbox:
    """A queue of stimuli. What came in together, or since it was last looked at, goes out together.

    >>> from dovetail.core.events import Asked
    >>> inbox = Inbox()
    >>> inbox.put(Asked("job", "pause"))
    >>> inbox.close()
    >>> inbox.take(), inbox.take()
    ([Asked(job='job', what='pause', value=None, facts={})], None)
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[Stimulus] = []
        self._closed = False

    def put(self, *stimuli: Stimulus) -> None:
        """Add what happened; together if they are given together."""
        self.extend(stimuli)

    def extend(self, stimuli: Iterable[Stimulus]) -> None:
        with self._changed:
            self._waiting += stimuli
            self._changed.notify()

    def close(self) -> None:
        """Nothing more will be taken once it is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        """Everything that has come in, at the latest after so many seconds; None if it is closed and empty."""
        with self._changed:
            limit_s = None if timeout_s is None else min(timeout_s, TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._waiting or self._closed, limit_s)
            taken, self._waiting = self._waiting, []
            return taken if taken or not self._closed else None
