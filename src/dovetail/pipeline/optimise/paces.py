"""The least pace: which is the first of the possible paces that a chain within all limits can have.

A pace is ruled out by prices on resources at which every chain takes more than there is, or by labels of which none was
left out; a chain shows that it is possible. In between, wider and wider beams ask again.
"""

from __future__ import annotations

from math import inf

import numpy as np

from dovetail.pipeline.optimise.chains import LIMIT, Chains, Relaxed, unlike
from dovetail.pipeline.optimise.cheapest import BoundedChain, CheapestChain
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.multipliers import BROKEN, ResourcePrices
from dovetail.pipeline.optimise.scarcity import Scarcity
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

_FIRST = 30  # width of the beams that look for a first plan
_STEPS = (1.0, 1.01, 1.03, 1.06, 1.1, 1.2, 1.4, 2.0, 4.0, 16.0)  # above the bound, where a first plan is looked for
_ROUNDS = 25
_WIDTH = 60  # of the beams that first bisect
_NEAR = (
    0.12  # unlike devices: how near bound and plan come, in units of the pace over the width, before beams get wider
)
_FEW = 60  # width of the beam that looks for fewer devices: what it finds depends on no clock


class LeastPace:
    """Bisection over the possible paces."""

    def __init__(self, costs: Costs, clock: SearchClock) -> None:
        self.costs = costs
        self._clock = clock
        self._tariff, self._latency = costs.tariff("throughput"), costs.tariff("latency")
        self._paces = costs.paces
        self._unlike = unlike(costs.tables.counts)
        self._low = 0  # all paces before this one are ruled out
        self._high = len(self._paces)  # the pace of the best chain
        self._best: Stages | None = None
        self._width = _WIDTH
        self._prices: Floats | None = None  # those that ruled out a pace last
        self._latency_prices: Floats | None = None  # and those at which the least latency was bounded

    def run(self) -> BoundedChain:
        """The least pace and a chain of it, as far as time allows."""
        self._least_latency()
        self.rule_out()
        self._first_plan()
        if self._best is None:
            return self._answer
        if not self._unlike:
            self._bisect(0)
        return self.go_on(self._clock)

    def go_on(self, clock: SearchClock) -> BoundedChain:
        """Beams wider and wider, from where they were when time was over; without a chain, one of any pace first."""
        self._clock = clock
        if self._best is None:
            self._at_last()
            if self._best is None:
                return self._answer
        while self._low < self._high and not self._clock.over:
            self._bisect(self._width, 1 + _NEAR / self._width if self._unlike else 1.0)
            if not self._clock.over:
                self._width *= 4
        self._clock.tell(self._answer.value, self._answer.bound)
        if self._low == self._high:
            self._fewer_devices(self._answer.value)
        return self._answer

    @property
    def _answer(self) -> BoundedChain:
        """What is known: the best chain, its pace, and the first pace that is not ruled out."""
        bound = inf if self._low >= len(self._paces) else float(self._paces[self._low])
        return BoundedChain(self._best, inf if self._best is None else float(self._paces[self._high]), bound)

    def any(self) -> BoundedChain:
        """A chain of whatever pace."""
        self._least_latency()
        if self._best is None:
            self._at_last()
        return BoundedChain(self._best, inf, -inf if self._best or self._low < len(self._paces) else inf)

    def rule_out(self) -> int:
        """The first pace that is not ruled out by shares of the model that devices can take; it costs little."""
        low, high = self._low, len(self._paces)
        while low < high and not self._clock.over:
            middle = (low + high) // 2
            if self._too_fast(middle):
                low = middle + 1
            else:
                high = middle
        self._low = low
        return low

    def _chains(self, at: int) -> Chains:
        return self.costs.chains(self._tariff, 0.0, float(self._paces[at]))

    def _too_fast(self, at: int) -> bool:
        chains = self._chains(at)
        return any(chains.relax(prices).value > BROKEN for prices in self._shares(float(self._paces[at])))

    def _shares(self, pace_s: float) -> list[Floats]:
        """Prices of devices by the largest share of the model that one can take within a pace: by time, by memory."""
        p, costs = self.costs.tables.pipeline, self.costs
        times = np.mean([np.array(c.time_s) / (sum(c.time_s) or 1.0) for c in p.classes], axis=0)
        found = []
        for weights in (times, np.array(p.mem_mib) / (sum(p.mem_mib) or 1.0)):
            ends = np.concatenate([[0.0], np.cumsum(weights)])
            share = ends[None, :] - ends[:, None]
            prices = np.zeros(len(p.classes) + 2)
            for o, option in enumerate(costs.options):
                most = float(share[costs.stage_pace_s[o] <= pace_s].max(initial=0.0)) / option.devices
                prices[option.k] = max(prices[option.k], most)
            total = float(prices[: len(p.classes)] @ np.array(costs.tables.counts, dtype=float))
            if total > 0:
                found.append(prices / total)
        return found

    def _least_latency(self) -> None:
        """A chain of low latency, if prices alone lead to one: it is there at once."""
        cap_s = self.costs.constraints.latency_cap_s
        self._probe_latency(len(self._paces) - 1, inf if cap_s is None else cap_s * LIMIT, 0)

    def _first_plan(self) -> None:
        """A chain, at paces further and further above the bound."""
        last = len(self._paces) - 1
        bound = float(self._paces[min(self._low, last)])
        for step in _STEPS:
            at = int(np.searchsorted(self._paces, bound * step, side="right")) - 1
            if self._low <= at < min(last, self._high) and not self._clock.over and self._probe(at, _FIRST):
                break
        if self._best is None:
            self._at_last()

    def _at_last(self) -> None:
        """A chain of any pace: only beams wide enough tell that there is none."""
        last, width = len(self._paces) - 1, _FIRST
        while self._low <= last and not self._clock.over and self._probe(last, width) is None:
            width *= 4

    def _bisect(self, width: int, near: float = 1.0) -> None:
        """Halve what is left between what is ruled out and the best chain, until they are so near; what stays open
        counts as too fast for now with a beam, and as possible without one."""
        low, high = self._low, self._high
        while low < high and self._paces[high] > near * self._paces[low] and not self._clock.over:
            middle = (low + high) // 2
            answer = self._probe(middle, width)
            if answer is None:
                low, high = (middle + 1, high) if width else (low, middle)
            else:
                low, high = (max(low, self._low), high) if not answer else (low, min(middle, self._high))
            high = min(high, self._high)
            best = float(self._paces[self._high])
            self._clock.tell(best, float(self._paces[self._low]))

    def _probe(self, at: int, width: int) -> bool | None:
        """Whether a chain has this pace or less, None if that stays open; what is learned is kept."""
        if self._unlike:
            return self._probe_scarcity(at, width)
        if self.costs.constraints.latency_cap_s is not None:
            return self._probe_latency(at, self.costs.constraints.latency_cap_s * LIMIT, width)
        chains = self._chains(at)
        prices = ResourcePrices(chains, cost=False)
        guesses = self._shares(float(self._paces[at]))
        if self._prices is not None:
            guesses.insert(0, self._prices)
        prices.start(guesses)
        prices.improve(self._clock, _ROUNDS, BROKEN, inf)
        if prices.kept[0].value > BROKEN:
            self._prices = prices.kept[0].prices
            return self._refuse(at)
        if prices.best is not None:
            return self._accept(prices.best[1])
        if not width:
            return None
        return self._probe_latency(at, inf, width, prices.kept[0])

    def _probe_scarcity(self, at: int, width: int) -> bool | None:
        """Whether chains of this pace can keep all limits, by what they compete for."""
        scarcity = Scarcity(self._chains(at), self._prices)
        scarcity.improve(self._clock)
        if scarcity.met is not None:
            return self._accept(scarcity.met)
        if scarcity.broken:
            return self._refuse(at)
        self._prices = scarcity.best.prices
        found = scarcity.beam(self._clock, width)
        if found.chain is not None:
            return self._accept(found.chain)
        return self._refuse(at) if found.lost == inf else None

    def _probe_latency(self, at: int, cap_s: float, width: int, broken: Relaxed | None = None) -> bool | None:
        """Whether the least latency at this pace is within a cap: a low one guides to chains that keep all limits."""
        chains = self.costs.chains(self._latency, 0.0, float(self._paces[at]), cap=False)
        guesses = [] if self._latency_prices is None else [self._latency_prices]
        search = CheapestChain(chains, self._clock, cap_s, guesses, first=True, broken=broken)
        found = search.run(width, width) if width else search.price()
        if search.prices.kept:
            self._latency_prices = search.prices.kept[0].prices
        if found.stages is not None:
            return self._accept(found.stages)
        return self._refuse(at) if found.closed else None

    def _refuse(self, at: int) -> bool:
        self._low = max(self._low, at + 1)
        return False

    def _accept(self, chain: Stages) -> bool:
        at = int(np.searchsorted(self._paces, self.costs.pace_s(chain)))
        if at < self._high:
            self._high, self._best = at, chain
        return True

    def _fewer_devices(self, pace_s: float) -> None:
        """Of chains of the same pace, one with few devices."""
        search = CheapestChain(self.costs.chains(self.costs.tariff("devices"), 0.0, pace_s), self._clock)
        answer = search.run(most=_FEW)
        if answer.stages is not None:
            self._best = answer.stages
