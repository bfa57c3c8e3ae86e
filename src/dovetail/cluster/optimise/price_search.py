"""Shares of many unlike jobs, found by the prices of few types.

Jobs meet only in the accelerators that they share. Given a price of every type, each chooses for itself, so what has to
be found are as many numbers as there are types: the prices at which what all choose fits. A job that must reach a level
has few choices: one type, or two that it divides its time between so that it just gets there (idling counts as a type).

The search goes from prices to prices. At any, a job's distance is how far prices can move before it would choose
otherwise. The nearest jobs are undecided: one small program finds the best prices within the reach of the first of the
others, with every choice of the undecided in it. If these prices are at the border, they are the next to start from;
if not, they are the best of all. Shares are then a vertex of the whole program: at most as many jobs as there are types
divide their time between choices, and all others have one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.core.errors import DovetailError
from dovetail.solve import LinearProgram

Bools = NDArray[np.bool_]
FEW = 64  # so many jobs can all be undecided
NEAREST = 24  # undecided at first
STEPS = 100
ROUGH = 500  # undecided of a sample
FAR = 200  # undecided, before last time's prices are given up
CORRECTIONS = 3
TRIES = 150  # to find prices of the next order, mostly a handful: each may take searches within it
WIDE = 1e4  # times what is typical: no price is higher
TIE = 1e-9  # choices that differ by less, over what they cost, are equally good
FIT = 1e-9  # of a type's accelerators


class NoPricesError(DovetailError):
    """Numbers of too different size: the program over all classes must be solved instead."""


@dataclass(slots=True)
class Choices:
    """Every choice of every job, by choice and job: the part of its time on `second`, the rest on `first`."""

    first: Ints  # by choice: 0 is idle, then the types
    second: Ints
    part: Floats
    open: Bools

    def take(self, values: Floats) -> Floats:
        """What every choice gives, from what every type gives to each job."""
        first, second = values[self.first], values[self.second]
        return first + self.part * (second - first)

    def use(self, job: Ints, choice: Ints, size: Floats) -> Floats:
        """Accelerators of every type that jobs of this size take if each has this choice."""
        part, types = self.part[choice, job], int(self.second.max())
        on_first = np.bincount(self.first[choice], size * (1 - part), minlength=types + 1)
        on_second = np.bincount(self.second[choice], size * part, minlength=types + 1)
        return np.add(on_first, on_second, dtype=np.float64)[1:]

    def only(self, jobs: Ints) -> Choices:
        return replace(self, part=self.part[:, jobs], open=self.open[:, jobs])


@dataclass(slots=True)
class PricedChoice:
    """Prices, and what every job chooses at them."""

    price: Floats  # by type
    best: Ints  # by job: its choice
    worth: Floats  # by job: of its choice, less what it pays
    job: Ints  # of those who divide their time: job, choice, and how much of it
    choice: Ints
    weight: Floats


class PriceSearch:
    """One search for prices, over the blocks that have a choice."""

    def __init__(
        self,
        choices: Choices,
        gain: Floats,
        size: Floats,
        counts: Floats,
        used: Floats,
        spent: Bools,
        enough: float = 0.0,
    ) -> None:
        """`enough`: of every type that is not used up, as much as need not be saved."""
        self.choices, self.gain, self.size = choices, gain, size
        self.counts, self.used, self.spent, self.enough = counts, used, spent, enough
        self.types, self.blocks = len(counts), len(size)
        self.tries = [TRIES]  # that are left: of a search, and of those within it
        # A type that is used up has a price of either sign: those who may still change must leave it used up.
        touches = np.append(False, spent)
        both = (touches[choices.first] | touches[choices.second])[:, None]
        self.held: Bools = (choices.open & both).any(axis=0)

    def run(self, price: Floats | None, *, normal: bool, roughly: bool = False) -> PricedChoice:
        """Start from a price; `roughly` takes the last prices even if what is chosen does not fit."""
        if not self.blocks:
            return self._nothing(normal)
        afresh = price is None
        price = self._from_sample(normal) if price is None else np.where(self.spent, 0.0, price)
        undecided = NEAREST
        for _ in range(STEPS):
            before, everybody = price, undecided >= self.blocks
            price, found, border = self._step(price, undecided, normal)
            if not border or (roughly and undecided >= min(self.blocks, ROUGH)):
                return found
            undecided *= 2
            if undecided > FAR and not afresh and self.blocks > ROUGH:  # much has changed since the last time
                price, undecided, afresh = self._from_sample(normal), NEAREST, True
            if normal and np.abs(price - before).max() <= TIE * price.max() and (price[~self.spent] == 0).any():
                rest, other = self._among_free(price)
                if rest is not None:
                    return rest
                everything = float(self.counts[~self.spent].sum())
                price = 0.99 * price + 0.01 * other * everything / max(float(other @ self.counts), 1e-300)
            elif everybody and np.abs(price - before).max() <= TIE * price.max():
                break  # no more can be asked, and these are the best: what they lack is more than rounding
        raise NoPricesError("prices that fit were not found")

    def _among_free(self, price: Floats) -> tuple[PricedChoice | None, Floats]:
        """Whether those whom types without a price suffice find room on them: who, or the prices of these types.

        They are indifferent, so this price does not tell what each should choose: prices of the next order do.
        """
        self.tries[0] -= 1
        if self.tries[0] < 0:
            raise NoPricesError("prices that fit were not found among types without a price")
        value = self.values(price)
        worth, typical = value.max(axis=0), float(price[~self.spent].max())
        paid = self.spent | (price > TIE * typical)
        everything = float(self.counts[~self.spent].sum())
        need = float(price @ self.used - worth.sum() - price[self.spent] @ self.counts[self.spent]) / everything
        opened = self.choices.open & (value >= worth - TIE * typical * self.size)
        several = np.flatnonzero(opened.sum(axis=0) > 1)
        fixed, one = opened.argmax(axis=0), np.ones(self.blocks, dtype=bool)
        one[several] = False
        choices = replace(self.choices, open=opened)
        used = self.used + choices.use(np.flatnonzero(one), fixed[one], self.size[one])
        counts = np.where(paid & ~self.spent, self.counts * need, self.counts)
        inner = PriceSearch(choices.only(several), self.gain[:, several], self.size[several], counts, used, paid, need)
        inner.tries = self.tries
        try:
            found = inner.run(None, normal=True)
        except NoPricesError:  # this price is not yet the best one
            return None, np.where(paid, 0.0, 1.0)
        fixed[several] = found.best
        fixed[several[found.job]] = found.choice
        job = several[found.job]
        single = np.ones(self.blocks, dtype=bool)
        single[job] = False
        single = np.flatnonzero(single)
        used = self.used + choices.use(single, fixed[single], self.size[single])
        used = used + choices.use(job, found.choice, self.size[job] * found.weight)
        if (used <= self.counts * np.where(self.spent, 1.0, need) + FIT * np.maximum(self.counts, 1.0)).all():
            return PricedChoice(price, fixed, worth, job, found.choice, found.weight), price
        return None, np.where(paid, 0.0, found.price)

    def _nothing(self, normal: bool) -> PricedChoice:
        """Nobody has a choice: with `normal`, all of the price is on the type that is needed most."""
        none, price = np.zeros(0, dtype=np.int64), np.zeros(self.types)
        if normal:
            scarce = ~self.spent & (self.counts > 0)
            need = np.where(scarce, self.used / np.maximum(self.counts, 1.0), -np.inf)
            price[need.argmax()] = self.counts[scarce].sum() / self.counts[need.argmax()]
        return PricedChoice(price, none, np.zeros(0), none, none, np.zeros(0))

    def _from_sample(self, normal: bool) -> Floats:
        """Near the best prices: those for one job in eight, corrected by what all the others would use at them."""
        price = np.where(self.spent, 0.0, 1.0)
        if self.blocks <= FEW:
            return price
        if self.types == 1 and not normal and not self.spent.any():
            return self._of_one_type()
        sample = np.arange(0, self.blocks, 8)
        sample = sample[~self.held[sample]]
        if not len(sample):
            return price
        part = float(self.size[sample].sum() / self.size.sum())
        used, start = part * self.used, None
        for _ in range(CORRECTIONS):
            inner = self._sample(sample, part * self.counts, used)
            inner.tries = self.tries
            price = inner.run(start, normal=normal, roughly=True).price
            if not normal:
                price = np.minimum(price, 10.0 * self._typical())
            price = start = np.where(self.spent, 0.0, price)
            chosen = self.values(price).argmax(axis=0)
            everybody = self.choices.use(np.arange(self.blocks), chosen, self.size)
            used = part * (self.used + everybody) - self.choices.use(sample, chosen[sample], self.size[sample])
        return price

    def _of_one_type(self) -> Floats:
        """Where there is one type, and so a sample would tell little of jobs that are nearly alike: who gains most for
        each accelerator has most of them, until they are used up."""
        time = self.choices.take(np.repeat([[0.0], [1.0]], self.blocks, axis=1))
        least = np.where(self.choices.open, time, np.inf).min(axis=0) * self.size
        most = np.where(self.choices.open, time, 0.0).max(axis=0) * self.size
        worth = (self.gain[1] - self.gain[0]) / self.size
        order = np.argsort(-worth, kind="stable")
        taken = np.cumsum((most - least)[order])
        at = int(np.searchsorted(taken, self.counts[0] - self.used[0] - least.sum()))
        return np.maximum(worth[order][at : at + 1], 0.0) if at < self.blocks else np.zeros(1)

    def _sample(self, sample: Ints, counts: Floats, used: Floats) -> PriceSearch:
        """The same for some blocks."""
        choices = self.choices.only(sample)
        return PriceSearch(choices, self.gain[:, sample], self.size[sample], counts, used, self.spent)

    def values(self, price: Floats) -> Floats:
        """What every choice is worth to every block, less what it pays."""
        net = self.gain - np.append(0.0, price)[:, None] * self.size
        return np.where(self.choices.open, self.choices.take(net), -np.inf)

    def _step(self, price: Floats, undecided: int, normal: bool) -> tuple[Floats, PricedChoice, bool]:
        """The best prices within reach, what is decided at them, and whether they are at the border."""
        value = self.values(price)
        best = value.argmax(axis=0)
        block = np.arange(self.blocks)
        worth = value[best, block]
        typical = max(float(price[~self.spent].max(initial=0.0)), 0.0 if normal else self._typical())
        scale = np.where(self.spent, 0.0, np.maximum(price, 0.1 * typical))
        cost = self.choices.take(np.append(0.0, scale)[:, None] * self.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = (worth - value) / (cost + cost[best, block])
        distance[np.isnan(distance)] = 0.0
        distance[best, block] = np.inf
        nearest = np.where(self.held, 0.0, distance.min(axis=0))
        undecided = max(undecided, int(self.held.sum()) + NEAREST)
        if undecided >= self.blocks or self.blocks <= FEW:
            reach, near = np.inf, block
        else:
            order = np.argpartition(nearest, undecided)
            reach, near = float(nearest[order[undecided]]), np.sort(order[:undecided])
        distance[best, block] = 0.0
        choice, at = np.nonzero((distance[:, near] <= reach) & self.choices.open[:, near])
        return self._solve(price, scale, reach, near, choice, at, best, worth, normal)

    def _typical(self) -> float:
        """What an accelerator is worth to a job, about."""
        return float((self.gain.max(axis=0) / self.size).mean()) or 1.0

    def _used_without(self, near: Ints, best: Ints) -> Floats:
        """Accelerators that are taken by all whose choice is decided."""
        decided = np.ones(self.blocks, dtype=bool)
        decided[near] = False
        fixed = np.flatnonzero(decided)
        used: Floats = self.used + self.choices.use(fixed, best[fixed], self.size[fixed])
        return used

    def _solve(
        self,
        price: Floats,
        scale: Floats,
        reach: float,
        near: Ints,
        choice: Ints,
        at: Ints,
        best: Ints,
        worth: Floats,
        normal: bool,
    ) -> tuple[Floats, PricedChoice, bool]:
        """The program over prices and the worth of every undecided block, which is at least that of each choice."""
        block, used = near[at], self._used_without(near, best)
        left = (0.0 if normal else self.counts) - used
        wide = WIDE * (1.0 if normal else self._typical()) if self.held.any() else 0.0
        most = WIDE * (float(self.counts.sum()) if normal else self._typical())
        low = np.maximum(price - reach * scale, 0.0) if reach < np.inf else np.zeros(self.types)
        high = price + reach * scale if reach < np.inf else np.full(self.types, most)
        low, high = np.where(self.spent, -wide, low), np.where(self.spent, wide, high)
        if normal:
            left = np.where(self.spent, left + self.counts, left)
        lp = LinearProgram(maximise=False)
        lp.add_columns(cost=left, lower=low, upper=high, starts=np.zeros(self.types), rows=[], values=[])
        many = len(near)
        free = np.full(many, np.inf)
        lp.add_columns(cost=np.ones(many), lower=-free, upper=free, starts=np.zeros(many), rows=[], values=[])
        if normal:
            scarce = np.flatnonzero(~self.spent)
            everything = float(self.counts[scarce].sum())
            lp.add_rows([1.0], [1.0], [0], scarce, self.counts[scarce] / everything)
        part, first, second = self.choices.part[choice, block], self.choices.first[choice], self.choices.second[choice]
        size = self.size[block]
        gained = self.gain[first, block] + part * (self.gain[second, block] - self.gain[first, block])
        # Rows: worth + price x use >= gain. Where a choice has one type, or idles, its entries are fewer.
        columns = np.stack([self.types + at, first - 1, second - 1], axis=1)
        values = np.stack([np.ones(len(at)), size * (1 - part), size * part], axis=1)
        keep = np.stack([np.ones(len(at), dtype=bool), first > 0, (second > 0) & (second != first)], axis=1)
        starts = np.cumsum(keep.sum(axis=1)) - keep.sum(axis=1)
        lp.add_rows(gained, np.full(len(at), np.inf), starts, columns[keep], values[keep])
        if lp.solve().status != "optimal":
            raise NoPricesError("a program of prices has no solution")
        after = np.clip(lp.values()[: self.types], low, high)
        weight = np.abs(lp.row_prices()[1 if normal else 0 :])
        used = used + self.choices.use(block, choice, size * weight)
        room = self.counts.copy()
        if normal:
            total = float(after[scarce] @ used[scarce]) / everything
            room[scarce] *= total
        lack = (used - room) / np.maximum(self.counts, 1.0)
        if normal and (used[scarce] <= self.counts[scarce] * (self.enough + FIT)).all():
            lack[scarce] = 0.0
        fits = np.where((after > 0) | self.spent, np.abs(lack) <= FIT, lack <= FIT)
        some = weight > 0
        found = PricedChoice(after, best, worth, block[some], choice[some], weight[some])
        return after, found, not bool(fits.all())
