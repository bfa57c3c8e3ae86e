"""The live loop in virtual time: what a service does in an hour is tried in a moment, and the same each time."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter

from dovetail.core.events import Arrived, Asked, Stimulus
from dovetail.core.loop.agenda import TotalOrder
from dovetail.core.loop.inbox import Inbox


class TimedInbox(Inbox):
    """An inbox on a clock of its own, which jumps to whatever comes next: a live loop in virtual time.

    A simulated executor reports to it as to an agenda, and `now` is the loop's clock. It closes itself when nothing is
    left to come.

    >>> from dovetail.core.events import Asked
    >>> inbox = TimedInbox([(2.0, Asked("job", "pause"))])
    >>> inbox.take(1.5), inbox.now(), inbox.take(1.5), inbox.now(), inbox.take()
    ([], 1.5, [Asked(job='job', what='pause', value=None, facts={})], 2.0, None)
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
