"""How long a search may go on, and whom it tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

Tell = Callable[[float, float], object]  # the best value known (infinite: none yet) and the bound; True ends the search
_EVERY_S = 0.1


class SearchClock:
    """Seconds that are left to a search, of the wall clock; every loop of a search asks it.

    >>> SearchClock(inf).over, SearchClock(0.0).over, SearchClock(inf, lambda best, bound: True).over
    (False, True, True)
    """

    def __init__(self, limit_s: float = inf, tell: Tell | None = None) -> None:
        self._end_s = time.monotonic() + limit_s
        self._tell = tell
        self._told_s = -inf
        self._known = (inf, -inf)
        self.stopped = False

    @property
    def over(self) -> bool:
        now_s = time.monotonic()
        if self._tell is not None and now_s >= self._told_s + _EVERY_S:
            self._told_s = now_s
            self.stopped = self.stopped or self._tell(*self._known) is True
        return self.stopped or now_s >= self._end_s

    @property
    def left_s(self) -> float:
        return 0.0 if self.stopped else max(self._end_s - time.monotonic(), 0.0)

    def part(self, limit_s: float) -> SearchClock:
        """A clock for some of the time that is left."""
        return SearchClock(min(self.left_s, limit_s), lambda best, bound: self.over)

    def tell(self, best: float, bound: float) -> None:
        """What is known by now."""
        self._known = (best, bound)
