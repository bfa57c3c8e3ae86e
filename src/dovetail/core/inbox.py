"""Where what happens comes in, from any thread, for a loop that takes it out in order."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter
from threading import TIMEOUT_MAX, Condition

from dovetail.core.agenda import TotalOrder
from dovetail.core.events import Arrived, Asked, Stimulus


class Inbox:
    """A queue of stimuli. What came in together, or since it was last looked at, goes out together.

    >>> from dovetail.core.events import Asked
    >>> inbox = Inbox()
    >>> inbox.put(Asked("job", "pause"))
    >>> inbox.close()
    >>> inbox.take(), inbox.take()
    ([Asked(job='job', what='pause', value=None)], None)
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


class TimedInbox(Inbox):
    """An inbox on a clock of its own, which jumps to whatever comes next: a live loop in virtual time.

    A simulated executor reports to it as to an agenda, and `now` is the loop's clock. It closes itself when nothing is
    left to come.

    >>> from dovetail.core.events import Asked
    >>> inbox = TimedInbox([(2.0, Asked("job", "pause"))])
    >>> inbox.take(1.5), inbox.now(), inbox.take(1.5), inbox.now(), inbox.take()
    ([], 1.5, [Asked(job='job', what='pause', value=None)], 2.0, None)
    """

    def __init__(self, arrivals: Iterable[tuple[float, Arrived | Asked]] = ()) -> None:
        super().__init__()
        self._agenda = TotalOrder(arrivals)
        self.push, self.cancel, self.pop = self._agenda.push, self._agenda.cancel, self._agenda.pop
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def take(self, timeout_s: float | None = None) -> list[Stimulus] | None:
        waiting = super().take(0.0)
        if waiting:
            return waiting
        next_s = self._agenda.peek()
        if timeout_s is not None and (next_s is None or next_s > self._now + timeout_s):
            self._now = max(self._now + timeout_s, nextafter(self._now, inf))  # however short, time passes
            return []
        if (batch := self._agenda.pop()) is None:
            return None
        self._now = max(self._now, batch[0])
        return batch[1]
