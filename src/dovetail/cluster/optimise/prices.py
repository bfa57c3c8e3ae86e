"""Shares of many unlike jobs for several objectives, one after another, each by the prices of few types.

Jobs meet only in the accelerators that they share. A job that must reach a level has few choices: one type, or two that
it divides its time between so that it just gets there (idling counts as a type). Every objective has best prices
(`price_search`), and closes the choices that are worse than others at them: the next objective decides among the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dovetail.cluster.optimise.price_search import FIT, TIE, Bools, Choices, PricedChoice, PriceSearch
from dovetail.cluster.policies.base import Floats

ROUNDS = 40  # of a bisection
NEWTON = 1e-13  # of what is looked for


class PricedShares:
    """Blocks of alike jobs on few types. Arrays have a row for idling and one per type, and a column per block.

    `level` is what a job reaches that is on a type all the time, 0 where it cannot run; `size` is how many accelerators
    all jobs of a block need; `counts` what there is of each type, at least one somewhere.
    """

    def __init__(self, level: Floats, size: Floats, counts: Floats, start: dict[str, Floats] | None = None) -> None:
        """`start`: the prices of the last time, by objective; it is kept up to date."""
        self.level, self.size, self.counts = level, size, counts
        self.start = {} if start is None else start
        self.levels = 0  # how many were looked for
        self.types, self.blocks = len(counts), level.shape[1]
        self.runs: Bools = level > 0
        self.runs[0] = True
        self.top: Floats = level.max(axis=0)
        self.price = np.zeros(len(counts))  # at the end of the last stage
        self.frozen = np.zeros(self.blocks, dtype=bool)  # who was stuck at a level
        self.spent = np.zeros(self.types, dtype=bool)  # types that an earlier objective has used up
        self.first, self.second = np.triu_indices(self.types + 1)
        self.allowed: Bools = self.runs[self.first] & self.runs[self.second]
        self.choices: Choices

    # ------------------------------------------------------------------ objectives, one after another

    def highest(
        self, demand: Callable[[float], tuple[Floats, Floats]], cap: float, start: float, least: float = 0.0
    ) -> float:
        """The largest z from `least` (which can be had) up to `cap` at which everybody's demand can be met.

        `demand` gives levels and their derivatives, which rise with z. How much of the cluster the demands of z need at
        least rises with z too, and is 1 at the answer: Newton's method, kept between what is too low and too high.
        Afterwards shares are free only where that allows.
        """
        low, high, z = least, cap, max(min(start, cap), least)
        self.levels += 1
        price = self.start.get(name := f"level {self.levels}")
        if price is None:
            high = z = self._bound(demand, least, cap)
        nothing = np.zeros_like(self.level)
        while True:
            want, slope = demand(z)
            self.demand(want)
            found = self._search(nothing, price, normal=True, enough=1.0 if z >= cap else 0.0)
            price = found.price
            use, growth = self._use(found, slope)
            step = (1.0 - use) / growth if growth > 0 else np.inf if use <= 1.0 else -np.inf
            if use <= 1.0:
                low = z
                if z >= cap:
                    break
            else:
                high = z
            if abs(step) <= NEWTON * z or high - low <= NEWTON * high:
                break
            after = min(z + step, cap)
            if not low < after < high and after != cap:
                after = (low + high) / 2
            if after == z:
                break
            z = after
        self.start[name] = price
        self.price = np.zeros(self.types)
        if use >= 1.0 - FIT:
            self._hold(found, nothing)
        return z

    def _bound(self, demand: Callable[[float], tuple[Floats, Floats]], low: float, high: float) -> float:
        """No less than the answer: as far as demands go if all accelerators were alike."""
        alike = np.append(0.0, np.where(self.spent, 0.0, 1.0))[:, None] * self.size
        everything = float(self.counts[~self.spent].sum())
        z = high
        for _ in range(ROUNDS):
            self.demand(demand(z)[0])
            need = float(np.where(self.choices.open, self.choices.take(alike), np.inf).min(axis=0).sum())
            low, high = (z, high) if need <= everything else (low, z)
            if high - low <= 1e-3 * high:
                break
            z = (low + high) / 2
        return high

    def best(self, gain: Floats) -> float:
        """The most that levels asked for leave of an objective; shares stay free only where that allows."""
        found = self._search(gain, self.start.get("best"), normal=False)
        self.start["best"] = found.price
        value = float(found.price @ self.counts + found.worth.sum())
        self._hold(found, gain)
        return value

    def need(self, want: Floats) -> float:
        """The part of the cluster that these levels need; no less than what is needed least, if that is below 1."""
        self.demand(want)
        found = self._search(np.zeros_like(self.level), self.start.get("need"), normal=True, enough=1.0)
        self.start["need"] = found.price
        return self._use(found, want)[0]

    def hold(self, want: Floats, found: PricedChoice) -> None:
        """Give everybody the level that is best for it at these prices; shares stay free only where that allows."""
        self.demand(want)
        self._hold(found, np.zeros_like(self.level))

    def settle(self, gain: Floats) -> Floats:
        """The shares, by type and block, that are best for a last objective."""
        found = self._search(gain, self.start.get("settle"), normal=False)
        self.start["settle"] = found.price
        return self._times(found)

    def demand(self, want: Floats) -> None:
        """Ask for these levels, by block."""
        want = np.minimum(want, self.top)
        low, high = self.level[self.first], self.level[self.second]
        single = (self.first == self.second)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(single, 0.0, (want - low) / (high - low))
        enough = np.where(single, low >= want * (1 - 1e-12), (part > 0) & (part < 1))
        self.choices = Choices(self.first, self.second, np.where(enough, part, 0.0), self.allowed & enough)

    def _use(self, found: PricedChoice, slope: Floats) -> tuple[float, float]:
        """The part of the cluster that is needed, and how it grows as demands do."""
        price = np.append(0.0, found.price)
        first, second = self.first[found.best], self.second[found.best]
        block = np.arange(self.blocks)
        rise = self.level[second, block] - self.level[first, block]
        more = np.where(rise != 0, (price[second] - price[first]) * self.size / np.where(rise != 0, rise, 1.0), 0.0)
        everything = float(self.counts[~self.spent].sum())
        held = float(found.price[self.spent] @ self.counts[self.spent])
        return (-found.worth.sum() - held) / everything, float(more @ slope) / everything

    def _hold(self, found: PricedChoice, gain: Floats) -> None:
        """Close every choice that is worse than another at these prices: it is in no best shares."""
        typical = float(found.price[~self.spent].max(initial=0.0))
        price = np.where(self.spent | (found.price > TIE * typical), found.price, 0.0)
        with_idle = np.append(0.0, price)[:, None]
        value = np.where(self.choices.open, self.choices.take(gain - with_idle * self.size), -np.inf)
        about = gain.max(axis=0) + typical * self.size
        self.choices.open &= value >= value.max(axis=0) - TIE * about
        self.choices.open[found.choice, found.job] = True  # whatever rounding says, these shares are possible
        self.spent |= price > 0
        self.price = price

    def freeze(self, want: Floats) -> Bools:
        """After a highest level: who cannot have more. The others do without the types that are used up."""
        block = np.arange(self.blocks)
        scarce = np.append(False, self.spent)
        touches = (scarce[self.first] | scarce[self.second])[:, None]
        paid = np.append(0.0, self.price)
        best = self.choices.open.argmax(axis=0)
        first, second, part = self.first[best], self.second[best], self.choices.part[best, block]
        stuck: Bools = self.frozen | (paid[first] + part * (paid[second] - paid[first]) > TIE)
        self.frozen = stuck
        self.allowed = np.where(stuck, self.choices.open, self.allowed & ~touches)
        rest = np.where(scarce[:, None], 0.0, self.level).max(axis=0)
        self.top = np.where(stuck, np.minimum(want, self.top), np.minimum(rest, self.top))
        return stuck | (self.top <= want * (1 + TIE))

    # ------------------------------------------------------------------ the search

    def _search(self, gain: Floats, price: Floats | None, *, normal: bool, enough: float = 0.0) -> PricedChoice:
        """The best prices. With `normal` they add up to the number of accelerators, and say what is scarce."""
        several = np.flatnonzero(self.choices.open.sum(axis=0) > 1)
        counts, fixed = self.counts.copy(), self.choices.open.argmax(axis=0)
        one = np.ones(self.blocks, dtype=bool)
        one[several] = False
        use = self.choices.use(np.flatnonzero(one), fixed[one], self.size[one])
        search = PriceSearch(
            self.choices.only(several), gain[:, several], self.size[several], counts, use, self.spent, enough
        )
        found = search.run(price, normal=normal)
        best, worth = fixed, np.zeros(self.blocks)
        best[several] = found.best
        best[several[found.job]] = found.choice  # all that have a weight are equally good
        block = np.arange(self.blocks)
        net = gain - np.append(0.0, found.price)[:, None] * self.size
        low, high = net[self.first[best], block], net[self.second[best], block]
        worth = low + self.choices.part[best, block] * (high - low)
        return replace(found, best=best, worth=worth, job=several[found.job])

    def _times(self, found: PricedChoice) -> Floats:
        """The time of every block on every type."""
        block = np.arange(self.blocks)
        weight = np.ones(self.blocks)
        weight[found.job] = 0.0
        block, choice = np.append(block, found.job), np.append(found.best, found.choice)
        weight = np.append(weight, found.weight)
        part = self.choices.part[choice, block]
        time = np.zeros((self.types + 1, self.blocks))
        np.add.at(time, (self.first[choice], block), weight * (1 - part))
        np.add.at(time, (self.second[choice], block), weight * part)
        return time[1:]
