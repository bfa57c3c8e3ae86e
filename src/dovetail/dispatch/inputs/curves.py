"""How long a call takes over its number of items: measured points with straight lines between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

from msgspec import Struct

_NEAR_PEAK = 0.99  # a smaller chunk at nearly the peak rate balances better than the very best one


class Curve:
    """Seconds of one call by its size. Below the first point a call costs the same, above the last one the last slope.

    >>> curve = Curve([(1000, 0.004), (5000, 0.020), (9000, 0.060)])
    >>> curve.seconds(500), curve.seconds(3000), round(curve.seconds(10000), 6)
    (0.004, 0.012, 0.07)
    >>> curve.size_within(0.012), curve.size_within(0.001), curve.best, round(curve.rate)
    (3000, 0, 1000, 250000)
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        known: dict[float, float] = {}
        fastest = inf
        for size, seconds in sorted(points, reverse=True):
            fastest = min(fastest, seconds)  # fewer items are never slower: what says so was disturbed
            known[size] = fastest
        if not known:
            raise ValueError("a curve needs at least one point")
        self.sizes: list[float] = list(known)[::-1]
        self.times: list[float] = list(known.values())[::-1]
        self._slope = self._last_slope()
        rates = [size / seconds if seconds else inf for size, seconds in zip(self.sizes, self.times, strict=True)]
        peak = max(rates)
        self.best = int(self.sizes[next(i for i, rate in enumerate(rates) if rate >= _NEAR_PEAK * peak)])
        self.best_s = self.seconds(self.best)
        self.rate = self.best / self.best_s if self.best_s else inf
        self.tail = self.size_within(1.5 * self.best_s)  # the largest call worth making when it is the last one

    def _last_slope(self) -> float:
        """Seconds per further item: as the last two points say, but never a call that is better than all measured."""
        average = self.times[-1] / self.sizes[-1]
        if len(self.sizes) == 1:
            return average
        step = (self.times[-1] - self.times[-2]) / (self.sizes[-1] - self.sizes[-2])
        return max(step, 0.5 * average)

    def seconds(self, size: float) -> float:
        """How long a call over so many items takes."""
        sizes, times = self.sizes, self.times
        i = bisect_left(sizes, size)
        if i == 0:
            return times[0]
        if i == len(sizes):
            return times[-1] + self._slope * (size - sizes[-1])
        share = (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return times[i - 1] + share * (times[i] - times[i - 1])

    def size_within(self, seconds: float) -> int:
        """How many items one call handles in that time; 0 when it is shorter than the shortest call."""
        sizes, times = self.sizes, self.times
        if seconds < times[0]:
            return 0
        i = bisect_right(times, seconds)
        if i == len(times):
            return int(sizes[-1] + (seconds - times[-1]) / self._slope) if self._slope else int(sizes[-1])
        share = (seconds - times[i - 1]) / (times[i] - times[i - 1])
        return int(sizes[i - 1] + share * (sizes[i] - sizes[i - 1]))

    def items_within(self, seconds: float) -> int:
        """How many items calls of good sizes, one after the other, handle in that time.

        >>> Curve([(1000, 0.004)]).items_within(0.010)
        2500
        """
        if seconds < self.times[0]:
            return 0
        if self.best_s <= 0:
            return 1 << 62
        full = int(seconds / self.best_s)
        items = full * self.best + self.size_within(seconds - full * self.best_s)
        return max(items, full * self.size_within(seconds / full)) if full else items

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.sizes, self.times, strict=True))

    @classmethod
    def linear(cls, latency_s: float, rate: float, largest: int) -> Curve:
        """A fixed latency and a rate.

        >>> Curve.linear(0.004, 200_000, 100_000).seconds(20_000)
        0.104
        """
        return cls([(1, latency_s + 1 / rate), (largest, latency_s + largest / rate)])


class Published(Struct, frozen=True):
    """A device's curve as a table states it: `latency_s` up to `flat` items, `rate` items/s at the best size."""

    latency_s: float
    flat: float
    rate: float
    best: int

    def curve(self, call_s: float = 20e-6) -> Curve:
        """Flat, then straight to the best size, then on without gain; every call costs `call_s` on top.

        >>> curve = PUBLISHED["scpcoup"]["cpu"].curve()
        >>> curve.best, round(curve.rate), round(128 / curve.seconds(128))
        (32, 5283, 3368)
        """
        at_best = self.best / self.rate
        flat = min(self.flat, 0.8 * self.latency_s * self.rate)  # the fit must not beat the rate that was seen
        slope = max(self.latency_s / self.flat, (at_best + call_s) / self.best)
        points = [(1.0, self.latency_s), (flat, self.latency_s), (float(self.best), at_best)]
        points.append((4.0 * self.best, at_best + 3 * self.best * slope))
        return Curve([(size, seconds + call_s) for size, seconds in points])


def _step(t0_ms: float, flat: float, rate: float, best: int) -> Published:
    return Published(t0_ms / 1000 / 100, flat, rate, best)  # the table times 100 steps


# NEML2's published benchmark: Xeon Gold 6346 with 32 threads, and RTX A5000; float64, one step.
PUBLISHED: dict[str, dict[str, Published]] = {
    "elasticity": {"cpu": _step(5.5, 26546, 505e6, 65536), "cuda": _step(6.2, 65257, 798e6, 65536)},
    "radret": {"cpu": _step(39.7, 1442, 6.68e6, 65536), "cuda": _step(75, 15974, 24.9e6, 65536)},
    "isoharden": {"cpu": _step(49.8, 844, 3.50e6, 32768), "cuda": _step(95, 14594, 17.9e6, 65536)},
    "gtntheig": {"cpu": _step(131, 347, 0.675e6, 16384), "cuda": _step(239, 3458, 1.65e6, 65536)},
    "chaboche2": {"cpu": _step(128, 168, 0.181e6, 8192), "cuda": _step(281, 3013, 1.26e6, 65536)},
    "chaboche6": {"cpu": _step(217, 71, 47.7e3, 1024), "cuda": _step(420, 360, 102e3, 8192)},
    "scpdecoup": {"cpu": _step(225, 8.7, 6.1e3, 32), "cuda": _step(458, 2532, 623e3, 65536)},
    "scpcoup": {"cpu": _step(183, 5.5, 5.3e3, 32), "cuda": _step(389, 1449, 442e3, 32768)},
}
