"""Shares that meet a demand of every job, where jobs of one class need not want the same.

Jobs of a class spend time on the same options at the same rates; only their demands differ. Whether a class's total can
be divided so that everyone gets its demand is a matter of majorisation: for every rate r, what all the jobs want beyond
r must not be more than what the class's options give beyond r. For r = 0 that is the level row of the class. The rows
for other rates are added when a solution breaks them, so a program has as many columns as there are options, however
many jobs there are, and is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import Classes
from dovetail.cluster.optimise.columns import Columns
from dovetail.cluster.optimise.pair_pool import Beyond
from dovetail.cluster.optimise.share_lp import LEVEL, ShareProgram
from dovetail.cluster.policies.base import Floats, Ints, Problem
from dovetail.solve import LinearProgram

SLACK = 1e-9
STEPS = 200  # of Newton's method; it takes a handful
CLOSE = 1e-10  # what the steepest demand may still be off


@dataclass(slots=True)
class Cut:
    """A row: the time of a class on faster options, each by how much it is faster than this rate."""

    slot: int
    rate: float
    row: int


@dataclass(slots=True)
class Supply:
    """What a class was given: its options with time on them, fastest first."""

    option: Ints
    rate: Floats  # normalised
    time: Floats


class DemandProgram(ShareProgram):
    """A share program with rows that see to unequal demands. Demands are normalised: steps per second over `normal`."""

    _cuts: list[Cut]

    def load(
        self,
        problem: Problem,
        classes: Classes,
        rates: Floats,
        pair_rates: Floats | None = None,
        worth: Floats | None = None,
    ) -> None:
        super().load(problem, classes, rates, pair_rates, worth)
        self.classes, self.members = classes, classes.members()
        live = set(self.at.tolist())
        self._cuts_now = [cut for cut in self._cuts if cut.slot in live]
        for cut in self._cuts:
            if cut.slot not in live:
                self._bound_cut(cut, 0.0, 0.0)

    def normal_rate(self) -> Floats:
        """By job: the rate that counts as 1 (1 for a job that runs nowhere)."""
        normal = self.normal[self.at][self.classes.of]
        return np.where(normal > 0, normal, 1.0)

    def top_rate(self) -> Floats:
        """By job: the fastest option there is, normalised."""
        return self.top_level()[self.classes.of]

    def highest(self, demand: Callable[[float], tuple[Floats, Floats]], cap: float, start: float) -> float:
        """The largest z up to `cap` at which everybody's demand can be met.

        `demand` gives demands and their derivatives at z. Demands are convex and rise with z, so the program with
        their tangents at any z finds no less than the answer: Newton's method, which closes in from above. Where a cut
        begins to count, what is asked of it has a kink, and its tangent there would lead up again: it never goes back.
        """
        z, bound = min(start, cap), cap
        for _ in range(STEPS):
            want, slope = demand(z)
            step = self._with_tangents(z, cap, want, slope)
            before, bound = z, min(bound, max(z + step / float(slope.max()), 0.0))
            z = bound
            cut = self._cut_what_is_broken(demand(z)[0])
            if not cut and (abs(step) <= CLOSE or z == before):
                break
        return z

    def best_with(self, want: Floats) -> float | None:
        """The largest worth where everybody gets what it wants; None if that cannot be, or with some pairs only if it
        was not found."""
        sought = False
        while True:
            for cut in self._cuts_now:
                self._bound_cut(cut, self._beyond(cut, want), 0.0)
            total = self.best_worth(self._mean(want))
            if total is None and self._pool is not None and not sought:
                self._seek(want)
                sought = True
            elif total is None or not self._cut_what_is_broken(want):
                return total

    def _seek(self, want: Floats) -> None:
        """Add pairs until everybody can have as much of what it wants as all pairs allow, the same part for all."""
        columns, nothing = self._columns, np.zeros(len(self.size))
        self._seeking = True
        self.first.set_costs(columns, np.zeros(len(columns)))
        self.first.set_costs([LEVEL], [1.0])
        self.first.set_bounds([LEVEL], [-1.0], [0.0])
        for cut in self._cuts_now:
            self._bound_cut(cut, self._beyond(cut, want), self._beyond(cut, want))
        self.level_above(self._mean(want), self._mean(want))
        for cut in self._cuts_now:
            self._bound_cut(cut, self._beyond(cut, want), 0.0)
        for slot in self._slope.nonzero()[0].tolist():
            self.first.set_coefficient(int(self._level_row[slot]), LEVEL, 0.0)
        self._slope, self._seeking = nothing, False
        self.first.set_bounds([LEVEL], [0.0], [0.0])
        self.first.set_costs([LEVEL], [0.0])
        self.first.set_costs(self._columns, self._worth_of)

    def most_met(self, want: Floats) -> NDArray[np.bool_]:
        """As many demands as can be met together (by job); of as many, those of older jobs.

        One integer program: a demand that is met counts 1, and what it asks of each row is asked only then. A row that
        this breaks is added, and the question is put again.
        """
        jobs = np.flatnonzero(want > 0)
        while True:
            lp = self._demands_as_choices(jobs, want)
            lp.solve()
            chosen = np.round(lp.values()[1 + len(self.options) :]) > 0
            met = np.zeros(len(want), dtype=bool)
            met[jobs[chosen]] = True
            before = len(self._cuts)
            if self.best_with(np.where(met, want, 0.0)) is not None or len(self._cuts) == before:
                return met

    def _demands_as_choices(self, jobs: Ints, want: Floats) -> LinearProgram:
        lp = LinearProgram(maximise=True, gap=0.4, node_limit=5000)
        lower, upper = np.full(self.first.rows, -np.inf), np.full(self.first.rows, np.inf)
        upper[: self._types] = self._counts
        upper[self._time_row] = self.size
        lower[self._level_row] = 0.0
        lp.add_rows(lower, upper)
        lp.add_columns(cost=[0.0], lower=[0.0], upper=[0.0], starts=[0], rows=[], values=[])
        alone = (self.options.a == self.options.b) & (self.size[self.options.a] < 2)
        self._enter(lp, self.options, np.where(alone, 0.0, np.inf))
        older_first = 1.0 + 0.5 / max(len(jobs), 1) ** 2 * np.arange(len(jobs), 0, -1)
        rows, ones = self._level_row[self.at][self.classes.of[jobs]], np.ones(len(jobs))
        first = lp.add_columns(
            cost=older_first, lower=0 * ones, upper=ones, starts=np.arange(len(jobs)), rows=rows, values=-want[jobs]
        )
        lp.set_integer(first + np.arange(len(jobs)))
        column = dict(zip(jobs.tolist(), range(first, first + len(jobs)), strict=True))
        for cut in self._cuts_now:
            lp.set_row_bounds([cut.row], [0.0], [np.inf])
            values = self._entries(cut)
            for at in np.flatnonzero(values).tolist():
                lp.set_coefficient(cut.row, 1 + at, values[at])
            for job in self._jobs_of(cut).tolist():
                if job in column and want[job] > cut.rate:
                    lp.set_coefficient(cut.row, column[job], cut.rate - want[job])
        return lp

    def settle_demands(self, want: Floats, worth: float | None = None) -> list[Supply]:
        """Choose among the shares that give everybody what it wants; gives what each class got."""
        self._wanted = want
        while True:
            self._choose(self._mean(want), worth)
            if not self._cut_what_is_broken(want):
                break
        self._remember()
        return self._supply()

    def _hold_more(self, slack: float) -> None:
        for cut in self._cuts_now:
            self.second.set_row_bounds([cut.row], [self._beyond(cut, self._wanted * (1 - slack))], [np.inf])

    def _beyond_price(self, price: Floats) -> list[Beyond]:
        at = {slot: position for position, slot in enumerate(self.at.tolist())}
        return [Beyond(at[cut.slot], cut.rate, -float(price[cut.row])) for cut in self._cuts_now]

    # ------------------------------------------------------------------ rows

    def _start(self, problem: Problem, rates: Floats, pair_rates: Floats | None, worth: Floats | None) -> None:
        super()._start(problem, rates, pair_rates, worth)
        self._cuts = []

    def _add_columns(self, options: Columns) -> None:
        before = len(self.options)
        super()._add_columns(options)
        for cut in self._cuts:
            values = self._entries(cut)
            for at in (before + np.flatnonzero(values[before:])).tolist():
                for program in (self.first, self.second):
                    program.set_coefficient(cut.row, 1 + at, values[at])

    def _entries(self, cut: Cut) -> Floats:
        """The coefficients of a cut, by option."""
        options, normal = self.options, self.normal[cut.slot]
        beyond_a = np.where(options.a == cut.slot, options.rate_a / normal - cut.rate, 0.0)
        beyond_b = np.where(options.b == cut.slot, options.rate_b / normal - cut.rate, 0.0)
        return np.maximum(beyond_a, 0.0) + np.maximum(beyond_b, 0.0)

    def _bound_cut(self, cut: Cut, base: float, slope: float) -> None:
        self.first.set_row_bounds([cut.row], [base], [np.inf])
        self.first.set_coefficient(cut.row, LEVEL, -slope)
        self.second.set_row_bounds([cut.row], [base], [np.inf])

    def _jobs_of(self, cut: Cut) -> Ints:
        return self.members[int(np.flatnonzero(self.at == cut.slot)[0])]

    def _beyond(self, cut: Cut, want: Floats) -> float:
        return float(np.maximum(want[self._jobs_of(cut)] - cut.rate, 0.0).sum())

    def _mean(self, values: Floats) -> Floats:
        """By class: the mean over its jobs."""
        return np.bincount(self.classes.of, values, minlength=len(self.at)) / self.classes.count

    def _with_tangents(self, z: float, cap: float, want: Floats, slope: Floats) -> float:
        """How far z can go if demands grow along their tangents, in steps by which the steepest grows by 1.

        Counted from z and in such steps, the numbers are about 1 even where some demand is very steep.
        """
        steepest = slope.max()
        slope = slope / steepest
        self.first.set_bounds([LEVEL], [-z * steepest], [(cap - z) * steepest])
        for cut in self._cuts_now:
            jobs = self._jobs_of(cut)
            over = want[jobs] > cut.rate
            self._bound_cut(cut, float((want[jobs][over] - cut.rate).sum()), float(slope[jobs][over].sum()))
        return self.highest_level(self._mean(slope), self._mean(want))

    def _cut_what_is_broken(self, want: Floats) -> bool:
        """Add the row that each class breaks most, if it breaks one."""
        added = False
        for position, supply in enumerate(self._supply()):
            jobs = self.members[position]
            if len(jobs) < 2 or not len(supply.rate):
                continue
            mine, rates = want[jobs], supply.rate
            if mine.max() - mine.min() <= SLACK * mine.max():
                continue  # an equal part of everything is enough for each
            asked = np.maximum(mine[:, None] - rates, 0.0).sum(axis=0)
            given = np.maximum(rates[:, None] - rates, 0.0).T @ supply.time
            lack = asked - given
            worst = int(lack.argmax())
            slot, rate = int(self.at[position]), float(rates[worst])
            known = any(cut.slot == slot and abs(cut.rate - rate) < SLACK for cut in self._cuts_now)
            if lack[worst] > 10 * SLACK * max(1.0, float(asked[worst])) and not known:
                self._add_cut(slot, rate)
                added = True
        return added

    def _add_cut(self, slot: int, rate: float) -> None:
        cut = Cut(slot, rate, self.first.rows)
        values = self._entries(cut)
        columns = np.flatnonzero(values)
        for program in (self.first, self.second):
            program.add_rows([0.0], [np.inf], [0], 1 + columns, values[columns])
        self._cuts.append(cut)
        self._cuts_now.append(cut)

    def _supply(self) -> list[Supply]:
        """What each class has at the last solution."""
        options, total = self.options, self.total
        used = np.flatnonzero(total > 1e-12)
        a, b = options.a[used], options.b[used]
        other = (b >= 0) & (a != b)
        slot = np.concatenate([a, b[other]])
        option = np.concatenate([used, used[other]])
        rate = np.concatenate([options.rate_a[used], options.rate_b[used[other]]]) / self.normal[slot]
        time = np.concatenate([total[used] * np.where(a == b, 2.0, 1.0), total[used[other]]])
        order = np.lexsort((self._tie_break[option], -rate, slot))  # no tie is left to the order of columns
        slot, option, rate, time = slot[order], option[order], rate[order], time[order]
        begin, end = np.searchsorted(slot, self.at), np.searchsorted(slot, self.at, side="right")
        return [Supply(option[i:j], rate[i:j], time[i:j]) for i, j in zip(begin, end, strict=True)]
