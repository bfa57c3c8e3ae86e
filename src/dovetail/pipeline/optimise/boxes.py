"""All plans that no other beats in pace, latency and devices, by boxes of paces and numbers of devices.

The least latency at a box's slowest pace and most devices bounds that of every plan in the box. So a box can hide only
plans of at least its fastest pace, its fewest devices and that latency, and it is known how far these can be from the
plans that were found: its factor. The box of the largest factor is treated next: split where it is wide, and cut down
to what its own plan does not beat where it is narrow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from dovetail.pipeline.optimise.cheapest import WIDTH, CheapestChain
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

ROUNDING = 1e-9  # what is nearer than that, relatively, is the same
_WIDE = 1.05  # from the slowest pace of a box to its fastest
_MANY = 1.2  # from the most devices of a box to its fewest
_ROUNDS = 20


class FrontPoint(NamedTuple):
    """A chain and what counts of it."""

    pace_s: float
    latency_s: float
    devices: int
    stages: Stages

    def covers(self, pace_s: float, latency_s: float, devices: float) -> bool:
        """Whether it is as good in all three, but for rounding."""
        most = 1 + ROUNDING
        return self.pace_s <= pace_s * most and self.latency_s <= latency_s * most and self.devices <= devices

    def factor(self, pace_s: float, latency_s: float, devices: float) -> float:
        """How far, at most, it is above such a plan in any of the three."""
        return max(_over(self.pace_s, pace_s), _over(self.latency_s, latency_s), self.devices / devices - 1, 0.0)


def _over(value: float, least: float) -> float:
    """How far a value is above another, relatively.

    >>> _over(3.0, 2.0), _over(0.0, 0.0), _over(1.0, 0.0)
    (0.5, 0.0, inf)
    """
    return value / least - 1 if least > 0 else 0.0 if value <= 0 else inf


class _Box(NamedTuple):
    """Plans of these paces (by number, both included) and numbers of devices, and of no less than this latency."""

    low: int
    high: int
    fewest: int
    most: int
    latency_s: float
    width: int  # of the next beam
    prices: Floats


class Boxes:
    """The search for the front; `points` are the plans found so far that no other of them beats."""

    def __init__(self, costs: Costs, clock: SearchClock) -> None:
        self._costs = costs
        self._clock = clock
        self._paces = costs.paces
        self._latency, self._devices = costs.tariff("latency"), costs.tariff("devices")
        self._fewest_at: dict[int, int] = {}
        self.points: list[FrontPoint] = []

    def run(self, least_pace_s: float, tell: Callable[[float], None] = lambda factor: None) -> float:
        """Look until time is over; every plan of a pace from this one on is within the factor that is given of one of
        the points, 0 if none is missing. `tell` is told the factor on the way."""
        low = int(np.searchsorted(self._paces, least_pace_s * (1 - ROUNDING)))
        most = min(x for x in (sum(self._costs.tables.counts), self._costs.constraints.max_stages) if x is not None)
        none = np.zeros(len(self._costs.tables.counts) + 2)
        first = _Box(low, len(self._paces) - 1, 1, most, 0.0, WIDTH, none)
        heap: list[tuple[float, int, _Box]] = [(-inf, 0, first)] if low < len(self._paces) else []
        count = 0
        while heap:
            _, _, box = heapq.heappop(heap)
            factor = self._factor(box)  # it falls as plans are found
            if factor <= ROUNDING:
                continue
            if heap and factor < -heap[0][0]:
                count += 1
                heapq.heappush(heap, (-factor, count, box))
                continue
            tell(factor)
            if self._clock.over:
                return factor
            for part in self._treat(box):
                count += 1
                heapq.heappush(heap, (-self._factor(part), count, part))
        return 0.0

    def offer(self, stages: Stages) -> None:
        """A chain, kept if no known one is as good."""
        pace_s, devices = self._costs.pace_s(stages), sum(option.devices for option, _, _ in stages)
        one = FrontPoint(pace_s, self._costs.value(self._latency, stages), devices, stages)
        if not any(point.covers(*one[:3]) for point in self.points):
            self.points = [*(point for point in self.points if not one.covers(*point[:3])), one]

    def _factor(self, box: _Box) -> float:
        """How far a plan that the box hides can be from the nearest one known."""
        corner = float(self._paces[box.low]), box.latency_s, box.fewest
        return min((point.factor(*corner) for point in self.points), default=inf)

    def _treat(self, box: _Box) -> list[_Box]:
        """The parts of a box that may hide plans, with what its slowest pace and most devices tell."""
        box = box._replace(fewest=max(box.fewest, self._fewest(box.high)))
        if box.fewest > box.most:
            return []
        corner = float(self._paces[box.low]), inf, box.fewest
        below = min((point.latency_s for point in self.points if point.covers(*corner)), default=inf)
        chains = self._costs.chains(self._latency, 0.0, float(self._paces[box.high]), box.most)
        guess = np.where(np.isfinite(chains.limits), box.prices, 0.0)
        search = CheapestChain(chains, self._clock, below, [guess])
        split = self._split(box)
        if search.small:
            search.run()
        else:
            search.price(_ROUNDS)
            if len(split) == 1:
                search.beam(box.width)
        answer = search.answer
        for chain in search.prices.allowed:
            self.offer(chain)
        if answer.stages is not None:
            self.offer(answer.stages)
        elif answer.closed:
            return []  # none, or none that the points do not beat
        prices = search.prices.kept[0].prices if search.prices.kept else box.prices
        box = box._replace(latency_s=max(box.latency_s, min(answer.bound, answer.value)), prices=prices)
        if self._clock.over:
            return [box]
        if answer.stages is None or not answer.closed:
            return self._split(box) if len(split) > 1 else [box._replace(width=4 * box.width)]
        return [part for rest in self._beside(box, answer.stages) for part in self._split(rest)]

    def _beside(self, box: _Box, stages: Stages) -> list[_Box]:
        """What is left of a box beside its plan of least latency: faster plans, and as slow ones of fewer devices."""
        at = int(np.searchsorted(self._paces, self._costs.pace_s(stages)))
        devices = sum(option.devices for option, _, _ in stages)
        parts = [box._replace(high=at - 1), box._replace(low=max(at, box.low), most=devices - 1)]
        return [part._replace(width=WIDTH) for part in parts if part.low <= part.high and part.fewest <= part.most]

    def _fewest(self, at: int) -> int:
        """What number of devices no plan of a pace has less than."""
        if at not in self._fewest_at:
            chains = self._costs.chains(self._devices, 0.0, float(self._paces[at]))
            search = CheapestChain(chains, self._clock)
            bound = search.price(_ROUNDS).bound
            if not self._fewest_at:  # at the slowest pace: one plan of few devices is near to many of others
                bound = search.run(most=WIDTH).bound
            for chain in [*search.prices.allowed, *([search.answer.stages] if search.answer.stages else [])]:
                self.offer(chain)
            self._fewest_at[at] = sum(self._costs.tables.counts) + 1 if bound == inf else max(ceil(bound - 1e-6), 1)
        return self._fewest_at[at]

    def _split(self, box: _Box) -> list[_Box]:
        """A wide box in two, by what keeps it furthest from the plans known; a narrow one as it is."""
        a, b = float(self._paces[box.low]), float(self._paces[box.high])
        slower, more = inf if a == 0 < b else b / a if b else 1.0, box.most / box.fewest
        near = min(self.points, key=lambda point: point.factor(a, box.latency_s, box.fewest), default=None)
        apart = 0.0 if near is None else near.devices / box.fewest - 1
        by_devices = near is not None and apart > max(_over(near.pace_s, a), 0.0)
        many = more > (min(_MANY, 1 + apart / 2) if by_devices else _MANY)
        if slower > _WIDE and not (by_devices and many):
            at = min(max(int(np.searchsorted(self._paces, sqrt(a * b))), box.low + 1), box.high)
            return [box._replace(high=at - 1), box._replace(low=at)]
        if many:
            at = int(sqrt(box.fewest * box.most))
            return [box._replace(most=at), box._replace(fewest=at + 1)]
        return [box]
