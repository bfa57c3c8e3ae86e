"""The largest product of levels (Nash welfare) with one job less, for one of every class at once.

One job hardly moves prices, so who chooses what mostly stays as it is: then Newton's method on the conditions of the
best prices gives them for all these problems together. An answer counts only if nobody would choose otherwise at its
prices; where somebody would, that problem is searched anew.
"""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.nash_prices import EXACT, NashSearch
from dovetail.cluster.optimise.price_search import FIT, TIE, Bools, PricedChoice
from dovetail.cluster.policies.base import Floats, Ints

STEPS = 12


class WithoutOne:
    """Classes of `count` jobs; arrays by type (the first is idling) and class as NashSearch has them, but of one job.

    `found` is the best for all jobs.
    """

    def __init__(
        self, level: Floats, width: Floats, weight: Floats, count: Ints, counts: Floats, found: PricedChoice
    ) -> None:
        self._level, self._width, self._weight, self._count = level, width, weight, count
        self._counts, self._start = counts, found.price
        self._first, self._second = np.triu_indices(len(counts) + 1)
        alone = np.setdiff1d(np.arange(len(count)), found.job)
        order = np.argsort(found.job, kind="stable")
        self._of = np.concatenate([alone, found.job[order]])  # by part of a class that has one choice
        choice = np.concatenate([found.best[alone], found.choice[order]])
        self._part = np.concatenate([np.ones(len(alone)), found.weight[order]])  # how much of the class
        rest = np.flatnonzero(np.append(False, self._of[1:] == self._of[:-1]))
        self._rest, self._main = rest, np.searchsorted(self._of[len(alone) :], self._of[rest]) + len(alone)
        self._from, self._to = self._first[choice], self._second[choice]

    def levels(self) -> Floats:
        """By class that has one job less, and class: the level of every job; 0 where no job is left."""
        level, right = self._together()
        for one in np.flatnonzero(~right).tolist():
            count = self._count.copy()
            count[one] -= 1
            level[one] = 0.0
            if len(there := np.flatnonzero(count)):
                size, weight = (self._width * count)[there], (self._weight * count)[there]
                search = NashSearch(self._level[:, there], size, weight, self._counts)
                level[one, there] = search.levels(self._start)[0]
        return level

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # of problems that are not right then
    def _together(self) -> tuple[Floats, Bools]:
        """Levels as they are if everybody's choice stays, and whether it does."""
        classes, of, types = len(self._count), self._of, len(self._counts)
        jobs = self._count - np.eye(classes)
        low, high = self._level[self._from, of], self._level[self._to, of]
        pair, rise = self._from != self._to, high - low
        one_hot = np.eye(types + 1)
        turn = one_hot[self._to] - one_hot[self._from]
        priced = np.flatnonzero(self._start > 0) + 1
        price = np.tile(np.append(0.0, self._start), (classes, 1))
        part, ties = np.tile(self._part, (classes, 1)), len(self._rest)
        moves = np.eye(len(of))[self._rest] - np.eye(len(of))[self._main]
        matrix = np.zeros((classes, len(priced) + ties, len(priced) + ties))
        last, used = np.full(classes, np.inf), price
        for _ in range(STEPS):
            dearer = np.where(pair, price[:, self._to] - price[:, self._from], 1.0)
            slope = np.where(pair, self._weight[of] / (self._width[of] * dearer), 0.0)
            second = np.where(pair, slope - low / np.where(pair, rise, 1.0), 0.0)  # part of the time on the second type
            reached = low + second * rise
            use = one_hot[self._from] + second[:, :, None] * turn
            size = (jobs * self._width)[:, of] * part
            used = np.einsum("ie,iet->it", size, use)
            paid = self._width[of] * np.einsum("it,iet->ie", price, use)
            value = self._weight[of] * np.log(np.maximum(reached, 1e-300)) - paid
            if (last <= EXACT * price.max(axis=1)).all():
                break
            swap = self._width[of][self._rest, None] * (use[:, self._rest] - use[:, self._main])[:, :, priced]
            bend = np.einsum("ie,et,eu->itu", size * slope / dearer, turn[:, priced], turn[:, priced])
            matrix[:, : len(priced), : len(priced)] = -bend
            matrix[:, : len(priced), len(priced) :] = (jobs[:, of[self._rest]][:, :, None] * swap).transpose(0, 2, 1)
            matrix[:, len(priced) :, : len(priced)] = -swap
            lack = (self._counts - used[:, 1:])[:, priced - 1]
            apart = value[:, self._main] - value[:, self._rest]
            try:
                step = np.linalg.solve(matrix, np.concatenate([lack, apart], axis=1)[:, :, None])[:, :, 0]
            except np.linalg.LinAlgError:
                return np.zeros((classes, classes)), np.zeros(classes, dtype=np.bool_)
            price[:, priced] += step[:, : len(priced)]
            last = np.abs(step[:, : len(priced)]).max(axis=1, initial=0.0)
            part += step[:, len(priced) :] @ moves
        level = np.zeros((classes, classes))
        level[:, of] = reached
        best = np.zeros((classes, classes))
        best[:, of] = value
        over = (used[:, 1:] - self._counts) / np.maximum(self._counts, 1.0)
        right = (last <= EXACT * price.max(axis=1)) & (price.min(axis=1) >= 0.0) & (over.max(axis=1) <= FIT)
        right &= (part.min(axis=1) >= -FIT) & ((second >= 0) & (second <= 1)).all(axis=1)
        missed = self._most(price) - best > TIE * self._weight
        return level, right & ~(missed & (jobs > 0)).any(axis=1)

    def _most(self, price: Floats) -> Floats:
        """By problem and class: what the best of all choices is worth at these prices."""
        first, second = self._first[:, None, None], self._second[:, None, None]
        low, high = self._level[self._first][:, None], self._level[self._second][:, None]
        paid = price.T[:, :, None] * self._width
        with np.errstate(divide="ignore", invalid="ignore"):
            more = paid[self._second] - paid[self._first]
            part = self._weight / more - low / (high - low)
            part = np.where((part > 0) & (part < 1) & ((low > 0) | (first == 0)) & (high > 0), part, 0.0)
            value = self._weight * np.log(low + part * (high - low)) - paid[self._first] - part * more
        found: Floats = value.max(axis=0, initial=-np.inf, where=~np.isnan(value) & ((second > first) | (first > 0)))
        return found
