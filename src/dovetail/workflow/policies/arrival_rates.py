"""How often nodes of a model come and how long they take, from what has come so far: no forecast."""

from __future__ import annotations

from collections import deque
from math import sqrt

_TIMES = 100  # arrivals that a rate looks back on
_SIZES = 1000  # from then on, a mean size forgets


class ArrivalRate:
    """Of one model's nodes.

    >>> rate = ArrivalRate()
    >>> for t in (0.0, 10.0, 20.0):
    ...     rate.add(t, 4.0)
    >>> round(rate.windows(30.0), 3)  # silence lowers it
    0.235
    """

    __slots__ = ("_times", "seen", "size_s")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_TIMES)
        self.seen = 0
        self.size_s = 0.0  # mean

    def add(self, now: float, size_s: float) -> None:
        """A node became ready."""
        self.seen += 1
        self.size_s += (size_s - self.size_s) / min(self.seen, _SIZES)
        self._times.append(now)

    def per_s(self, now: float) -> float:
        """Arrivals per second: those of late over the time since the first of them."""
        times = self._times
        return (len(times) - 1) / (now - times[0] + self.size_s) if len(times) > 1 else 0.0

    def windows(self, now: float) -> float:
        """Windows of speed 1 that are needed to keep up."""
        return self.per_s(now) * self.size_s

    @property
    def doubt(self) -> float:
        """Relative standard error of `windows`."""
        return sqrt(1 / len(self._times) + 1 / min(self.seen, _SIZES))
