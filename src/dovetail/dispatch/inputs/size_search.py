"""Find a device's best chunk size from the first real chunks: sizes grow until larger ones gain nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.dispatch.inputs.curves import Curve

UNLIMITED = 1 << 62  # items
_FIRST = 32  # items; some models are fastest at that
_FIRST_ON_ACCELERATOR = 256
_GROWTH = 4
_GAIN = 1.05  # a larger size must gain this much to be worth its coarser grain
_SHORT_S = 0.005  # a chunk this short is measured twice, for little disturbs it much
_LONG_S = 0.5  # a chunk this long hides any latency


@dataclass
class SizeSearch:
    """Sizes to try, one after the other; the first call of all is not counted, for it pays for what is lazy.

    >>> search = SizeSearch()
    >>> while not search.settled:
    ...     search.add(search.size, 0.001 + search.size / 1e6)
    >>> search.curve().best
    131072
    """

    size: int = 0
    accelerator: bool = False  # the first chunk of a size also pays for memory there
    largest: int = UNLIMITED  # what fits in memory, or was allowed
    settled: bool = False
    times: dict[int, float] = field(default_factory=dict)
    warm: bool = False
    misses: int = 0
    refining: list[int] = field(default_factory=list)
    paid: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.size = self.size or (_FIRST_ON_ACCELERATOR if self.accelerator else _FIRST)

    def add(self, size: int, seconds: float) -> None:
        """A chunk of this size took so long; the next size follows from it."""
        if not self.warm:
            self.warm = True
            return
        if self.accelerator and size not in self.paid:
            self.paid.add(size)
            return
        first = size not in self.times
        if self.settled or not self._record(size, seconds) or (first and seconds < _SHORT_S):
            return
        best = self._best(exclude=size)
        gained = best is None or size / self.times[size] > _GAIN * best / self.times[best]
        self.misses = 0 if gained else self.misses + 1
        if self.refining:
            self._refine(self.refining.pop(0))
        elif self.misses >= 2 or seconds > _LONG_S or size * _GROWTH > self.largest:
            best = self._best() or size
            long = self.times[best] > _LONG_S / 2
            self.refining = [best // 2] if best > 1 else []
            self.refining += [] if long or best * 2 > self.largest else [best * 2]
            self._refine(self.refining.pop(0) if self.refining else 0)
        else:
            self.size = size * _GROWTH

    def wants(self, size: int, seconds: float) -> bool:
        """Whether a chunk of this size that took so long tells something about sizes."""
        if not self.warm or size == self.size or self.is_new(size):
            return True
        return seconds > _LONG_S and size in self.times

    def resume(self, points: list[tuple[float, float]], further: int) -> None:
        """Go on from what was measured before."""
        self.times = {int(size): seconds for size, seconds in points}
        self.size, self.warm = further, True

    def _record(self, size: int, seconds: float) -> bool:
        """Keep a measurement; False if it is of another size than the one to be tried, so that nothing follows."""
        asked = size == self.size
        if asked or self.is_new(size):
            self.times[size] = min(seconds, self.times.get(size, seconds))
        return asked or (seconds > _LONG_S and size in self.times)

    def is_new(self, size: int) -> bool:
        """Whether no size near this one was measured."""
        return size.bit_length() not in {known.bit_length() for known in self.times}

    def _refine(self, size: int) -> None:
        self.settled = not size or size in self.times
        if self.settled and self.refining:
            self._refine(self.refining.pop(0))
            return
        self.size = size or self.size

    def limit(self, largest: int) -> None:
        """Chunks above this do not fit."""
        self.largest = min(self.largest, largest)
        if self.size > self.largest:
            self.settled = bool(self.times)
            self.size = max(1, self.largest)

    def _best(self, exclude: int = 0) -> int | None:
        sizes = [size for size in self.times if size != exclude]
        return max(sizes, key=lambda size: size / self.times[size], default=None)

    def curve(self) -> Curve | None:
        """What was measured so far; None before the second chunk."""
        return Curve(self.times.items()) if self.times else None
