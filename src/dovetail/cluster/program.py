"""The shares that a cluster allows, as linear programs over classes of jobs that stay warm between calls.

A column is the total time that a class spends on an option (a type, alone or shared with another class). Rows: the
accelerators of every type, the time of every class (as many units as it has jobs), the level of every class (its rate
over the rate that a proportional share of the cluster would give). Exact by symmetry: among jobs that are alike, equal
shares are as good as any. When jobs come and go, only bounds and the coefficients of one column change.

There are two programs. The first finds the best value of a policy's objective. The second holds that value and chooses
among the best: most normalised throughput; among those, small terms for least change from the last shares and then a
fixed preference, so that the answer does not depend on the way the solver took.
"""

from __future__ import annotations

import random
from math import inf
from typing import Any

import numpy as np

from dovetail.cluster.classes import Classes
from dovetail.cluster.options import Options, alone, shared
from dovetail.cluster.problem import Floats, Ints, Problem
from dovetail.cluster.shares import proportional_rate
from dovetail.core.errors import DovetailError
from dovetail.solve import LinearProgram

SLACKS = (1e-10, 1e-9, 1e-8, 1e-7)  # levels that were reached before may be out of reach by rounding
STAY, LUCK = 1e-5, 1e-6  # weights of the tie-breaks; a normalised throughput is about 1
LEVEL = 0  # the column of the level


class ShareProgram:
    """Both programs over the classes seen so far; a class without jobs stays, with no time to spend.

    What is held by class is held by slot: the position that a class was given when it was first seen. `at` are the
    slots of the classes that were loaded last, in their order.
    """

    first: LinearProgram
    second: LinearProgram
    at: Ints
    options: Options
    settled: Floats  # by option: the time chosen for it
    single: Ints  # the options that are not shared
    single_at: tuple[Ints, Ints]  # their slots and types
    normal: Floats  # by slot: the rate of a proportional share
    size: Floats  # by slot: how many jobs there are
    _slot: dict[tuple[object, ...], int]
    _kind: Ints
    _width: Ints
    _number: Floats  # by slot: drawn from the key
    _rates: Floats  # by slot and type
    _time_row: Ints
    _level_row: Ints
    _slope: Floats  # by slot: what stands in the column of the level
    _gain: Floats  # by option: normalised throughput
    _luck: Floats
    _last: Floats  # by option: share of time at the last decision
    _floors: dict[int, Floats]  # by program: the lower bounds of its level rows

    def __init__(self) -> None:
        self._marks: tuple[Floats | Ints | None, ...] = ()
        self._kept: dict[tuple[object, object, int], float] = {}  # the last shares, while there is no program

    def __getstate__(self) -> dict[str, object]:
        """The last shares: all that is not found again in the next problem."""
        return {"_kept": self._shares_kept()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._marks, self._kept = (), state["_kept"]

    def load(
        self,
        problem: Problem,
        classes: Classes,
        rates: Floats,
        pair_rates: Floats | None = None,
        worth: Floats | None = None,
    ) -> None:
        """Make the programs fit the jobs that are there now; `worth` is what a step is worth on every type."""
        marks = (problem.counts, rates, pair_rates, worth)
        if len(marks) != len(self._marks) or not all(map(_same, marks, self._marks)):
            self._start(problem, rates, pair_rates, worth)
        new = [c for c, key in enumerate(classes.key) if key not in self._slot]
        if len(self._slot) + len(new) > 64 + 3 * len(classes.key):
            self._start(problem, rates, pair_rates, worth)
            new = list(range(len(classes.key)))
        if new:
            self._grow(classes, problem.width, np.array(new))
        self.at = np.array([self._slot[key] for key in classes.key], dtype=np.int64)
        size = np.zeros(len(self._slot))
        size[self.at] = classes.count
        changed = np.flatnonzero(size != self.size)
        if len(changed):
            self._resize(size, changed)

    def highest_level(self, step: Floats, floor: Floats) -> float:
        """The largest z so that every job of a class can have the level `floor + step * z`."""
        slope, base = np.zeros(len(self.size)), np.zeros(len(self.size))
        slope[self.at], base[self.at] = step * self.size[self.at], floor * self.size[self.at]
        for slot in np.flatnonzero(slope != self._slope).tolist():
            self.first.set_coefficient(int(self._level_row[slot]), LEVEL, -slope[slot])
        self._slope = slope
        for slack in SLACKS:
            self._bound_levels(self.first, base - slack * np.abs(base))
            if (level := self._solved(self.first)) is not None:
                return level
        raise _no_solution()

    def best_worth(self, floor: Floats | None = None) -> float | None:
        """The largest total of steps per second, each times what it is worth on its type.

        Every job of a class has at least the level `floor`; None if that cannot be.
        """
        base = np.zeros(len(self.size))
        if floor is not None:
            base[self.at] = floor * self.size[self.at]
        self._bound_levels(self.first, base)
        value = self._solved(self.first)
        return None if value is None else value * self._worth_scale

    def level_prices(self) -> Floats:
        """By class: what the highest level would gain if the class asked for less. Who has a price cannot rise."""
        return np.abs(self.first.row_prices()[self._level_row[self.at]]) * self.size[self.at]

    def settle(self, floor: Floats | None = None, worth: float | None = None) -> None:
        """Choose among all shares that give every job of a class at least `floor`, and `worth` in total."""
        self._choose(floor, worth)
        self._remember()

    def _remember(self) -> None:
        self.settled = self.total
        self._last = self.settled / np.maximum(self.size[self.options.a], 1.0)

    def _choose(self, floor: Floats | None, worth: float | None) -> None:
        base = np.zeros(len(self.size))
        if floor is not None:
            base[self.at] = floor * self.size[self.at]
        self.second.set_costs(self._columns, self._gain + STAY * self._last + LUCK * self._luck)
        for slack in SLACKS:
            self._bound_levels(self.second, base * (1 - slack))
            self._hold_more(slack)
            if worth is not None:
                self.second.set_row_bounds([self._types], [worth / self._worth_scale * (1 - slack)], [inf])
            if self._solved(self.second) is not None:
                break
        else:
            raise _no_solution()

    @property
    def total(self) -> Floats:
        """By option: the time spent on it, at the last solution."""
        return np.maximum(self._solved_last.values()[1:], 0.0)

    def fits(self) -> Floats:
        """By class: 1 if there is any type that it runs on, else 0."""
        return (self.normal[self.at] > 0).astype(np.float64)

    def _hold_more(self, slack: float) -> None:
        """Bound what else the second program must hold."""

    # ---------------------------------------------------------------- building

    def _shares_kept(self) -> dict[tuple[object, object, int], float]:
        """The last shares by the keys of classes (None: alone) and type."""
        if not self._marks:
            return self._kept
        key, options = [*self._slot, None], self.options
        return {
            (key[options.a[o]], key[options.b[o]], int(options.type[o])): float(self._last[o])
            for o in np.flatnonzero(self._last).tolist()
        }

    def _start(self, problem: Problem, rates: Floats, pair_rates: Floats | None, worth: Floats | None) -> None:
        self._kept = self._shares_kept()
        # Copies, for whoever owns the arrays may change them in place.
        self._marks = tuple(
            None if mark is None else mark.copy() for mark in (problem.counts, rates, pair_rates, worth)
        )
        self._counts, self._kind_rates = problem.counts.copy(), rates.copy()
        self._pair_rates = None if pair_rates is None else pair_rates.copy()
        self._types = len(problem.counts)
        self._worth = np.zeros(self._types) if worth is None else worth
        self._worth_scale = float((rates * self._worth).max(initial=0.0)) or 1.0
        self._slot = {}
        self._kind = self._width = self._level_row = self._time_row = np.zeros(0, dtype=np.int64)
        self.size = self._number = self._slope = self._last = self._luck = self._gain = self.normal = np.zeros(0)
        self._rates = np.zeros((0, self._types))
        self.options = Options(self._kind, self._kind, self._kind, self.size, self.size)
        self._floors = {}
        self.first, self.second = LinearProgram(maximise=True), LinearProgram(maximise=True)
        for program in (self.first, self.second):
            program.add_rows(np.full(self._types, -inf), problem.counts.astype(np.float64))
            program.add_rows([-inf], [inf])  # the worth that the second program holds
            # The level may fall below what is asked, if only by rounding: there is always a solution.
            low, top, cost = (-inf, inf, 1.0) if program is self.first and worth is None else (0.0, 0.0, 0.0)
            program.add_columns(cost=[cost], lower=[low], upper=[top], starts=[0], rows=[], values=[])

    def _grow(self, classes: Classes, widths: Ints, new: Ints) -> None:
        """Add the classes at these positions: their rows, and the columns that they open."""
        more = len(new)
        slots = len(self._slot) + np.arange(more)
        keys = [classes.key[position] for position in new.tolist()]
        kind = np.array([key[0] for key in keys], dtype=np.int64)
        self._slot.update(zip(keys, slots.tolist(), strict=True))
        width = widths[classes.first[new]]
        rates = np.where(width[:, None] > self._counts, 0.0, self._kind_rates[kind])
        row = self.first.rows
        for program in (self.first, self.second):
            program.add_rows(np.repeat([-inf, 0.0], more), np.repeat([0.0, inf], more))
        for name, values in (
            ("_kind", kind),
            ("_number", np.array([random.Random(repr(key)).random() for key in keys])),
            ("_width", width),
            ("_rates", rates),
            ("_time_row", row + np.arange(more)),
            ("_level_row", row + more + np.arange(more)),
            ("normal", proportional_rate(rates, self._counts)),
            ("size", np.zeros(more)),
            ("_slope", np.zeros(more)),
        ):
            setattr(self, name, np.concatenate([getattr(self, name), values]))
        options = alone(slots, self._rates)
        if self._pair_rates is not None:
            options = options.joined(shared(slots, self._kind, self._width, self._rates, self._pair_rates))
        self._add_columns(options)

    def _add_columns(self, options: Options) -> None:
        self.options = self.options.joined(options)
        upper = np.where(options.a == options.b, 0.0, inf)  # a class beside itself: not until it has two jobs
        gain, worth = self._enter(self.first, options, upper)
        self._enter(self.second, options, upper)
        first = self.first.columns - len(options)
        self.first.set_costs(first + np.arange(len(options)), worth)
        self._gain = np.concatenate([self._gain, gain])
        self._luck = np.concatenate([self._luck, options.luck(self._number)])
        self._last = np.concatenate([self._last, self._recall(options)])
        self._columns = np.arange(1, 1 + len(self.options), dtype=np.int32)
        self.single = np.flatnonzero(self.options.b < 0)
        self.single_at = self.options.a[self.single], self.options.type[self.single]
        self._floors = {}

    def _recall(self, options: Options) -> Floats:
        if not self._kept:
            return np.zeros(len(options))
        key, kept = [*self._slot, None], self._kept
        found = zip(options.a.tolist(), options.b.tolist(), options.type.tolist(), strict=True)
        return np.array([kept.get((key[a], key[b], on), kept.get((key[b], key[a], on), 0.0)) for a, b, on in found])

    def _enter(self, program: LinearProgram, options: Options, upper: Floats) -> tuple[Floats, Floats]:
        """Add columns for options; gives their normalised throughput and their worth."""
        a, b, on = options.a, options.b, options.type
        itself, two = a == b, (b >= 0) & (a != b)
        # A class beside itself uses the time of two of its jobs and raises both: one entry of twice the size.
        twice = np.where(itself, 2.0, 1.0)
        normal = np.where(self.normal > 0, self.normal, 1.0)
        value_a = twice * options.rate_a / normal[a]
        value_b = np.where(two, options.rate_b / normal[b], 0.0)
        worth = (options.rate_a + options.rate_b) * self._worth[on] / self._worth_scale
        time, level = self._time_row, self._level_row
        rows = np.stack([on, time[a], level[a], np.full(len(a), self._types), time[b], level[b]], axis=1)
        width = self._width[a].astype(np.float64)
        values = np.stack([width, twice, value_a, worth, np.ones(len(a)), value_b], axis=1)
        always = np.ones(len(a), dtype=bool)
        keep = np.stack([always, always, always, worth != 0, two, two], axis=1)
        starts = np.cumsum(keep.sum(axis=1)) - keep.sum(axis=1)
        nothing = np.zeros(len(a))
        program.add_columns(
            cost=nothing, lower=nothing, upper=upper, starts=starts, rows=rows[keep], values=values[keep]
        )
        return value_a + value_b, worth

    # ----------------------------------------------------------------- changing

    def _resize(self, size: Floats, changed: Ints) -> None:
        rows, below = self._time_row[changed], np.full(len(changed), -inf)
        options = self.options
        paired = np.zeros(0, dtype=np.int64)
        if self._pair_rates is not None:
            turned = (size >= 2) != (self.size >= 2)
            paired = np.flatnonzero((options.a == options.b) & turned[options.a])
        for program in (self.first, self.second):
            program.set_row_bounds(rows, below, size[changed])
            if len(paired):
                upper = np.where(size[options.a[paired]] >= 2, inf, 0.0)
                program.set_bounds(paired + 1, np.zeros(len(paired)), upper)
        self.size = size

    def _bound_levels(self, program: LinearProgram, base: Floats) -> None:
        known = self._floors.get(id(program))
        changed = np.arange(len(base)) if known is None else np.flatnonzero(base != known)
        if len(changed):
            program.set_row_bounds(self._level_row[changed], base[changed], np.full(len(changed), inf))
            self._floors[id(program)] = base

    def _solved(self, program: LinearProgram) -> float | None:
        solution = program.solve()
        if solution.status != "optimal":
            return None
        self._solved_last = program
        return solution.value


def _no_solution() -> DovetailError:
    return DovetailError("the program of shares has no solution, which should not happen")


def _same(a: Floats | Ints | None, b: Floats | Ints | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
