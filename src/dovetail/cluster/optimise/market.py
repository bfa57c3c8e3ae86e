"""A market over a horizon: shares that raise logarithms of progress, hold back the last end, and keep promises."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram, NoAnswerError

Bools = NDArray[np.bool_]

POINTS = np.array([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])  # of progress
_FIRST = 1e-3  # stands for no progress in logarithms
_STEPS = 200_000  # for a program beside others: if the solver goes round in it, there is the whole one


def worth(progress: Floats) -> Floats:
    """The logarithm of progress (a part of the whole job), in straight lines between `POINTS`.

    >>> [round(float(one), 3) for one in worth(np.array([0.0, 0.5, 1.0]))]
    [-6.908, -0.693, 0.0]
    """
    value: Floats = np.interp(progress, POINTS, np.log(np.maximum(POINTS, _FIRST)))
    return value


@dataclass(slots=True, kw_only=True)
class Swaps:
    """What others take of one type, and could as well take of another. By swap; 0 is idling, then the types."""

    source: Ints
    target: Ints
    ratio: Floats  # of the target for one of the source
    rest: Ints  # what they do in the time that this saves, or costs
    group: Ints  # whose swap: all of a group come to at most its `room`
    room: Floats


@dataclass(slots=True, kw_only=True)
class Around:
    """What others leave to the jobs of a market, while prices are within limits."""

    taken: Floats  # of every type, if the longest job had nothing left
    taken_per_s: Floats  # more, for every second that it has
    worth_per_s: float  # of these seconds to others
    low: Floats  # prices: others take as much as is there at the low ones, and leave as much as is asked at the high
    high: Floats
    least_s: float  # that the longest job has left at the end of the horizon
    most_s: float
    swaps: Swaps


@dataclass(slots=True, kw_only=True)
class MarketOutcome:
    """What a solved market says of the others."""

    price: Floats  # by type
    traded: Floats  # by type: what is taken of others at the high price, less what is left to them at the low one
    longest_s: float
    swapped: Floats


@dataclass(slots=True, kw_only=True)
class Market:
    """Who is there: all arrays are over jobs, `gain` and `saves_s` over jobs and types.

    With all of a horizon on a type, a job's progress grows by `gain` and its remaining time, `left_s`, falls by
    `saves_s`, in proportion to `gain`. `must_save_s` is what its promise needs.
    """

    width: Ints
    counts: Ints
    weight: Floats  # of its logarithm
    progress: Floats
    gain: Floats
    left_s: Floats
    saves_s: Floats
    must_save_s: Floats
    late_costs: Floats  # of a second by which a promise is missed
    longest_costs: float  # of a second that the longest job has left at the end of the horizon
    _lp: LinearProgram = field(init=False)

    @property
    def able(self) -> Bools:
        able: Bools = (self.gain > 0) & (self.width[:, None] <= self.counts)
        return able

    def solve(self) -> tuple[Floats, float, Floats]:
        """The best shares, their value, and the seconds that are missing to promises."""
        share, value, missing_s, _ = self.solve_within(None)
        return share, value, missing_s

    def solve_within(self, around: Around | None) -> tuple[Floats, float, Floats, MarketOutcome]:
        """The same, beside others.

        Only what can bind is in the program: a job has a row for its progress if its logarithm bends within what it can
        reach, one for its promise if it can keep it, and one for its end if it could be the last.
        """
        able, types = self.able, len(self.counts)
        reach = np.where(able, self.gain, 0.0).max(axis=1, initial=0.0)
        saves_most = np.where(able, self.saves_s, 0.0).max(axis=1, initial=0.0)
        horizon_s = float(self.saves_s.max(initial=1.0))
        self._lp = lp = LinearProgram(maximise=True, once=True, step_limit=_STEPS if around else None)
        capacity = lp.add_rows(np.full(types, -np.inf), self.counts - (around.taken if around else 0.0))
        several = self._add_rows(able.sum(axis=1) > 1, -np.inf, 1.0)
        straight, bent, room, slope = self._segments(reach)
        grown = self._add_rows(np.isnan(straight) & (reach > 0), 0.0, 0.0)  # segments' sum is what is gained
        hopeless = (self.must_save_s > 0) & (self.must_save_s >= saves_most)
        promised = (self.must_save_s > 0) & ~hopeless
        saved = self._add_rows(promised, self.must_save_s / horizon_s, np.inf)
        least_s = max(float((self.left_s - saves_most).max(initial=0.0)), around.least_s if around else 0.0)
        longest = self._add_rows(self.left_s > least_s, self.left_s / horizon_s, np.inf)

        job, on = np.nonzero(able)
        late = np.where(hopeless, self.late_costs, 0.0)[job] * self.saves_s[job, on]
        saves = self.saves_s[job, on] / horizon_s
        self._add_columns(
            np.nan_to_num(straight)[job] * self.gain[job, on] + late,
            1.0,
            np.stack([capacity + on, several[job], grown[job], saved[job], longest[job]], axis=1),
            np.stack([self.width[job].astype(np.float64), np.ones(len(job)), self.gain[job, on], saves, saves], axis=1),
        )
        ones = np.ones(int(promised.sum()))
        missing = lp.columns
        self._add_columns(-self.late_costs[promised] * horizon_s, np.inf, saved[promised][:, None], ones[:, None])
        self._add_columns(slope, room, grown[bent][:, None], -np.ones((len(bent), 1)))
        last = lp.columns
        rows = longest[longest >= 0]
        lp.add_columns(  # what the longest job has left
            cost=[-self.longest_costs * horizon_s],
            lower=[least_s / horizon_s],
            upper=[np.inf],
            starts=[0],
            rows=rows,
            values=np.ones(len(rows)),
        )
        if around:
            self._add_others(around, capacity, last, horizon_s)
        solution, found = lp.solve(), lp.values()
        if around and solution.status != "optimal":
            raise NoAnswerError(f"the program of some of the jobs is {solution.status}")
        share = np.zeros(able.shape)
        share[job, on] = found[: len(job)]
        missing_s = np.where(hopeless, self.must_save_s - (share * self.saves_s).sum(axis=1), 0.0)
        missing_s[promised] = found[missing : missing + len(ones)] * horizon_s
        bought, sold, swapped = np.split(found[last + 1 :], [types, 2 * types])
        outcome = MarketOutcome(
            price=lp.row_prices()[capacity : capacity + types],
            traded=bought - sold,
            longest_s=float(found[last] * horizon_s),
            swapped=swapped,
        )
        value = solution.value - float(self.late_costs[hopeless] @ self.must_save_s[hopeless])
        return share, value, missing_s, outcome

    def value_of(self, share: Floats) -> tuple[float, Floats]:
        """The value of shares, and the seconds that are missing to promises."""
        saved_s = (share * self.saves_s).sum(axis=1)
        missing_s = np.maximum(self.must_save_s - saved_s, 0.0)
        grown = worth(self.progress + (share * self.gain).sum(axis=1)) - worth(self.progress)
        longest_s = float((self.left_s - saved_s).max(initial=0.0))
        value = self.weight @ grown / len(grown) - self.late_costs @ missing_s - self.longest_costs * longest_s
        return float(value), missing_s

    def _add_others(self, around: Around, capacity: int, last: int, horizon_s: float) -> None:
        """What others trade and swap, and what the longest job's seconds, in column `last`, are to them."""
        lp, types, swaps = self._lp, len(self.counts), around.swaps
        lp.set_costs([last], [(around.worth_per_s - self.longest_costs) * horizon_s])
        lp.set_bounds([last], [around.least_s / horizon_s], [around.most_s / horizon_s])
        for on in np.flatnonzero(around.taken_per_s).tolist():
            lp.set_coefficient(capacity + on, last, float(around.taken_per_s[on]) * horizon_s)
        every, offered = capacity + np.arange(types)[:, None], np.isfinite(around.high)
        self._add_columns(
            np.where(offered, -around.high, 0.0), np.where(offered, np.inf, 0.0), every, -np.ones((types, 1))
        )
        self._add_columns(around.low, np.inf, every, np.ones((types, 1)))
        ones = np.ones(len(swaps.group))
        group = lp.add_rows(np.full(len(swaps.room), -np.inf), swaps.room) + swaps.group
        on_types = np.stack([swaps.source, swaps.target, swaps.rest], axis=1)
        rows = np.column_stack([np.where(on_types > 0, capacity + on_types - 1, -1), group])
        self._add_columns(
            np.zeros(len(ones)), np.inf, rows, np.stack([-ones, swaps.ratio, 1 - swaps.ratio, ones], axis=1)
        )

    def _add_rows(self, which: Bools, lower: Floats | float, upper: Floats | float) -> Ints:
        """Rows for these jobs; gives the row of every job, or -1."""
        jobs = np.flatnonzero(which)
        row = np.full(len(which), -1)
        low, high = np.broadcast_to(lower, which.shape), np.broadcast_to(upper, which.shape)
        row[jobs] = self._lp.add_rows(low[jobs], high[jobs]) + np.arange(len(jobs))
        return row

    def _add_columns(self, cost: Floats, upper: Floats | float, rows: Ints, values: Floats) -> None:
        """Columns with these entries, as far as there are such rows."""
        there = (rows >= 0) & (values != 0)
        starts = np.cumsum(there.sum(axis=1)) - there.sum(axis=1)
        high, zero = np.broadcast_to(upper, cost.shape).copy(), np.zeros(len(cost))
        self._lp.add_columns(cost=cost, lower=zero, upper=high, starts=starts, rows=rows[there], values=values[there])

    def _segments(self, reach: Floats) -> tuple[Floats, Ints, Floats, Floats]:
        """Progress that can be made within the horizon. By job: what it is worth, where that is the same for all of it,
        else nan; of the others, parts that are worth less and less, so that the best are taken first by themselves: of
        which job, how much, and what it is worth."""
        jobs = len(self.progress)
        start = np.maximum(POINTS[:-1], self.progress[:, None])
        room = np.clip(POINTS[1:] - start, 0.0, None)
        of, part = np.nonzero((room > 0) & (start - self.progress[:, None] < reach[:, None]))
        slope = self.weight[of] * (np.diff(worth(POINTS)) / np.diff(POINTS))[part] / jobs
        room = room[of, part]
        enough = (np.bincount(of, minlength=jobs)[of] == 1) & (room >= reach[of])
        straight = np.full(jobs, np.nan)
        straight[of[enough]] = slope[enough]
        return straight, of[~enough], room[~enough], slope[~enough]
