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

    __slots__ = ("_instants", "_kept", "seen", "size_s")

    def __init__(self) -> None:
        self._instants: deque[tuple[float, int]] = deque()  # of late, and how many came at each
        self._kept = 0  # arrivals at these instants
        self.seen = 0
        self.size_s = 0.0  # mean

    def add(self, now: float, size_s: float) -> None:
        """A node became ready."""
        self.seen += 1
        self.size_s += (size_s - self.size_s) / min(self.seen, _SIZES)
        instants = self._instants
        at_once = instants.pop()[1] if instants and instants[-1][0] == now else 0
        instants.append((now, at_once + 1))
        self._kept += 1
        while self._kept - instants[0][1] >= _TIMES:
            self._kept -= instants.popleft()[1]

    def per_s(self, now: float) -> float:
        """Arrivals per second: those since the first instant. A batch that comes at once says nothing of the future."""
        if not self._kept:
            return 0.0
        first_s, at_once = self._instants[0]
        return (self._kept - at_once) / (now - first_s + self.size_s) if self._kept > at_once else 0.0

    def windows(self, now: float) -> float:
        """Windows of speed 1 that are needed to keep up."""
        return self.per_s(now) * self.size_s

    @property
    def doubt(self) -> float:
        """Relative standard error of `windows`."""
        return sqrt(1 / self._kept + 1 / min(self.seen, _SIZES))
