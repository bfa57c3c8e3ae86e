"""Where the next range comes from: a cursor that devices pull from, and ranges that came back."""

from __future__ import annotations

from typing import Protocol


class Cursor(Protocol):
    """Hands every item out once. An implementation may be shared between processes or machines.

    One that has `give_up(start)` is told of each chunk that failed for good and is skipped.
    """

    @property
    def remaining(self) -> float:
        """Items not handed out; infinite while the end is unknown."""

    def take(self, n: int) -> tuple[int, int]:
        """The next n items, or as many as there are: start and stop, equal at the end."""


class LocalCursor:
    """A cursor of one process; its caller holds a lock.

    >>> cursor = LocalCursor(50, 2000)
    >>> cursor.take(1), cursor.take(1900), cursor.take(100), cursor.take(1), cursor.remaining
    ((50, 51), (51, 1951), (1951, 2000), (2000, 2000), 0)
    """

    __slots__ = ("at", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.at = start
        self.stop = stop

    @property
    def remaining(self) -> float:
        return self.stop - self.at

    def take(self, n: int) -> tuple[int, int]:
        start = self.at
        stop = start + n
        if stop > self.stop:
            stop = self.stop
        self.at = stop
        return start, stop
