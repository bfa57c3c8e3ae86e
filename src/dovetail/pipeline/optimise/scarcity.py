"""Which devices are scarce at a pace, among many that are unlike; and whether any chain can keep the limits at all.

All that there is of all resources is worth 1 together. If even the cheapest chain is then worth more, no chain keeps
the limits. Else the prices at which it is worth most say what chains compete for, and guide a beam to one that does
keep them.
"""

from __future__ import annotations

import numpy as np

from dovetail.pipeline.optimise.chains import Chains, Relaxed
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.labels import Beam, Guide, Labels, limit_guides
from dovetail.pipeline.optimise.multipliers import BROKEN, climb
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

_STEPS = 300
_AHEAD = 0.02  # of all that there is: how far above the best value a step aims


class Scarcity:
    """Prices for the resources of chains, and a chain that keeps all limits if one was met (`met`)."""

    def __init__(self, chains: Chains, prices: Floats | None = None) -> None:
        self.chains = chains.finite
        self.met: Stages | None = None
        if prices is None:
            prices = np.zeros(len(chains.limits))
            prices[chains.priced] = 1.0 / chains.limits[chains.priced] / len(chains.priced)
        self.best = self._look(prices)

    @property
    def broken(self) -> bool:
        """Whether it is proven that no chain keeps the limits."""
        return self.best.value > BROKEN

    def improve(self, clock: SearchClock, steps: int = _STEPS) -> None:
        """Better prices, until a chain is met or none is possible, or they hardly change any more."""

        def done() -> bool:
            return self.broken or self.met is not None or clock.over

        def look(prices: Floats) -> Relaxed:
            found = self._look(prices)
            self.best = max(self.best, found, key=lambda one: one.value)
            return found

        climb(self.best, self.chains, look, lambda value: max(value, 0.0) + _AHEAD, done, steps, whole=True)

    def beam(self, clock: SearchClock, width: int) -> Beam:
        """A chain that keeps all limits, by labels that take least of what is scarce."""
        guides = [Guide(self.best, False), *limit_guides(self.chains)]
        return Labels(self.chains, guides, clock).beam(np.inf, width, first=True)

    def _look(self, prices: Floats) -> Relaxed:
        found = self.chains.relax(prices)
        if found.chain and self.chains.allows(found.chain):
            self.met = found.chain
        return found
