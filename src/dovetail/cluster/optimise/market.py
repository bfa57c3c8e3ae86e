"""A market over a horizon: shares that raise logarithms of progress, hold back the last end, and keep promises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram

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

    def solve(self) -> tuple[Floats, float, Floats]:
        """The best shares, their value, and the seconds that are missing to promises."""
        jobs, types = self.gain.shape
        job, on = np.nonzero((self.gain > 0) & (self.width[:, None] <= self.counts))
        lp = LinearProgram(maximise=True)
        capacity = lp.add_rows(np.full(types, -np.inf), self.counts.astype(np.float64))
        time = lp.add_rows(np.full(jobs, -np.inf), np.ones(jobs))
        grown = lp.add_rows(np.zeros(jobs), np.zeros(jobs))  # segments' sum is what is gained
        horizon_s = float(self.saves_s.max(initial=1.0))
        saved = lp.add_rows(self.must_save_s / horizon_s, np.full(jobs, np.inf))
        longest = lp.add_rows(self.left_s / horizon_s, np.full(jobs, np.inf))
        saves = self.saves_s[job, on] / horizon_s
        rows = np.stack([capacity + on, time + job, grown + job, saved + job, longest + job], axis=1)
        values = np.stack(
            [self.width[job].astype(np.float64), np.ones(len(job)), self.gain[job, on], saves, saves], axis=1
        )
        lp.add_columns(
            cost=np.zeros(len(job)),
            lower=np.zeros(len(job)),
            upper=np.ones(len(job)),
            starts=np.arange(0, rows.size, 5),
            rows=rows.ravel(),
            values=values.ravel(),
        )
        missing = lp.add_columns(
            cost=-self.late_costs * horizon_s,
            lower=np.zeros(jobs),
            upper=np.full(jobs, np.inf),
            starts=np.arange(jobs),
            rows=saved + np.arange(jobs),
            values=np.ones(jobs),
        )
        self._add_segments(lp, grown)
        lp.add_columns(  # what the longest job has left
            cost=[-self.longest_costs * horizon_s],
            lower=[0.0],
            upper=[np.inf],
            starts=[0],
            rows=longest + np.arange(jobs),
            values=np.ones(jobs),
        )
        value, found = lp.solve().value, lp.values()
        share = np.zeros((jobs, types))
        share[job, on] = found[: len(job)]
        return share, value, found[missing : missing + jobs] * horizon_s

    def _add_segments(self, lp: LinearProgram, grown: int) -> None:
        """Progress still to be made, in parts that are worth less and less: the best are taken first by themselves."""
        jobs = len(self.progress)
        slope = np.diff(worth(POINTS)) / np.diff(POINTS)
        room = np.clip(POINTS[1:] - np.maximum(POINTS[:-1], self.progress[:, None]), 0.0, None)
        of, part = np.nonzero(room > 0)
        lp.add_columns(
            cost=self.weight[of] * slope[part] / jobs,
            lower=np.zeros(len(of)),
            upper=room[of, part],
            starts=np.arange(len(of)),
            rows=grown + of,
            values=-np.ones(len(of)),
        )
