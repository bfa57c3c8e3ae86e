"""What labels look at: the resources that chains compete for, and bounds at prices of these alone.

Of a class of devices that nobody competes for there is enough. Its count would keep labels apart of which one is as
good as the other, so it is left out: what is then found of all chains holds for the allowed ones too. Where the best
chain takes too much of such a resource, it is looked at as well.

The best prices bound chains well that take of everything as most do. Labels that have taken more of a resource so far,
or less, are bounded better where its price is higher or lower.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from dovetail.pipeline.optimise.chains import EXACT, Chains, Relaxed
from dovetail.pipeline.optimise.labels import Guide
from dovetail.pipeline.optimise.stages import Stages

_LITTLE = 1e-3  # of a chain's cost: if all there is of a resource is worth less, there is enough of it
_APART = (0.0, 0.8, 1.25, 2.0)  # times its best price
_DEAREST = 4  # resources for which that is asked


class Focus(NamedTuple):
    """Bounds that guide labels, and the resources that they do not look at."""

    guides: list[Guide]
    free: Set[int]

    def exceeded(self, chains: Chains, chain: Stages | None) -> set[int]:
        """Of the resources that were not looked at those of which a chain takes more than there is."""
        if chain is None or not self.free:
            return set()
        _, use = chains.figures(chain)
        return {r for r in self.free if use[r] > chains.limits[r] * EXACT}


def focus(chains: Chains, best: Relaxed, guides: list[Guide], tight: Set[int]) -> Focus:
    """Leave out what is worth little at the best prices, but not what is known to be tight."""
    worth = {r: float(best.prices[r] * chains.limits[r]) for r in chains.priced}
    free = {r for r in worth if r not in tight and worth[r] <= _LITTLE * abs(best.value)}
    prices = best.prices.copy()
    prices[list(free)] = 0.0
    kept = [guide for guide in guides if not any(guide.relaxed.prices[r] for r in free)]
    if free:
        kept.insert(0, Guide(chains.relax(prices), True))
    for r in sorted(worth, key=lambda r: -worth[r])[:_DEAREST]:
        for factor in _APART if prices[r] else ():
            apart = prices.copy()
            apart[r] *= factor
            kept.append(Guide(chains.relax(apart), True))
    return Focus(kept, free)
