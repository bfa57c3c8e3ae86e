"""A market over a horizon: shares that raise logarithms of progress, hold back the last end, and keep promises."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram

Bools = NDArray[np.bool_]

POINTS = np.array([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])  # of progress
_FIRST = 1e-3  # stands for no progress in logarithms


def worth(progress: Floats) -> Floats:
    """The logarithm of progress (a part of the whole job), in straight lines between `POINTS`.

    >>> [round(float(one), 3) for one in worth(np.array([0.0, 0.5, 1.0]))]
    [-6.908, -0.693, 0.0]
    """
    value: Floats = np.interp(progress, POINTS, np.log(np.maximum(POINTS, _FIRST)))
    return value


@dataclass(slots=True, kw_only=True)
class Market:
    """Who is there: all arrays are over jobs, `gain` over jobs and types.

    With all of a horizon on a type, a job's progress grows by `gain` and its remaining time, `left_s`, falls by
    `saves_s`. `must_save_s` is what its promise needs.
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

    def solve(self) -> tuple[Floats, float, Floats]:
        """The best shares, their value, and the seconds that are missing to promises.

        Only what can bind is in the program: a job has a row for its progress if its logarithm bends within what it can
        reach, one for its promise if it can keep it, and one for its end if it could be the last.
        """
        able = (self.gain > 0) & (self.width[:, None] <= self.counts)
        reach = np.where(able, self.gain, 0.0).max(axis=1, initial=0.0)
        saves_most = np.where(able, self.saves_s, 0.0).max(axis=1, initial=0.0)
        self._lp = lp = LinearProgram(maximise=True, once=True)
        capacity = lp.add_rows(np.full(len(self.counts), -np.inf), self.counts.astype(np.float64))
        several = self._add_rows(able.sum(axis=1) > 1, -np.inf, 1.0)
        straight, bent, room, slope = self._segments(reach)
        grown = self._add_rows(np.isnan(straight) & (reach > 0), 0.0, 0.0)  # segments' sum is what is gained
        horizon_s = float(self.saves_s.max(initial=1.0))
        hopeless = (self.must_save_s > 0) & (self.must_save_s >= saves_most)
        promised = (self.must_save_s > 0) & ~hopeless
        saved = self._add_rows(promised, self.must_save_s / horizon_s, np.inf)
        least_s = max(float((self.left_s - saves_most).max(initial=0.0)), 0.0)  # that the longest has left at the end
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
        rows = longest[longest >= 0]
        lp.add_columns(  # what the longest job has left
            cost=[-self.longest_costs * horizon_s],
            lower=[least_s / horizon_s],
            upper=[np.inf],
            starts=[0],
            rows=rows,
            values=np.ones(len(rows)),
        )
        value, found = lp.solve().value, lp.values()
        share = np.zeros(able.shape)
        share[job, on] = found[: len(job)]
        missing_s = np.where(hopeless, self.must_save_s - (share * self.saves_s).sum(axis=1), 0.0)
        missing_s[promised] = found[missing : missing + len(ones)] * horizon_s
        return share, value - float(self.late_costs[hopeless] @ self.must_save_s[hopeless]), missing_s

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
