"""Pairs of unlike jobs, of which only those that pay become columns of a program.

A thousand unlike classes make a million pairs on three types, and shares use some thousand of them. So a program begins
with some that do well, and its row prices tell which of the others would raise its objective: the best one of every
class and type is added, and the program is solved again, until there is none. Then its solution is that of all pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.cluster.optimise.columns import Columns, tie_break_of
from dovetail.cluster.policies.base import Floats, Ints

FIRST = 2  # neighbours of every class and type to begin with
PAYS = 1e-9  # a column that raises the objective by no more per unit of time is left out


class Beyond(NamedTuple):
    """What a class is paid for its level on an option, as far as that is above a rate."""

    position: int
    rate: float
    price: float


class PairPool:
    """All pairs of the classes that are there, on every type."""

    def __init__(
        self, slots: Ints, kind: Ints, width: Ints, rates: Floats, pair_rates: Floats, normal: Floats, number: Floats
    ) -> None:
        """What is given is by slot; `slots` are those of the classes."""
        self.slots, self._width, self._number = slots, width[slots].astype(np.float64), number[slots]
        self._types = rates.shape[1]
        unit = np.where(normal[slots] > 0, normal[slots], 1.0)
        apart = self._width[:, None] != self._width
        np.fill_diagonal(apart, True)  # a class beside itself is always a column
        # By type: the level of each class beside each, and 0, or -inf where that is never of use: to add is quicker
        # than to choose.
        self._level = np.empty((self._types, len(slots), len(slots)))
        self._barred = np.empty(self._level.shape)
        self._unit = unit
        among = np.ix_(kind[slots], kind[slots])
        for on in range(self._types):
            rate = pair_rates[:, :, on][among]
            part = rate / np.where(rates[slots, on] > 0, rates[slots, on], np.inf)[:, None]
            runs = rate > 0
            part = part + part.T
            self._level[on] = rate / unit[:, None]
            never = apart | ~(runs & runs.T) | (part <= 1 + 1e-12)
            self._barred[on] = np.array([0.0, -np.inf])[never.view(np.uint8)]

    def top_level(self) -> Floats:
        """By class: of the fastest pair."""
        top: Floats = (self._level + self._barred).max(axis=(0, 2), initial=0.0)
        return top

    def promising(self, alone: Floats) -> Columns:
        """Those that gain most from company, of every class on every type; `alone` are levels by class and type."""
        found: list[tuple[Ints, Ints, Ints]] = []
        each = np.arange(len(self.slots))
        for on, (level, barred) in enumerate(zip(self._level, self._barred, strict=True)):
            gain = level / np.where(alone[:, on] > 0, alone[:, on], np.inf)[:, None]
            gain = gain + gain.T
            gain += barred
            for _ in range(FIRST):
                best = gain.argmax(axis=1)
                fits = gain[each, best] > -np.inf
                found.append((each[fits], best[fits], np.full(int(fits.sum()), on)))
                gain[each, best] = -np.inf
        return self._columns(found)

    def paying(
        self,
        type_price: Floats,
        time_price: Floats,
        level_worth: Floats,
        rate_worth: Floats,
        beyond: list[Beyond],
        tie_break: float,
    ) -> Columns:
        """The best pair of every class and type, where any is worth more than it costs.

        Prices of time and what levels are worth are by class, what a step per second is worth by type; `tie_break` is
        what the fixed preference counts.
        """
        found: list[tuple[Ints, Ints, Ints]] = []
        each = np.arange(len(self.slots))
        for on, (level, barred) in enumerate(zip(self._level, self._barred, strict=True)):
            value = (level_worth + rate_worth[on] * self._unit)[:, None] * level
            for one in beyond:
                value[one.position] += one.price * np.maximum(level[one.position] - one.rate, 0.0)
            cost = time_price + self._width * type_price[on] / 2  # both have the same width
            value -= cost[:, None]
            value = value + value.T
            value += barred
            best = value.argmax(axis=1)
            if tie_break:
                near = np.flatnonzero(value[each, best] > PAYS - tie_break)
                some = value[near] + tie_break * tie_break_of(self._number[near, None], self._number, on)
                value[near], best[near] = some, some.argmax(axis=1)
            pays = np.flatnonzero(value[each, best] > PAYS)
            found.append((pays, best[pays], np.full(len(pays), on)))
        return self._columns(found)

    def _columns(self, found: list[tuple[Ints, Ints, Ints]]) -> Columns:
        """Each once."""
        a, b, on = (np.concatenate(each) for each in zip(*found, strict=True))
        classes = len(self.slots)
        code = np.unique((np.minimum(a, b) * classes + np.maximum(a, b)) * self._types + on)
        pair, on = np.divmod(code, self._types)
        a, b = np.divmod(pair, classes)
        level = self._level
        return Columns(
            self.slots[a], self.slots[b], on, level[on, a, b] * self._unit[a], level[on, b, a] * self._unit[b]
        )
