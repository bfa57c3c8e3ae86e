"""A chunk of a batch: a range of its items on one device, and the line that the log keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from dovetail.core.errors import InputError


class ResultFormError(InputError):
    """Results that cannot be put together; they would be the same on any device."""


class InputChangedError(ResultFormError):
    """A function that changes its input was to be called again with items that it may have changed already."""


@dataclass(slots=True, eq=False)
class Chunk:
    """A range of a batch in the hands of one device."""

    start: int
    stop: int
    device: int
    attempt: int = 1
    avoid: frozenset[int] = frozenset()  # devices that failed on it
    begun_s: float = 0.0
    due_s: float = inf
    cpu_s: float = 0.0  # what it took of the CPU, where that was measured
    rival: Chunk | None = None  # the same range on another device
    claimed: bool = False  # it was the first to end, and its result counts
    settled: bool = False  # its result has been stored
    error: BaseException | None = None  # why it came back
    again: bool = False  # the function may have been called with these items before
    run: Any = None

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


def gaps(ranges: Sequence[tuple[int, int]], items: int) -> list[tuple[int, int]]:
    """What ranges leave out of so many items.

    >>> gaps([(4, 6), (0, 3)], 8)
    [(3, 4), (6, 8)]
    """
    found, at = [], 0
    for start, stop in sorted([*ranges, (items, items)]):
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    return found
