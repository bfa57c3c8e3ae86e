"""The fewest devices at a pace: many chains use as many, so prices and labels alone hardly tell which one keeps the cap
and finds its classes free. The least latency of chains with so many devices at most does, and halves what is open."""

from __future__ import annotations

from math import ceil, inf

from dovetail.pipeline.optimise.chains import LIMIT, unlike
from dovetail.pipeline.optimise.cheapest import WIDTH, BoundedChain, CheapestChain
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.stages import Stages


class FewestDevices:
    """The search for a chain of at most this pace that uses fewer devices than one that is known."""

    def __init__(self, costs: Costs, clock: SearchClock, pace_s: float, known: Stages) -> None:
        self._costs = costs
        self._clock = clock
        self._pace_s = pace_s
        self._known = known
        cap_s = costs.constraints.latency_cap_s
        self._cap_s = inf if cap_s is None else cap_s * LIMIT
        self._latency = costs.tariff("latency")

    def run(self) -> BoundedChain:
        """The fewest devices, as far as time allows; the chain that is known if none with fewer is found."""
        chains = self._costs.chains(self._costs.tariff("devices"), 0.0, self._pace_s)
        own = float(sum(option.devices for option, _, _ in self._known))
        if unlike(chains.counts):
            found = CheapestChain(chains, self._clock, tell=True).run()
            good = found.stages is not None and found.value <= own
            return found if good else BoundedChain(self._known, own, min(found.bound, own))
        search = CheapestChain(chains, self._clock, own, tell=True)
        if search.small:
            search.run()
        search.price()
        width = WIDTH
        while not search.answer.closed and not self._clock.over:
            self._halve(search, width)
            search.beam(width)
            width *= 4
        found = search.answer
        return found if found.stages is not None else BoundedChain(self._known, own, min(found.bound, own))

    def _halve(self, search: CheapestChain, width: int) -> None:
        """Ask for chains of fewer devices, with beams of a width; what stays open counts as too few for now."""
        low, high = max(ceil(search.answer.bound), 1), int(search.answer.value)
        while low < high and not self._clock.over:
            most = (low + high) // 2
            chains = self._costs.chains(self._latency, 0.0, self._pace_s, most, cap=False)
            found = CheapestChain(chains, self._clock, self._cap_s, first=True).run(width, width)
            if found.stages is not None:
                high = sum(option.devices for option, _, _ in found.stages)
                search.offer(found.stages, float(high))
                continue
            low = most + 1
            if found.closed:
                search.prove(float(low))
