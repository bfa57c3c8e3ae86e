"""The cheapest chain, with a bound that proves how near it is to the best: prices first, then wider and wider beams."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, prod
from typing import NamedTuple

import numpy as np

from dovetail.pipeline.optimise.chains import NEAR, Chains, Relaxed, unlike
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.focus import Focus, focus
from dovetail.pipeline.optimise.labels import Guide, Labels, limit_guides
from dovetail.pipeline.optimise.multipliers import BROKEN, ResourcePrices
from dovetail.pipeline.optimise.scarcity import Scarcity
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

WIDTH = 60  # of the first beam; the next ones are four times as wide each
_ROUNDS = 40  # of cutting planes
_BRIEFLY = 3  # rounds that may meet a first chain
_SPARING = 60  # steps to prices that guide to a first chain
_SMALL = 2e4  # labels that there can be at most where a beam needs no prices


class BoundedChain(NamedTuple):
    """The cheapest chain known (None: none below what was asked for), its cost, and what no chain costs less than."""

    stages: Stages | None
    value: float
    bound: float
    proven: bool = True  # False: the bound holds only for what was asked, which itself was not proven

    @property
    def closed(self) -> bool:
        """Whether it is proven: no chain is cheaper than this value."""
        if not self.proven:
            return False
        near = 2 * NEAR if self.stages is None else 1e-9  # a cap is not reached by a bound that lies at it
        return self.bound >= (self.value - near * abs(self.value) if self.value < inf else inf)


def cheapest(
    chains: Chains, clock: SearchClock, below: float = inf, width: float = WIDTH, most: float = inf
) -> BoundedChain:
    """The cheapest chain that costs less than `below`, by beams of growing width up to `most`."""
    return CheapestChain(chains, clock, below).run(width, most)


class CheapestChain:
    """The search for the cheapest chain below a value (with `first`, for any below it): it can be asked to go on with
    wider beams. It starts from prices that were good before (`guesses`), from chains met then (`met`), and from prices
    that bound how far limits are broken, if that is known (`broken`); of `tight` resources chains took too much before.
    With `tell` the clock is told how far it is."""

    def __init__(
        self,
        chains: Chains,
        clock: SearchClock,
        below: float = inf,
        guesses: Iterable[Floats] = (),
        met: Iterable[Stages] = (),
        first: bool = False,
        broken: Relaxed | None = None,
        tell: bool = False,
        tight: Iterable[int] = (),
    ) -> None:
        self.chains = chains
        self._clock = clock
        self._first = first
        self._broken = broken
        self._tell = tell
        self._guides: list[Guide] = []
        self.prices = ResourcePrices(chains)
        self.prices.start()
        self.answer = BoundedChain(None, below, -inf)
        self._learn(self.prices)
        self._guesses, self._met = guesses, met
        self._priced = False
        self.tight: set[int] = set(tight)

    @property
    def small(self) -> bool:
        """Whether labels alone will do."""
        c = self.chains
        return prod(count + 1 for count in c.counts) * len(c.options) * c.layers <= _SMALL

    def run(self, width: float = WIDTH, most: float = inf) -> BoundedChain:
        """Prices, then beams from this width on until it is proven, time is over or the beam would be too wide."""
        if not self._done and self.small:
            self._guide()
            return self.beam(inf)
        self.price()
        while not self._done and not self._clock.over and width <= most:
            self.beam(width)
            width *= 4
        return self.answer

    @property
    def _done(self) -> bool:
        return self.answer.closed or (self._first and self.answer.stages is not None)

    @property
    def _lacks_chain(self) -> bool:
        """Whether a chain is looked for, and not one that is better than one that is known."""
        return not self._done and self.answer.stages is None and (self._first or self.answer.value == inf)

    def price(self, rounds: int = _ROUNDS) -> BoundedChain:
        """Find good prices, once."""
        if self._done or self._priced:
            return self.answer
        self._priced = True
        if self.answer.value == inf and unlike(self.chains.counts):
            self.prices.improve(self._clock, _BRIEFLY, below=inf if self._first else -inf)
            self._learn(self.prices)
            if self.answer.stages is None:
                self._first_chain()
            if self._done:
                return self.answer
        for guess in self._guesses:
            self.prices.look(guess)
        for chain in self._met:
            self.prices.add(chain)
        enough = self.chains.below(self.answer.value)
        self.prices.improve(self._clock, rounds, enough, self.answer.value if self._first else -inf)
        self._learn(self.prices)
        if self._broken is not None:
            self._break(self._broken)
        elif self._lacks_chain and not unlike(self.chains.counts):
            allowed = ResourcePrices(self.chains, cost=False)
            allowed.start()
            for cut in self.prices.met:
                allowed.add_cut(cut._replace(cost=0.0))
            allowed.improve(self._clock, rounds, BROKEN, inf)
            self._break(allowed.kept[0])
            if allowed.best is not None:
                self.offer(allowed.best[1], self.chains.figures(allowed.best[1])[0])
        self._guide()
        return self.answer

    def _first_chain(self) -> None:
        """A chain to begin with, among unlike devices: one that spares what is scarce."""
        scarcity = Scarcity(self.chains)
        scarcity.improve(self._clock, _SPARING)
        self._break(scarcity.best)
        found = scarcity.met
        if found is None and not scarcity.broken:
            found = scarcity.beam(self._clock, WIDTH).chain
        if found is not None:
            self.offer(found, self.chains.figures(found)[0])
            self.prove(self.answer.bound)

    def beam(self, width: float) -> BoundedChain:
        """Labels in a beam of this width; again, if the best chain takes too much of what they did not look at."""
        room = int(min(width, 1e9))
        while not self._done:
            at = self._focus()
            found = Labels(self.chains, at.guides, self._clock, at.free).beam(self.answer.value, room, self._first)
            exceeded = at.exceeded(self.chains, found.chain)
            if found.chain is not None and not exceeded:
                self.offer(found.chain, found.value)
            self.prove(min(found.lost, found.value))
            if not exceeded:
                break
            self.tight |= exceeded
        return self.answer

    def _focus(self) -> Focus:
        """What labels look at: everything, where any chain will do, or where there are no good prices."""
        every = [Guide(kept, True) for kept in self.prices.kept] + self._guides
        if self._first or self.chains.whole or not self._priced or unlike(self.chains.counts):
            return Focus(every, frozenset())
        return focus(self.chains, self.prices.kept[0], every, self.tight)

    def _learn(self, prices: ResourcePrices) -> None:
        if prices.best is not None:
            self.offer(prices.best[1], prices.best[0])
        self.prove(prices.bound)

    def offer(self, chain: Stages, value: float) -> None:
        """A chain and its cost."""
        if value < self.answer.value:
            self.answer = self.answer._replace(stages=chain, value=value)

    def prove(self, bound: float) -> None:
        """No chain costs less."""
        if self.chains.whole and bound < inf:
            bound = float(np.ceil(bound - 1e-6)) if bound > -inf else bound
        if bound >= self.chains.below(self.answer.value):
            bound = max(bound, self.answer.value)
        if bound > self.answer.bound:
            self.answer = self.answer._replace(bound=bound)
        if self._tell:
            self._clock.tell(self.answer.value, self.answer.bound)

    def _break(self, relaxed: Relaxed) -> None:
        """Use a bound on how much the limits are broken: as a guide, or as proof that no chain keeps them."""
        if relaxed.value > BROKEN:
            self.answer = self.answer._replace(bound=inf)
        self._guides.append(Guide(relaxed, False))

    def _guide(self) -> None:
        """Bounds on what the cap and the limit on devices allow."""
        for guide in limit_guides(self.chains) if not self.answer.closed else ():
            self._break(guide.relaxed)
