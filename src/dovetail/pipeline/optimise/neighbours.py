"""Better chains near a known one: a stage's device exchanged, put in, taken out or moved, and all cuts chosen anew.

For a fixed sequence of options the cheapest cuts are a shortest path. With its tables from the front and from the back
every sequence that differs in one place is priced at once. It is a search for plans where labels rarely dominate each
other, as among devices that are all unlike; it proves nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import numpy as np

from dovetail.pipeline.optimise.chains import NEAR, Chains
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs, Tariff
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats

UNLIKE = 12  # classes from which on labels rarely dominate each other
_POWER = 8.0
_TABU = 7  # turns for which an option that was taken out stays out
_STALE = 25  # turns without a better chain, after which it starts from the best again


class Polish:
    """The best of chains near each other under all limits, for an objective (the pace alone without a tariff)."""

    def __init__(self, costs: Costs, tariff: Tariff | None, clock: SearchClock, most_pace_s: float = inf) -> None:
        self._costs = costs
        self._most_pace_s = min(most_pace_s, costs.most_pace_s)
        self._tariff = tariff
        self._clock = clock
        self._limits = costs.chains(costs.tariff("throughput"), 0.0, inf)
        self.best: Stages | None = None
        self.value = inf

    def offer(self, chain: Stages) -> None:
        """Keep a chain if it is the best one that keeps all limits."""
        pace_s = self._costs.pace_s(chain)
        value = pace_s if self._tariff is None else self._costs.value(self._tariff, chain)
        if value < self.value and pace_s <= self._most_pace_s and self._limits.allows(chain):
            self.best, self.value = chain, value

    def run(self, turns: int = 60) -> None:
        """Look near the best chain until that finds no better one."""
        before = inf
        while self.best is not None and not self._clock.over:
            if before < inf and self.value >= before - NEAR * abs(before):
                return
            before = self.value
            Neighbours(self._chains(self._costs.pace_s(self.best))).improve(self.best, self._clock, self.offer, turns)

    def _chains(self, pace_s: float) -> Chains:
        """What chains near one of this pace cost: at this pace, or, for the pace itself, powers of it, so that a stage
        below the slowest counts too."""
        costs = self._costs
        if self._tariff is not None:
            return costs.chains(self._tariff, pace_s, pace_s if self._tariff.pays_pace else self._most_pace_s)
        tables = (costs.stage_pace_s, costs.link_pace_s, costs.enter_s, costs.leave_s)
        stage, link, enter, leave = (np.minimum(x / (pace_s or 1.0), 1e30) ** _POWER for x in tables)
        for powers, x in zip((stage, link, enter, leave), tables, strict=True):
            powers[~np.isfinite(x)] = inf
        return Chains(costs.options, costs.tables.counts, stage, link, enter, leave, np.zeros(len(costs.options)))


class Neighbours:
    """Sequences of options, by what the cheapest cuts for them cost."""

    def __init__(self, chains: Chains, seed: int = 0) -> None:
        self._chains = chains
        self._random = random.Random(seed)
        self._stage = chains.stage + chains.fixed[:, None, None]
        self._counts = np.array(chains.counts)
        self._k = np.array([option.k for option in chains.options])
        self._devices = np.array([option.devices for option in chains.options])

    def improve(self, chain: Stages, clock: SearchClock, offer: Callable[[Stages], None], turns: int = 10**9) -> None:
        """Walk from a chain to the cheapest one near it, again and again; each is offered."""
        index = {option: o for o, option in enumerate(self._chains.options)}
        best = now = [index[option] for option, _, _ in chain]
        best_cost, stale = inf, 0
        tabu: dict[int, int] = {}
        for turn in range(turns):
            if clock.over:
                return
            cost, sequence, out = self._nearest(now, {o for o, until in tabu.items() if until > turn}, best_cost)
            if sequence is None:
                return
            if out is not None:
                tabu[out] = turn + _TABU + self._random.randrange(5)
            now, stale = sequence, stale + 1
            offer(self._cut(now))
            if cost < best_cost - 1e-12 * abs(best_cost):
                best, best_cost, stale = now, cost, 0
            elif stale > _STALE:
                now, stale = self._shaken(best), 0
                tabu.clear()

    def _shaken(self, sequence: list[int]) -> list[int]:
        """The sequence without a stage or two."""
        kept = list(sequence)
        for _ in range(min(2, len(kept) - 1)):
            kept.pop(self._random.randrange(len(kept)))
        return kept

    def _fronts(self, sequence: list[int]) -> list[Floats]:
        """Least cost to be at each cut behind the first p stages; of none, at the beginning."""
        start = np.full(self._chains.layers + 1, inf)
        start[0] = 0.0
        fronts = [start]
        for p, o in enumerate(sequence):
            start = self._start(fronts[-1], sequence[p - 1] if p else None)[o]
            fronts.append((start[:, None] + self._stage[o]).min(axis=0))
        return fronts

    def _backs(self, sequence: list[int]) -> list[Floats]:
        """Least cost from each cut on, for the stages from the p-th on; of none, at the end."""
        end = np.full(self._chains.layers + 1, inf)
        end[-1] = 0.0
        backs = [end]
        for p in range(len(sequence) - 1, -1, -1):
            after = self._after(backs[-1], sequence[p + 1] if p + 1 < len(sequence) else None)[sequence[p]]
            backs.append((self._stage[sequence[p]] + after[None, :]).min(axis=1))
        return backs[::-1]

    def _start(self, front: Floats, before: int | None) -> Floats:
        """For each option, the cost to start it at each cut."""
        if before is None:
            return np.asarray(front[None, :] + self._chains.enter[:, None])
        return np.asarray(front[None, :] + self._chains.link[:, before, :].T)

    def _after(self, back: Floats, following: int | None) -> Floats:
        """For each option, the cost from its end at each cut on."""
        if following is None:
            return np.asarray(back[None, :] + self._chains.leave[:, None])
        return np.asarray(back[None, :] + self._chains.link[:, :, following].T)

    def _nearest(self, sequence: list[int], tabu: set[int], best: float) -> tuple[float, list[int] | None, int | None]:
        """The cheapest sequence that differs in one place, its cost, and which option is taken out."""
        fronts, backs = self._fronts(sequence), self._backs(sequence)
        used = np.zeros(len(self._counts), dtype=np.int64)
        for o in sequence:
            used[self._k[o]] += self._devices[o]
        found: tuple[float, list[int] | None, int | None] = (inf, None, None)
        room = self._chains.limits[-2] - used.sum()
        size = len(sequence)
        for p in range(size + 1):
            before = sequence[p - 1] if p else None
            start = self._start(fronts[p], before)
            for skip in (0, 1):  # put one in before the p-th, or in its place
                if p + skip > size:
                    continue
                out = sequence[p] if skip else None
                left, more = self._counts - used, room
                if out is not None:
                    left[self._k[out]] += self._devices[out]
                    more += self._devices[out]
                able = (self._devices <= left[self._k]) & (self._devices <= more)
                if out is not None:
                    able[out] = False
                rows = np.nonzero(able)[0]
                if len(rows):
                    after = self._after(backs[p + skip], sequence[p + skip] if p + skip < size else None)
                    ways = self._stage[rows] + start[rows][:, :, None]
                    costs = (ways.min(axis=1) + after[rows]).min(axis=1)
                    for n in np.argsort(costs)[:3]:
                        cost, o = float(costs[n]), int(rows[n])
                        if cost < found[0] and (o not in tabu or cost < best):
                            found = (cost, [*sequence[:p], o, *sequence[p + skip :]], out)
            if p < size and size > 1:
                without = self._joined(fronts[p], before, backs[p + 1], sequence[p + 1] if p + 1 < size else None)
                if without < found[0]:
                    found = (without, [*sequence[:p], *sequence[p + 1 :]], sequence[p])
        return found

    def _joined(self, front: Floats, before: int | None, back: Floats, following: int | None) -> float:
        """Cost of two parts of a chain without what was between them."""
        if before is None:
            return inf if following is None else float(self._chains.enter[following] + back[0])
        if following is None:
            return float(front[-1] + self._chains.leave[before])
        return float((front + self._chains.link[:, before, following] + back).min())

    def _cut(self, sequence: list[int]) -> Stages:
        """The cheapest cuts for a sequence."""
        backs = self._backs(sequence)
        chain: Stages = []
        i = 0
        for p, o in enumerate(sequence):
            after = self._after(backs[p + 1], sequence[p + 1] if p + 1 < len(sequence) else None)[o]
            j = int((self._stage[o, i] + after).argmin())
            chain.append((self._chains.options[o], i, j))
            i = j
        return chain
