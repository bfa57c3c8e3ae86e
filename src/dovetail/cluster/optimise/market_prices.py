"""A market of many jobs, solved by the prices of few types and what the longest job has left.

At given prices each job chooses for itself. The nearest jobs, by how far prices can move before they would choose
otherwise, are undecided: a small market holds all that they could do, and what the others leave to them, at prices
within the reach of the first of the others. If no price is at that border, all have chosen; if one is, the search goes
on beyond it, as far as what is lacking there says, and with more undecided jobs after a while.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.cluster.optimise.market import Around, Market
from dovetail.cluster.optimise.market_choices import Bidders, MarketChoices
from dovetail.cluster.optimise.market_ties import Ties
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import NoAnswerError

FEW = 500  # so many jobs are one program
NEAREST = 64  # undecided at first
SAMPLE = 400
CORRECTIONS = 2
TYPICAL = 100.0  # price of an accelerator: the solver's tolerance is a number
LEAST = 1e-6  # price: of a type that is not scarce, nobody takes more than he needs
FAR = 0.9  # prices move by at most this part of themselves within a program,
FURTHER = 16.0  # beyond it by so many times as much,
TENFOLD = 10.0  # and at most so many times themselves
FIT = 1e-9  # of a type's accelerators
LOOSE = 1e-6  # accelerators, or parts of a job's time: more is no rounding


class MarketPrices:
    """Solves markets, each from the prices of the one before."""

    def __init__(self) -> None:
        self._price: Floats | None = None
        self._spare_s = 0.0  # that the longest job had left, and could have saved

    def solve(self, market: Market) -> tuple[Floats, float, Floats]:
        """As `Market.solve`; of more than `FEW` jobs, the value is the best to 1e-8 of what there is to gain. If one
        way has no answer, as with numbers of too different size, the other one may have it."""
        if len(market.width) <= FEW:
            try:
                return market.solve()
            except NoAnswerError:
                return self._by_prices(market)
        try:
            return self._by_prices(market)
        except NoAnswerError:
            self._price = None
            return market.solve()

    def _by_prices(self, market: Market) -> tuple[Floats, float, Floats]:
        search = _Search(market)
        if self._price is None or len(self._price) != len(market.counts):
            search.guess()
        else:
            search.price, search.longest_s = self._price, search.least_s + self._spare_s
        share = search.run(NEAREST)
        if (market.width @ share > market.counts + LOOSE).any() or (share.sum(axis=1) > 1 + LOOSE).any():
            raise NoAnswerError("what jobs choose at these prices is more than there is")
        self._price, self._spare_s = search.price, search.longest_s - search.least_s
        value, missing_s = market.value_of(share)
        return share, value, missing_s


class _Search:
    """Prices in a unit in which `TYPICAL` is the mean of what accelerators could be worth."""

    def __init__(self, market: Market) -> None:
        bidders = Bidders(market)
        sooner_s = float(market.left_s.max(initial=0.0)) - bidders.least_s  # that the longest job could end
        everything = float(bidders.bids().sum()) + market.longest_costs * sooner_s
        if not np.isfinite(everything):
            raise NoAnswerError("what there is to gain is no number")
        self.unit = TYPICAL * float(market.counts.sum()) / everything if everything > 0 else 1.0
        self.bidders = bidders.in_unit(self.unit)
        self.market = self.bidders.market
        self.taken: Floats = np.zeros(len(market.counts))  # by others
        self.price, self.longest_s = np.full(len(market.counts), LEAST), self.bidders.least_s
        self.least_s = self.bidders.least_s

    def guess(self) -> None:
        """Prices about as they should be: those of a sample, corrected by what all others would use at them."""
        market, counts, jobs = self.market, self.market.counts, len(self.market.width)
        sample = np.argsort(self.bidders.bids() / market.width, kind="stable")[:: -(-jobs // SAMPLE)]
        part = len(sample) / jobs
        inner = _Search(replace(self._only(sample), longest_costs=market.longest_costs * part))
        inner.least_s = inner.longest_s = self.least_s
        inner.taken = (counts * (1 - part)).astype(np.float64)
        for correction in range(CORRECTIONS):
            if correction:
                used = market.width[:, None] * self._choose().share()
                others = counts * (1 - part) + part * used.sum(axis=0) - used[sample].sum(axis=0)
                inner.taken = np.minimum(others, counts).astype(np.float64)
            inner.run(len(sample))
            self.price = np.maximum(inner.price / inner.unit, LEAST)
            self.longest_s = inner.longest_s

    def run(self, undecided: int) -> Floats:
        """The best shares; leaves prices as they are for them."""
        last, step = NEAREST, 0
        while True:
            chosen = self._choose()
            near, reach, reach_s = self._nearest(chosen, undecided, last)
            share, ties = chosen.share(), Ties(self.bidders, chosen, near)
            lack = self.taken + self.market.width @ share - self.market.counts
            around = self._around(chosen, share, ties, near, reach, reach_s)
            undecided_share, _, _, found = self._only(near).solve_within(around)
            price = np.clip(found.price, around.low, around.high)
            at_border = np.abs(found.traded) > FIT * np.maximum(self.market.counts, 1.0)
            at_border &= (found.traded > 0) | (around.low > LEAST)
            at_end = self._at_end(found.longest_s, around)
            longer_s = found.longest_s - self.longest_s
            self.longest_s = found.longest_s
            if not at_border.any() and not at_end:
                self.price = price
                share = chosen.share(longer_s)
                share[near] = undecided_share
                ties.swap(share, found.swapped)
                return share
            self._move(price, lack[at_border], found.traded[at_border])
            last *= 2 if at_end else 1
            undecided *= 2 if step % 2 else 1
            step += 1

    def _choose(self) -> MarketChoices:
        return self.bidders.choose(self.price, self.longest_s)

    def _only(self, jobs: Ints) -> Market:
        one = self.market
        return replace(
            one,
            width=one.width[jobs],
            weight=one.weight[jobs] * (len(jobs) / len(one.width)),
            progress=one.progress[jobs],
            gain=one.gain[jobs],
            left_s=one.left_s[jobs],
            saves_s=one.saves_s[jobs],
            must_save_s=one.must_save_s[jobs],
            late_costs=one.late_costs[jobs],
        )

    def _nearest(self, chosen: MarketChoices, undecided: int, last: int) -> tuple[Ints, float, float]:
        """Who is undecided, and how far prices, and what the longest job has left, are from everybody else's doubts."""
        jobs = len(chosen.part)
        if 2 * max(undecided, last) >= jobs:
            return np.arange(jobs), np.inf, np.inf
        near = np.zeros(jobs, dtype=bool)
        for distance, few in ((chosen.distance, undecided), (chosen.distance_s, last)):
            near[np.argpartition(distance, few)[:few]] = True
        return np.flatnonzero(near), float(chosen.distance[~near].min()), float(chosen.distance_s[~near].min())

    def _around(
        self, chosen: MarketChoices, share: Floats, ties: Ties, near: Ints, reach: float, reach_s: float
    ) -> Around:
        """What those who are decided leave to the others."""
        size, types = self.market.width.copy(), len(self.bidders.gain)
        size[near] = 0
        eased: Floats = size * chosen.eased
        per_s = np.bincount(chosen.first, eased, types) - np.bincount(chosen.second, eased, types)
        held = np.flatnonzero(eased)
        everybody = reach == np.inf
        reach = min(reach, FAR)
        return Around(
            taken=self.taken + size @ share - per_s[1:] * self.longest_s,
            taken_per_s=per_s[1:].astype(np.float64),
            worth_per_s=-float((chosen.slope[held] / self.bidders.whole_s[held]).sum()),
            low=np.maximum(self.price * (0.0 if everybody else 1 - reach), LEAST),
            high=self.price * (np.inf if everybody else 1 + reach),
            least_s=max(self.least_s, self.longest_s - reach_s),
            most_s=self.longest_s + reach_s,
            swaps=ties.swaps,
        )

    def _at_end(self, longest_s: float, around: Around) -> bool:
        """Whether the longest job could have less or more left, if others had a choice."""
        near_s = FIT * max(longest_s, 1.0)
        lowest = around.least_s > self.least_s and longest_s <= around.least_s + near_s
        return lowest or longest_s >= around.most_s - near_s

    def _move(self, price: Floats, lack: Floats, traded: Floats) -> None:
        """On beyond these prices: so much of types was lacking before, and so much is still traded."""
        before, after = float(np.abs(lack).sum()), float(np.abs(traded).sum())
        further = min(before / (before - after), FURTHER) if before > after else FURTHER
        self.price = np.maximum(self.price * np.clip((price / self.price) ** further, 1 / TENFOLD, TENFOLD), LEAST)
