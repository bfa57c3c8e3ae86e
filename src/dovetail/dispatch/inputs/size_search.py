"""Find a device's best chunk size from real chunks: sizes grow until larger ones gain nothing, and are tried again.

Whatever else a machine does only adds to the time of a chunk. So one good time proves that a size is good, and three
bad ones do not prove that it is bad: sizes above the best are tried again later, for a small share of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.dispatch.inputs.curves import Curve

UNLIMITED = 1 << 62  # items
_FIRST = 32  # items; some models are fastest at that
_FIRST_ON_ACCELERATOR = 256
LEAST_COMPILED = 256  # of what is compiled for every size
_GROWTH = 4
_GROWTH_COMPILED = 8  # of what is compiled for every size anew, few sizes are tried: PyTorch gives up after eight
_GAIN = 1.05  # a larger size must gain this much to be worth its coarser grain
_ALIKE = 0.1  # sizes that differ by less are the same
_NEW = 1.4  # sizes that differ by more have times of their own
_KEPT = 3  # times of a size, of which the median counts
_DOUBT = 1.3  # times slower than smaller sizes: it must be measured so often before it is believed
_LONG_S = 0.5  # a chunk this long hides any latency
_SHARE = 0.03  # of a device's time, which trying larger sizes again may cost
_REST = 8  # chunks between the end of a search and the first doubt about it: a disturbance is over by then


@dataclass
class SizeSearch:
    """Sizes to try, one after the other.

    The first call of a size pays for what is lazy (memory, libraries, compiling): it counts only until the second one.
    A size that gains is left at once for a larger one; one that does not is tried three times more.

    >>> search = SizeSearch()
    >>> while not search.settled:
    ...     search.add(search.size, 0.001 + search.size / 1e6)
    >>> search.curve().best
    131072
    """

    size: int = 0  # the next to try
    accelerator: bool = False
    largest: int = UNLIMITED  # what fits in memory, or was allowed
    settled: bool = False  # nothing is to be tried now
    looks: int = 0  # how often larger sizes have been tried again since the best was found
    times: dict[int, list[float]] = field(default_factory=dict)
    first: set[int] = field(default_factory=set)  # sizes of which only the first call is known
    bounds: set[int] = field(default_factory=set)  # sizes of which only the least time is known that they take
    misses: int = 0
    again: bool = False  # what is tried has been tried before
    refining: list[int] | None = None  # sizes beside the best that are left to try
    rest: int = 0  # chunks until larger sizes may be tried again
    credit_s: float = 0.0  # time that this may cost
    kept: bool = False  # what is known is from before, and nothing has confirmed it yet
    few: bool = False  # the function is compiled for every size: chunks have few of them
    called: set[int] = field(default_factory=set)  # sizes that it was compiled for

    def __post_init__(self) -> None:
        first = LEAST_COMPILED if self.few else _FIRST_ON_ACCELERATOR if self.accelerator else _FIRST
        self.size = self.size or first

    @property
    def growth(self) -> int:
        return _GROWTH_COMPILED if self.few else _GROWTH

    def bucket(self, size: int, left: float) -> int:
        """One of the few sizes of what is compiled: the largest that is no more; what is left in the end as it is.

        >>> [SizeSearch(few=True).bucket(size, 10_000) for size in (5_000, 300, 100)]
        [2048, 256, 256]
        """
        found = LEAST_COMPILED
        if left < found:
            return int(left)
        while found * _GROWTH_COMPILED <= min(size, left):
            found *= _GROWTH_COMPILED
        return found

    def is_compiling(self, size: int) -> bool:
        """Whether this is the first call of a size, which does not count: it compiles."""
        if not self.few or size in self.called:
            return False
        self.called.add(size)
        return True

    def add(self, size: int, seconds: float) -> None:
        """A chunk of this size took so long; the next size follows from it."""
        if not self.wants(size):
            return
        asked = size == self.size and not self.settled
        if asked and self.again:
            self._pay(size, seconds)
        known = size if asked else self._near(size)
        size, seconds = known, seconds * known / size
        if size not in self.times:
            self.times[size] = [seconds]
            self.first.add(size)
        elif size in self.first:
            self.first.remove(size)
            self.times[size] = [seconds]
        else:
            self.times[size] = [*self.times[size], seconds][-_KEPT:]
        if asked:
            self._decide(size)
        elif not self.settled and self.refining is None and size > self.size and size == self._best():
            self.size = size * self.growth  # nothing below it is worth a try any more

    def bound(self, size: int, seconds: float) -> None:
        """A chunk of this size takes at least so long."""
        known = set(self.times)
        self.add(size, seconds)
        self.bounds |= self.times.keys() - known

    def forget_bounds(self) -> None:
        """A chunk came to its end: what it took tells more."""
        for size in self.bounds:
            self.times.pop(size, None)
        self.first -= self.bounds
        self.bounds.clear()

    def _decide(self, size: int) -> None:
        best = self._best(exclude=size)
        gained = best is None or self._rate(size) > _GAIN * self._rate(best)
        if not gained and (size in self.first or len(self.times[size]) < _KEPT):
            return  # it may have been disturbed
        self.misses = 0 if gained else self.misses + 1
        self.again = self.again and not gained
        if self.refining is not None:
            self._next_of(self.refining)
        elif self.misses < 2 and self._seconds(size) <= _LONG_S and size * self.growth <= self.largest:
            self._try(size * self.growth)
        elif self.again or self.few:
            self._settle()
        else:
            best = self._best() or size
            larger = self._seconds(best) <= _LONG_S / 2 and best * 2 <= self.largest
            self._next_of([best // 2] * (best > 1) + [best * 2] * larger)

    def _next_of(self, sizes: list[int]) -> None:
        """Go on with the first of these that has not been tried."""
        new = [size for size in sizes if size not in self.times]
        self.refining = new[1:]
        if new:
            self._try(new[0])
        else:
            self._settle()

    def _try(self, size: int) -> None:
        self.size = size
        if self.again:
            self.times.pop(size, None)
            self.first.discard(size)

    def _settle(self) -> None:
        best = self._best()
        nothing_above = best is not None and (self._seconds(best) > _LONG_S or best * self.growth > self.largest)
        self.looks += self.again or nothing_above
        self.settled, self.again, self.misses, self.refining, self.rest = True, False, 0, None, _REST

    def worked(self, seconds: float) -> None:
        """The device, or those beside it, worked so long: some of it may go into trying larger sizes again."""
        self.credit_s += _SHARE * seconds
        self.rest -= 1
        best = self._best()
        if not self.settled or self.rest > 0 or best is None or best * self.growth > self.largest:
            return
        if self._seconds(best) <= _LONG_S and (not self.looks or self.credit_s >= self.growth * self._seconds(best)):
            self.settled, self.again, self.misses = False, True, 0
            self._try(best * self.growth)

    def _pay(self, size: int, seconds: float) -> None:
        """A chunk of another size is real work: it costs what it took longer than at the best; a stall does not."""
        best = self._best(exclude=size)
        if best is not None:
            at_best_s = size / self._rate(best)
            self.credit_s -= min(max(0.0, seconds - at_best_s), _GROWTH * at_best_s)

    def wants(self, size: int) -> bool:
        """Whether a chunk of this size tells something about sizes."""
        if (size == self.size and not self.settled) or self.is_new(size):
            return True
        known = self.times.get(self._near(size))
        return known is not None and len(known) < _KEPT

    def _near(self, size: int) -> int:
        """The size that this one is counted as: one that was tried, if it is hardly another."""
        return min((known for known in self.times if abs(known - size) <= _ALIKE * size), default=size)

    def resume(self, points: list[tuple[float, float]]) -> None:
        """Begin with what was measured before; whether larger sizes gain is looked at soon."""
        self.times = {int(size): [seconds] * _KEPT for size, seconds in points}
        self.settled = self.kept = True

    @property
    def sure(self) -> bool:
        """Whether sizes have gained, or one was tried often enough."""
        return len(self.times) >= _KEPT or any(len(known) >= _KEPT for known in self.times.values())

    def is_new(self, size: int) -> bool:
        """Whether no size near this one was measured."""
        return all(max(size, known) > _NEW * min(size, known) for known in self.times)

    def limit(self, largest: int) -> None:
        """Chunks above this do not fit."""
        self.largest = min(self.largest, largest)
        if self.size > self.largest:
            self.size = max(1, self.largest)
            if self.times:
                self._settle()

    def _seconds(self, size: int) -> float:
        known = sorted(self.times[size])
        return known[(len(known) - 1) // 2]

    def _rate(self, size: int) -> float:
        return size / max(self._seconds(size), 1e-12)

    def _best(self, exclude: int = 0) -> int | None:
        return max((size for size in self.times if size != exclude), key=self._rate, default=None)

    def curve(self) -> Curve | None:
        """What was measured so far; None before the first chunk. A size that looks slow counts when that is sure."""
        points, peak = [], 0.0
        for size in sorted(self.times):
            sure = size not in self.first and len(self.times[size]) >= _KEPT
            if sure or _DOUBT * self._rate(size) >= peak:
                points.append((size, self._seconds(size)))
                peak = max(peak, self._rate(size))
        return Curve(points) if points else None
