"""Objectives that depend on the pace: the best interval of paces first, each bounded by its fastest pace."""

from __future__ import annotations

import heapq
from math import inf, sqrt

import numpy as np

from dovetail.pipeline.optimise.chains import NEAR, unlike
from dovetail.pipeline.optimise.cheapest import WIDTH, BoundedChain, CheapestChain
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs, Tariff
from dovetail.pipeline.optimise.paces import LeastPace
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

_WIDE = 1.01  # from the slowest pace of an interval to its fastest: above that prices alone bound it
_ROUNDS = 20
_MET = 20  # chains met last in an interval, from which prices in its parts begin
_FEW = 5  # for a wide interval among unlike devices
_ABOVE = (1.1, 1.4, 2.0, 4.0)  # the fastest pace: where a first plan of unlike devices is looked for
_Interval = tuple[float, int, int, int, int]  # bound, first and last pace, width of the next beam, good prices


class Intervals:
    """All chains of a pace within [a, b] cost at least what the cheapest one of pace up to b would cost at pace a."""

    def __init__(self, costs: Costs, tariff: Tariff, clock: SearchClock) -> None:
        self.costs = costs
        self._tariff = tariff
        self._clock = clock
        self._paces = costs.paces
        self._unlike = unlike(costs.tables.counts)
        self._best: Stages | None = None
        self._value = inf
        self._tight: set[int] = set()  # resources of which chains took too much where they were not looked at

    def run(self) -> BoundedChain:
        """The best chain at any pace."""
        low = LeastPace(self.costs, self._clock).rule_out()
        if low >= len(self._paces):
            return BoundedChain(None, inf, inf)
        if self._unlike:
            self._first_plan(low)
        heap: list[_Interval] = [(-inf, low, len(self._paces) - 1, WIDTH, 0)]
        self._known: list[tuple[list[Floats], list[Stages]]] = [([], [])]
        bound = -inf
        while heap:
            bound = heap[0][0]
            if bound >= self._goal or self._clock.over:
                break
            self._clock.tell(self._value, bound)
            for part in self._treat(*heapq.heappop(heap)):
                if part[0] < self._goal:
                    heapq.heappush(heap, part)
        bound = heap[0][0] if heap else inf
        if self._value < inf:
            bound = min(bound, self._value)
        return BoundedChain(self._best, self._value, bound)

    def _treat(
        self, bound: float, low: int, high: int, width: int, guess: int
    ) -> list[tuple[float, int, int, int, int]]:
        """Bound an interval, look for chains in it, and give the parts of it that may hold a better one."""
        a, b = float(self._paces[low]), float(self._paces[high])
        extra = self._tariff.by_pace * a
        search = CheapestChain(
            self.costs.chains(self._tariff, a, b),
            self._clock,
            self._value - extra,
            *self._known[guess],
            tight=self._tight,
        )
        narrow = b <= _WIDE * a or high - low < 2
        search.price(_ROUNDS if narrow or not self._unlike else _FEW)
        for chain in search.prices.allowed:
            self._offer(chain)
        if search.prices.kept:
            met = [] if self._unlike else [cut.chain for cut in search.prices.met[-_MET:]]
            self._known.append(([search.prices.kept[0].prices], met))
            guess = len(self._known) - 1
        if narrow:
            search.beam(width)
            self._tight |= search.tight
        if search.answer.stages is not None:
            self._offer(search.answer.stages)
        bound = max(bound, search.answer.bound + extra)
        if self._clock.over:
            return [(bound, low, high, width, guess)]
        if search.answer.closed and search.answer.stages is None:
            return []
        if low == high or (narrow and search.answer.stages is None and self._needs_width(bound, a, b)):
            return [(bound, low, high, 4 * width, guess)]
        at = int(np.searchsorted(self._paces, sqrt(a * b))) if a > 0 else low + (high - low + 1) // 2
        if narrow and search.answer.stages is not None:
            own = int(np.searchsorted(self._paces, self.costs.pace_s(search.answer.stages)))
            at = own if search.answer.stages is self._best else min(at, own)
        at = min(max(at, low + 1), high)
        return [(bound, low, at - 1, WIDTH, guess), (bound, at, high, WIDTH, guess)]

    def _needs_width(self, bound: float, a: float, b: float) -> bool:
        """Whether to split an interval of paces would not do: even its slowest pace is bounded little better."""
        return self._value < inf and not self._unlike and bound * b < self._goal * a

    def _first_plan(self, low: int) -> None:
        """A chain to begin with, where devices are so unlike that intervals meet one late: at paces further and further
        above the fastest."""
        for factor in _ABOVE:
            pace_s = min(float(self._paces[low]) * factor, float(self._paces[-1]))
            extra = self._tariff.by_pace * pace_s
            chains = self.costs.chains(self._tariff, pace_s, pace_s)
            search = CheapestChain(chains, self._clock, self._value - extra)
            search.price(_FEW)
            found = search.beam(WIDTH).stages
            if found is not None:
                self._offer(found)
        if self._best is None:
            found = LeastPace(self.costs, self._clock.part(0.3 * self._clock.left_s)).any().stages
            if found is not None:
                self._offer(found)

    @property
    def _goal(self) -> float:
        """What is not bounded below this is not worth while."""
        return self._value - NEAR * abs(self._value) if self._value < inf else inf

    def _offer(self, chain: Stages) -> None:
        """A chain, at what it costs at its own pace."""
        value = self.costs.value(self._tariff, chain)
        if value < self._value:
            self._value, self._best = value, chain
