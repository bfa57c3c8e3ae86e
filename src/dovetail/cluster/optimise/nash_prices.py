"""The largest product of levels (Nash welfare) of many unlike jobs, found by the prices of few types.

At given prices everybody chooses for itself how much of what to have: a job's gain is the logarithm of its level, by
weight, less what it pays. What all choose changes smoothly with prices but where some job turns from one type to
another; the few jobs that are there divide their time. A step models both, as a small program with tangents in the
place of squares; at the end Newton's method on the conditions of the best prices gives them to the last digits.
"""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.price_search import (
    NEAREST,
    STEPS,
    TIE,
    Bools,
    Choices,
    NoPricesError,
    PricedChoice,
    PriceSearch,
)
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram

NEAR = 1e-3  # relative change of prices: from here on Newton's method
EXACT = 1e-13
ROUNDING = 1e-11  # a step as small that is not half of the one before is none
TANGENTS = 40
POLISH = 12


class NashSearch(PriceSearch):
    """Prices at which what everybody wants fits; `level` and `size` as PricedShares has them, `weight` by block."""

    def __init__(self, level: Floats, size: Floats, weight: Floats, counts: Floats, used: Floats | None = None) -> None:
        types = len(counts)
        first, second = np.triu_indices(types + 1)
        none = np.zeros((len(first), level.shape[1]))
        self.level, self.weight = level, weight
        runs = level > 0
        self._wanted: Bools = np.asarray(runs[1:].any(axis=1))  # by type
        runs[0] = False  # with nothing there is no logarithm
        self._low, self._rise = level[first], level[second] - level[first]
        self._single = first == second
        self._can = np.where(self._single[:, None], runs[first], (runs[first] | (first == 0)[:, None]) & runs[second])
        self._can &= self._single[:, None] | (self._rise != 0)
        choices = Choices(first, second, none, np.zeros(none.shape, dtype=bool))
        nothing = np.zeros(types) if used is None else used
        super().__init__(choices, np.zeros_like(level), size, counts, nothing, np.zeros(types, dtype=bool))

    def values(self, price: Floats) -> Floats:
        """What every choice is worth, each at the level that suits its block best: open where it lies between both."""
        paid = np.append(0.0, price)[:, None] * self.size
        low, more = paid[self.choices.first], paid[self.choices.second] - paid[self.choices.first]
        with np.errstate(divide="ignore", invalid="ignore"):
            level = self.weight * self._rise / more  # where one more costs as much as it is worth
            part = (level - self._low) / self._rise
            inside = (part > 0) & (part < 1) & (level > 0)
            self.choices.part = np.where(inside & ~self._single[:, None], part, 0.0)
            self.choices.open = self._can & (inside | self._single[:, None])
            self.reached = self._low + self.choices.part * self._rise
            value = self.weight * np.log(self.reached) - low - self.choices.part * more
        return np.where(self.choices.open, value, -np.inf)

    def curvature(self, price: Floats, block: Ints, choice: Ints, weight: Floats) -> Floats:
        """How fast less is used as prices rise, type by type."""
        pairs = ~self._single[choice]
        block, choice, weight = block[pairs], choice[pairs], weight[pairs]
        first, second = self.choices.first[choice], self.choices.second[choice]
        slope = self.size[block] / self._rise[choice, block]  # of the price of a level
        paid = np.append(0.0, price)
        bend = weight * self.weight[block] / (slope * (paid[second] - paid[first])) ** 2 * slope**2
        total = np.zeros((self.types + 1, self.types + 1))
        for a, b, sign in ((first, first, 1.0), (second, second, 1.0), (first, second, -1.0), (second, first, -1.0)):
            np.add.at(total, (a, b), sign * bend)
        return total[1:, 1:]

    def levels(self, price: Floats | None) -> tuple[Floats, PricedChoice]:
        """The level of every block, and the prices."""
        found = self.run(price)
        block = np.arange(self.blocks)
        level: Floats = self.reached[found.best, block]
        return level, found

    def run(self, price: Floats | None, *, normal: bool = False, roughly: bool = False) -> PricedChoice:
        if price is None:
            price = self._from_sample(normal)
        price = np.where(self._wanted, price, 0.0)
        undecided, self._moved = NEAREST, np.inf
        for _ in range(STEPS):
            before = price
            price, found, border = self._step(price, undecided, normal)
            moved = self._moved = float(np.abs(price - before).max() / max(price.max(), 1e-3 * self._typical()))
            if moved == 0.0:
                self._moved = NEAR
            if roughly and not border and moved < 0.01:
                return found
            if border:
                undecided *= 2
            elif moved <= NEAR and (exact := self._polish(found)) is not None:
                return exact
        raise NoPricesError("prices that fit were not found")

    def _sample(self, sample: Ints, counts: Floats, used: Floats) -> PriceSearch:
        # A correction may leave little, but not nothing: no price would be high enough.
        used = np.minimum(used, 0.9 * counts)
        return NashSearch(self.level[:, sample], self.size[sample], self.weight[sample], counts, used)

    def _of_one_type(self) -> Floats:
        """Where there is one type: a job has as much of it as its weight pays for, at most all of its time."""
        left, worth = float(self.counts[0] - self.used[0]), self.weight / self.size
        if self.size.sum() <= left:
            return np.zeros(1)
        order = np.argsort(-worth, kind="stable")
        full = np.cumsum(self.size[order]) - self.size[order]  # of those who have more, if they have all of their time
        others = np.cumsum(self.weight[order][::-1])[::-1]
        with np.errstate(divide="ignore"):
            price = np.where(full < left, others / np.maximum(left - full, 1e-300), np.inf)
        best: Floats = price[[np.argmax(price >= worth[order])]]
        return best

    def _typical(self) -> float:
        return float(self.weight.sum() / self.counts.sum())

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
        """The best change of prices, with squares for who is smooth, and every choice of the undecided."""
        block, everybody, used = near[at], np.arange(self.blocks), self._used_without(near, best)
        most = min(reach, 0.7, 20.0 * self._moved)
        unit = max(most, 1e-12) * float(scale.max())  # changes are counted in this, so that numbers are about 1
        low, high = np.maximum(price - most * scale, 0.0) - price, np.where(self._wanted, most * scale, 0.0)
        bend, turn = np.linalg.eigh(self.curvature(price, everybody, best, np.ones(self.blocks)))
        bend = np.maximum(bend, 0.0) * unit
        lp, types, many = LinearProgram(maximise=False), self.types, len(near)
        free = np.full(many + types, np.inf)
        lp.add_columns(
            cost=self.counts - used, lower=low / unit, upper=high / unit, starts=np.zeros(types), rows=[], values=[]
        )
        cost = np.append(np.ones(many), np.zeros(types))
        lp.add_columns(cost=cost, lower=-free, upper=free, starts=np.zeros(many + types), rows=[], values=[])
        ones = np.ones(types)
        lp.add_columns(cost=ones, lower=0 * ones, upper=free[:types], starts=0 * ones, rows=[], values=[])
        part, first, second = self.choices.part[choice, block], self.choices.first[choice], self.choices.second[choice]
        size = self.size[block]
        paid = np.append(0.0, price)
        value = self.weight[block] * np.log(self.reached[choice, block])
        value = value - size * (paid[first] + part * (paid[second] - paid[first])) - worth[block]
        value /= unit
        columns = np.stack([types + at, first - 1, second - 1], axis=1)
        values = np.stack([np.ones(len(at)), size * (1 - part), size * part], axis=1)
        keep = np.stack([np.ones(len(at), dtype=bool), first > 0, (second > 0) & (second != first)], axis=1)
        starts = np.cumsum(keep.sum(axis=1)) - keep.sum(axis=1)
        lp.add_rows(value, np.full(len(at), np.inf), starts, columns[keep], values[keep])
        turned, square = types + many, 2 * types + many
        for i in range(types):  # the change, turned so that curvature is a square of each
            lp.add_rows([0.0], [0.0], [0], [*range(types), turned + i], [*turn[:, i].tolist(), -1.0])
        points = np.zeros(types)
        for _ in range(TANGENTS):
            for i in range(types):
                slope, off = bend[i] * points[i], -0.5 * bend[i] * points[i] ** 2
                lp.add_rows([off], [np.inf], [0], [turned + i, square + i], [-slope, 1.0])
            if lp.solve().status != "optimal":
                raise NoPricesError("a program of prices has no solution")
            x = lp.values()
            points = x[turned : turned + types]
            if (0.5 * bend * points**2 - x[square:]).max() <= 1e-9:
                break
        change = np.clip(x[:types] * unit, low, high)
        weight = np.abs(lp.row_prices()[: len(at)])
        inside = (change > low + 1e-9 * scale) | (price + low == 0.0)
        inside &= (change < high - 1e-9 * scale) | ~self._wanted
        border = most == reach and not bool(inside.all())
        some = weight > 1e-9
        after = price + change
        return after, PricedChoice(after, best, worth, block[some], choice[some], weight[some]), border

    def _polish(self, found: PricedChoice) -> PricedChoice | None:
        """Newton's method: what is used is what there is, and who divides its time is indifferent."""
        price, block = found.price.copy(), np.arange(self.blocks)
        twice = np.bincount(found.job, minlength=self.blocks)[found.job] > 1
        sure, chosen = found.job[~twice], found.choice[~twice]  # of equally good choices, the one that was made
        job, choice, weight = found.job[twice], found.choice[twice], found.weight[twice]
        order = np.lexsort((choice, job))
        job, choice, weight = job[order], choice[order], weight[order]
        new = np.append(True, job[1:] != job[:-1]) if len(job) else np.zeros(0, dtype=bool)
        base, others = np.flatnonzero(new), np.flatnonzero(~new)
        of = np.searchsorted(base, others, side="right") - 1
        moved = np.inf
        for _ in range(POLISH):
            value = self.values(price)
            best = value.argmax(axis=0)
            still = value[chosen, sure] >= value.max(axis=0)[sure] - TIE * self.weight[sure]
            best[sure[still]] = chosen[still]
            if not self.choices.open[choice, job].all():
                return None
            single = np.ones(self.blocks, dtype=bool)
            single[job] = False
            alone = np.flatnonzero(single)
            used = self.used + self.choices.use(alone, best[alone], self.size[alone])
            used = used + self.choices.use(job, choice, self.size[job] * weight)
            lack = self.counts - used
            priced = np.flatnonzero((price > 0) | (lack < 0))
            bend = self.curvature(price, alone, best[alone], np.ones(len(alone)))
            bend = bend + self.curvature(price, job, choice, weight)
            swap = self._swaps(job, choice, base[of], others)[:, priced]
            apart = value[choice[others], job[others]] - value[choice[base[of]], job[others]]
            ties = len(others)
            matrix = np.block([[bend[np.ix_(priced, priced)], -swap.T], [-swap, np.zeros((ties, ties))]])
            step = np.linalg.lstsq(matrix, np.append(-lack[priced], -apart), rcond=None)[0]
            price[priced] = np.maximum(price[priced] + step[: len(priced)], 0.0)
            weight[others] += step[len(priced) :]
            weight[base] -= np.bincount(of, step[len(priced) :], minlength=len(base)) if ties else 0.0
            moved, before = float(np.abs(step[: len(priced)]).max(initial=0.0)), moved
            if moved <= EXACT * price.max() or before <= 2 * moved <= ROUNDING * price.max():
                break  # of many jobs, what rounding leaves of the last digit goes back and forth
        else:
            return None
        if len(weight) and (weight.min() < -1e-7 or weight.max() > 1 + 1e-7):
            return None
        lack = (used - self.counts) / np.maximum(self.counts, 1.0)
        if (lack > 1e-9).any() or (np.abs(lack[price > 0]) > 1e-9).any():
            return None
        best[job[base]] = choice[base]
        return PricedChoice(price, best, value[best, block], job, choice, weight)

    def _swaps(self, job: Ints, choice: Ints, base: Ints, others: Ints) -> Floats:
        """By tie and type: how much more is used of it if one choice takes the place of the other."""
        swap = np.zeros((len(others), self.types + 1))
        for rows, sign in ((others, 1.0), (base, -1.0)):
            amount, part = sign * self.size[job[rows]], self.choices.part[choice[rows], job[rows]]
            each = np.arange(len(others))
            np.add.at(swap, (each, self.choices.first[choice[rows]]), amount * (1 - part))
            np.add.at(swap, (each, self.choices.second[choice[rows]]), amount * part)
        return swap[:, 1:]
