"""The best prices for resources: those whose bound on the cost of every allowed chain is highest.

Each chain that is cheapest at some prices cuts off prices that would promise more than it costs (Kelley). The linear
programme of these cuts has a column per resource and stays warm. Among many resources that takes too many chains:
there, prices go step by step along what the cheapest chain takes (subgradients, with Polyak's length).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

import numpy as np

from dovetail.pipeline.optimise.chains import Chains, Relaxed, unlike
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats
from dovetail.solve import LinearProgram

BROKEN = 1e-9  # a bound on how far limits are exceeded, above which they are
_KEPT = 3  # of the best prices, for bounds on chains that are half made
_STEPS = 8  # for each round of cutting planes
_STEP = 0.05  # of the cost of a chain: how far above the best bound a step aims
_SPARE = 0.03  # of what a bound lacks to be enough: what is less is not worth a round, where it cannot be enough
_STALE = 8  # steps without a better bound, after which they become shorter
_SHORTER, _SHORTEST = 0.7, 0.01
_THOROUGH = 20  # rounds from which on planes follow steps
_BOX, _LARGEST_BOX = 0.01, 1.0  # how far prices of all there is of a resource go at once, in units of a chain's cost
_MOST_PRICE = 1000.0  # of all that there is of a resource, in units of the cost of a chain


def climb(
    best: Relaxed,
    chains: Chains,
    look: Callable[[Floats], Relaxed],
    aim: Callable[[float], float],
    done: Callable[[], bool],
    steps: int,
    whole: bool = False,
) -> Relaxed:
    """Better prices than these, by steps that aim at a value, until they hardly change any more; with `whole` all that
    there is of all resources stays worth 1."""
    limits = chains.limits[chains.priced]
    found, length, stale = best, 1.0, 0
    for _ in range(steps):
        if done() or length < _SHORTEST or not found.chain:
            break
        towards = chains.figures(found.chain)[1][chains.priced] / limits - 1.0
        worth = found.prices[chains.priced] * limits
        if whole:
            towards -= towards.mean()
        else:
            towards[(worth == 0.0) & (towards < 0.0)] = 0.0
        if not towards.any():
            break
        worth = worth + length * max(aim(best.value) - found.value, 0.0) / (towards @ towards) * towards
        prices = np.zeros(len(chains.limits))
        prices[chains.priced] = (_on_simplex(worth) if whole else np.maximum(worth, 0.0)) / limits
        found = look(prices)
        if found.value > best.value + 1e-7 * abs(best.value):
            best, stale = found, 0
        elif (stale := stale + 1) > _STALE:
            found, length, stale = best, length * _SHORTER, 0
    return best


def _on_simplex(point: Floats) -> Floats:
    """The nearest point whose parts are not below 0 and add up to 1.

    >>> _on_simplex(np.array([0.9, 0.5, -1.0]))
    array([0.7, 0.3, 0. ])
    """
    falling = np.sort(point)[::-1]
    over = (np.cumsum(falling) - 1.0) / np.arange(1, len(point) + 1)
    return np.asarray(np.maximum(point - over[np.nonzero(falling > over)[0][-1]], 0.0))


class PricedChain(NamedTuple):
    """A chain, what it costs, and what it takes of each resource."""

    chain: Stages
    cost: float
    use: Floats


class ResourcePrices:
    """Prices for the resources of chains: the bound they prove, and the cheapest allowed chain met on the way.

    Without `cost` chains cost nothing: then a bound above 0 proves that none is allowed.
    """

    def __init__(self, chains: Chains, cost: bool = True) -> None:
        self.chains = chains if cost else chains.finite
        self.with_cost = cost
        self.kept: list[Relaxed] = []
        self.best: tuple[float, Stages] | None = None
        self.met: list[PricedChain] = []
        self.allowed: list[Stages] = []
        self._scale = 0.0
        self._cuts: list[tuple[float, Floats]] = []
        self._lp: LinearProgram | None = None  # made when it is needed: to import the solver takes a while
        self._limits = self.chains.limits[self.chains.priced]

    @property
    def bound(self) -> float:
        return self.kept[0].value if self.kept else -inf

    def look(self, prices: Floats) -> Relaxed:
        """Relax at these prices, and keep what is learned."""
        found = self.chains.relax(prices)
        self.kept = sorted([*self.kept, found], key=lambda one: -one.value)[:_KEPT]
        if found.chain:
            self.add(found.chain)
        return found

    def add(self, chain: Stages) -> None:
        """A chain that is a cut, and the best one if it is allowed and cheaper than others."""
        cost, use = self.chains.figures(chain)
        if np.isfinite(cost):
            self.add_cut(PricedChain(chain, cost, use))

    def add_cut(self, cut: PricedChain) -> None:
        chain, cost, use = cut
        self.met.append(cut)
        if self.chains.allowed(use):
            self.allowed.append(chain)
            if self.best is None or cost < self.best[0]:
                self.best = (cost, chain)
        if not self._scale:
            self._scale = (abs(cost) or 1.0) if self.with_cost else 1.0
        self._cuts.append((cost / self._scale, use[self.chains.priced] / self._limits - 1.0))

    def _program(self) -> LinearProgram:
        """Columns: the bound, then for each resource the price of all that there is of it."""
        count = len(self._limits)
        if self._lp is None:
            self._lp = LinearProgram(maximise=True)
            most = [1e9, *[_MOST_PRICE if self.with_cost else 1.0] * count]
            empty: list[int] = []
            self._lp.add_columns(
                cost=[1.0, *[0.0] * count],
                lower=[-1e9, *[0.0] * count],
                upper=most,
                starts=[0] * (count + 1),
                rows=empty,
                values=empty,
            )
            if not self.with_cost:
                self._lp.add_rows([-inf], [1.0], [0], range(1, count + 1), [1.0] * count)
        for cost, share in self._cuts:
            self._lp.add_rows([-inf], [cost], [0], range(count + 1), [1.0, *-share])
        self._cuts.clear()
        return self._lp

    def improve(self, clock: SearchClock, rounds: int, enough: float = inf, below: float = -inf) -> None:
        """Raise the bound until it is enough or can rise no more, or until an allowed chain is met that costs less than
        `below`."""

        def done() -> bool:
            met = self.best is not None and self.best[0] < below
            return self.bound >= enough or clock.over or met or not self.met

        if unlike(self.chains.counts) and self.kept:
            unit = _STEP * (abs(self.met[0].cost) if self.met else 1.0)
            climb(self.kept[0], self.chains, self.look, lambda value: min(value + unit, enough), done, _STEPS * rounds)
            if rounds >= _THOROUGH:
                self.improve_nearby(done, _STEPS * rounds)
            return
        for turn in range(rounds):
            if done():
                return
            lp = self._program()
            if lp.solve().status != "optimal":
                return
            values = lp.values()
            most, at = values[0] * self._scale, values[1:] * self._scale / self._limits
            if most - self.bound <= 1e-10 * max(abs(most), self._scale):
                return
            if below == -inf and most < enough < inf and most - self.bound <= _SPARE * (enough - self.bound):
                return
            prices = np.zeros(len(self.chains.limits))
            prices[self.chains.priced] = at
            if turn % 3 != 2:
                prices = 0.6 * prices + 0.4 * self.kept[0].prices
            if not self.look(np.maximum(prices, 0.0)).chain:
                return

    def improve_nearby(self, done: Callable[[], bool], rounds: int) -> None:
        """Cutting planes within a box around the best prices: it grows while the bound rises as they promise, and
        shrinks where it does not rise. Without it they would jump from end to end among many resources."""
        box, columns = _BOX, range(1, len(self._limits) + 1)
        for _ in range(rounds):
            if done():
                return
            lp = self._program()
            at = self.kept[0].prices[self.chains.priced] * self._limits / self._scale
            lp.set_bounds(columns, np.maximum(at - box, 0.0), at + box)
            if lp.solve().status != "optimal":
                return
            values, bound = lp.values(), self.bound
            promised = values[0] * self._scale - bound
            if promised <= 1e-6 * self._scale:
                if box >= _LARGEST_BOX:
                    return
                box *= 4
                continue
            prices = np.zeros(len(self.chains.limits))
            prices[self.chains.priced] = np.maximum(values[1:], 0.0) * self._scale / self._limits
            found = self.look(prices)
            if not found.chain:
                return
            box *= 1.5 if found.value - bound > promised / 2 else 0.8 if found.value <= bound else 1.0

    def start(self, guesses: Iterable[Floats] = ()) -> None:
        self.look(np.zeros(len(self.chains.limits)))
        for guess in guesses:
            self.look(guess)
