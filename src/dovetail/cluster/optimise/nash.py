"""The largest product of levels (Nash welfare), by linear programs whose tangents close in on the logarithm."""

from __future__ import annotations

from math import inf

import numpy as np

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram

ROUNDS = 100  # it takes some ten
GAP = 1e-9  # of a logarithm; what is left of it is worth less than the solver's tolerance


class NashProgram:
    """Maximise the sum over jobs of weight x log(level), jobs of a class alike.

    Columns: the time of class g on type j; the level of every class; a number that may not exceed the logarithm of the
    level, kept below its tangents. After each solve a tangent is added where that number is too large.
    """

    def __init__(self, value: Floats, width: Ints, weight: Floats, counts: Ints) -> None:
        """`value[class, type]` is the level of a job that is there all the time."""
        classes, types = value.shape
        self._classes, self._types, self._weight = classes, types, weight
        lp = self._lp = LinearProgram(maximise=True)
        lp.add_rows(np.full(types, -inf), counts.astype(np.float64))
        lp.add_rows(np.full(classes, -inf), np.zeros(classes))  # time
        lp.add_rows(np.zeros(classes), np.full(classes, inf))  # level
        of, on = np.nonzero(value > 0)
        rows = np.stack([on, types + of, types + classes + of], axis=1)
        values = np.stack([width[of].astype(np.float64), np.ones(len(of)), value[of, on]], axis=1)
        zeros, top = np.zeros(len(of)), np.full(len(of), inf)
        lp.add_columns(
            cost=zeros,
            lower=zeros,
            upper=top,
            starts=np.arange(0, 3 * len(of), 3),
            rows=rows.ravel(),
            values=values.ravel(),
        )
        self._level, self._log = lp.columns, lp.columns + classes
        for lower in (0.0, -inf):
            nothing = np.zeros(classes)
            lp.add_columns(cost=nothing, lower=nothing + lower, upper=nothing + inf, starts=nothing, rows=[], values=[])
        self._best = value.max(axis=1)
        self._add_tangents(np.arange(classes), self._best)

    def levels(self, size: Ints) -> Floats:
        """The level of every job of each class, with this many jobs in each."""
        lp, classes = self._lp, np.arange(self._classes)
        lp.set_row_bounds(self._types + classes, np.full(len(size), -inf), size.astype(np.float64))
        for one, jobs in enumerate(size.tolist()):
            lp.set_coefficient(self._types + self._classes + one, self._level + one, -max(jobs, 1e-6))
        there = (size > 0) & (self._best > 0)
        lp.set_costs(self._log + classes, np.where(there, size * self._weight, 0.0))
        level = np.zeros(self._classes)
        for _ in range(ROUNDS):
            lp.solve()
            x = lp.values()
            level, log = x[self._level : self._log], x[self._log : self._log + self._classes]
            # A level of 0 has no tangent: a small one is the next guess.
            guess = np.maximum(level, self._best * 1e-3 / max(size.sum(), 1))
            over = np.where(there, log - np.log(np.where(there, guess, 1.0)), 0.0)
            off = there & ((over > GAP) | (guess > level))
            if not off.any():
                break
            self._add_tangents(np.flatnonzero(off), guess[off])
        return level

    def _add_tangents(self, classes: Ints, at: Floats) -> None:
        """log <= log(at) + (level - at) / at"""
        at = np.where(at > 0, at, 1.0)
        columns = np.stack([self._log + classes, self._level + classes], axis=1).ravel()
        values = np.stack([np.ones(len(at)), -1.0 / at], axis=1).ravel()
        starts = np.arange(0, 2 * len(at), 2)
        self._lp.add_rows(np.full(len(at), -inf), np.log(at) - 1.0, starts, columns, values)
