"""A chunk of a batch: a range of its items on one device, and the line that the log keeps of it."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from dovetail.core.errors import InputError


class ResultFormError(InputError):
    """Results that cannot be put together; they would be the same on any device."""


class Chunk:
    """A range of a batch in the hands of one device."""

    __slots__ = (
        "attempt",
        "avoid",
        "begun_s",
        "claimed",
        "device",
        "due_s",
        "error",
        "rival",
        "run",
        "settled",
        "start",
        "stop",
    )

    def __init__(
        self, start: int, stop: int, device: int, attempt: int = 1, avoid: frozenset[int] = frozenset()
    ) -> None:
        self.start = start
        self.stop = stop
        self.device = device
        self.attempt = attempt
        self.avoid = avoid  # devices that failed on it
        self.begun_s = 0.0
        self.due_s = inf
        self.rival: Chunk | None = None  # the same range on another device
        self.claimed = False  # it was the first to end, and its result counts
        self.settled = False  # its result has been stored
        self.error: BaseException | None = None  # why it came back
        self.run: Any = None

    def __len__(self) -> int:
        return self.stop - self.start


class ChunkRow(NamedTuple):
    """One line of the log: what a device did with a range. `state`: done, lost (another was first), or the error."""

    device: int
    start: int
    stop: int
    begun_s: float
    ended_s: float
    attempt: int
    state: str
