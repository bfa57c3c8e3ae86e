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
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import Classes
from dovetail.cluster.optimise.columns import Columns, alone, beside_itself, shared
from dovetail.cluster.optimise.pair_pool import Beyond, PairPool
from dovetail.cluster.optimise.shares import proportional_rate
from dovetail.cluster.policies.base import Floats, Ints, Problem
from dovetail.solve import LinearProgram, NoAnswerError

SLACKS = (1e-10, 1e-9, 1e-8, 1e-7)  # levels that were reached before may be out of reach by rounding
STAY, TIE_BREAK = 1e-5, 1e-6  # weights of the tie-breaks; a normalised throughput is about 1
NOISE = 1e-9  # of prices
LEVEL = 0  # the column of the level
FEW_PAIRED = 80  # classes: of more, pairs are columns only if they pay
FEW_KINDS = 0.1  # of all: if more have other rates than before, a program starts anew


class RowPrices(NamedTuple):
    """Of rows, at some highest level. Options that were closed then have no say in them: a class beside itself."""

    types: float  # of all accelerators
    time: Floats  # by slot
    level: Floats
    two: NDArray[np.bool_]  # by slot: whether there were two jobs


class ShareProgram:
    """Both programs over the classes seen so far; a class without jobs stays, with no time to spend.

    What is held by class is held by slot: the position that a class was given when it was first seen. `at` are the
    slots of the classes that were loaded last, in their order.
    """

    first: LinearProgram
    second: LinearProgram
    at: Ints
    options: Columns
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
    _gain: Floats  # by option: normalised throughput, and a little that breaks ties
    _cost: Floats  # by option: what stands in the second program
    _tie_break: Floats
    _last: Floats  # by option: share of time at the last decision
    _bounds: dict[int, tuple[Floats, Floats]]  # by program: the bounds of its time rows and of its level rows
    _some_priced: bool  # whether some pairs may be no columns
    _worth_of: Floats  # by option: what a unit of its time is worth in the first program
    _seeking: bool  # whether the first program looks for levels that can be held, whatever they are worth
    _pool: PairPool | None
    _prices: RowPrices | None

    def __init__(self, every_pair: bool = False) -> None:
        """`every_pair`: all are columns, however many there are."""
        self.every_pair = every_pair
        self._marks: tuple[Floats | Ints | None, ...] = ()
        self._kept: dict[tuple[object, object, int], float] = {}  # the last shares, while there is no program

    def __getstate__(self) -> dict[str, object]:
        """The last shares: all that is not found again in the next problem."""
        return {"_kept": self._shares_kept(), "every_pair": self.every_pair}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._marks, self._kept, self.every_pair = (), state["_kept"], state["every_pair"]

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
        same = len(marks) == len(self._marks) and all(map(_same, marks, self._marks))
        if not same and not self._few_changed(problem.counts, rates, pair_rates):
            self._start(problem, rates, pair_rates, worth)
        self._pool = None
        known = self._slot
        at = [known.get(key, -1) for key in classes.key]
        if -1 in at:
            new = [c for c, slot in enumerate(at) if slot < 0]
            if len(known) + len(new) > 64 + 3 * len(at):
                self._start(problem, rates, pair_rates, worth)
                new = list(range(len(at)))
            self._grow(classes, problem.width, np.array(new))
            at = [self._slot[key] for key in classes.key]
        self.at = np.array(at, dtype=np.int64)
        self.size = np.zeros(len(self._slot))
        self.size[self.at] = classes.count
        if self._some_priced:
            self._pool = self._all_pairs(self.at)

    def _few_changed(self, counts: Ints, rates: Floats, pairs: Floats | None) -> bool:
        """Where few of many kinds have other rates than before, their classes are new ones; else all is."""
        if not self._marks or not self._some_priced or pairs is None or self._pair_rates is None:
            return False
        if not _same(counts, self._counts) or rates.shape != self._kind_rates.shape:
            return False
        kinds = (rates != self._kind_rates).any(axis=1) | (pairs != self._pair_rates).any(axis=(1, 2))
        if kinds.mean() > FEW_KINDS:
            return False
        self._kept = self._shares_kept()
        gone = [key[0] is not None and bool(kinds[key[0]]) for key in self._slot]
        named = zip(self._slot.items(), gone, strict=True)
        self._slot = {(None, slot) if left else key: slot for (key, slot), left in named}
        self._kind_rates[kinds], self._pair_rates[kinds] = rates[kinds], pairs[kinds]
        return True

    def highest_level(self, step: Floats, floor: Floats) -> float:
        """The largest z so that every job of a class can have the level `floor + step * z`."""
        if (level := self.level_above(step, floor, SLACKS)) is None:
            raise _no_solution()
        return level

    def level_above(self, step: Floats, floor: Floats, slacks: Sequence[float] = SLACKS[:1]) -> float | None:
        """The same; None if who has no step cannot have its floor."""
        slope, base = self._by_slot(step), self._by_slot(floor)
        for slot in (slope != self._slope).nonzero()[0].tolist():
            self.first.set_coefficient(int(self._level_row[slot]), LEVEL, -slope[slot])
        self._slope = slope
        for slack in slacks:
            self._bound_rows(self.first, base - slack * np.abs(base))
            if (level := self._solved(self.first)) is not None:
                return level
        return None

    def settle_highest(self, step: Floats) -> float:
        """The largest z so that every job of a class can have the level `step * z`, chosen among such shares.

        By duality, row prices that fitted other numbers of jobs bound z for these too. If the second program can hold
        that bound, it is z, and the first need not be solved.
        """
        level = self._bound_of_level(step)
        if level is None or not self._held(self._by_slot(step * level), SLACKS[0], None):
            level = self.highest_level(step, np.zeros(len(step)))
            self._keep_prices()
            self._choose(step * level, None)
        self._remember()
        return level

    def _bound_of_level(self, step: Floats) -> float | None:
        if self._prices is None or self._some_priced:
            return None
        price = self._prices
        if self._pair_rates is not None and ((self.size >= 2) & ~price.two).any():
            return None
        asked = float(price.level @ self._by_slot(step))
        return (price.types + float(price.time @ self.size)) / asked if asked > 0 else None

    def _keep_prices(self) -> None:
        price = np.abs(self.first.row_prices())
        types, level = float(price[: self._types] @ self._counts), price[self._level_row]
        level[level < NOISE * level.max(initial=0.0)] = 0.0  # lower prices of levels bound them no less
        self._prices = RowPrices(types, price[self._time_row], level, self.size >= 2)

    def _by_slot(self, by_job: Floats) -> Floats:
        """By slot: the total over all its jobs of what is given by class and job."""
        total = np.zeros(len(self.size))
        total[self.at] = by_job * self.size[self.at]
        return total

    def best_worth(self, floor: Floats | None = None) -> float | None:
        """The largest total of steps per second, each times what it is worth on its type.

        Every job of a class has at least the level `floor`; None if that cannot be.
        """
        self._bound_rows(self.first, np.zeros(len(self.size)) if floor is None else self._by_slot(floor))
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
        base = np.zeros(len(self.size)) if floor is None else self._by_slot(floor)
        if not any(self._held(base, slack, worth) for slack in SLACKS):
            raise _no_solution()

    def _held(self, base: Floats, slack: float, worth: float | None) -> bool:
        """Solve the second program with these levels and this worth, less a little; whether there is a solution."""
        cost = self._gain + STAY * self._last
        moved = (cost != self._cost).nonzero()[0]
        self.second.set_costs(self._columns[moved], cost[moved])
        self._cost = cost
        self._bound_rows(self.second, base * (1 - slack))
        self._hold_more(slack)
        if worth is not None:
            self.second.set_row_bounds([self._types], [worth / self._worth_scale * (1 - slack)], [inf])
        return self._solved(self.second) is not None

    @property
    def some_priced(self) -> bool:
        """Whether some pairs may be no columns."""
        return self._some_priced

    @property
    def total(self) -> Floats:
        """By option: the time spent on it, at the last solution."""
        return np.maximum(self._solved_last.values()[1:], 0.0)

    def top_level(self) -> Floats:
        """By class: the level of a job that spends all its time on the fastest option."""
        best, options = np.zeros(len(self.size)), self.options
        pair = options.b >= 0
        np.maximum.at(best, options.a, options.rate_a / self.normal[options.a])
        np.maximum.at(best, options.b[pair], options.rate_b[pair] / self.normal[options.b[pair]])
        return best[self.at] if self._pool is None else np.maximum(best[self.at], self._pool.top_level())

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
        self._counts, self._kind_rates = problem.counts.copy(), rates.copy()
        self._pair_rates = None if pair_rates is None else pair_rates.copy()
        self._marks = (self._counts, self._kind_rates, self._pair_rates, None if worth is None else worth.copy())
        self._types = len(problem.counts)
        self._worth = np.zeros(self._types) if worth is None else worth
        self._worth_scale = float((rates * self._worth).max(initial=0.0)) or 1.0
        self._slot, self._some_priced, self._seeking = {}, False, False
        self._kind = self._width = self._level_row = self._time_row = np.zeros(0, dtype=np.int64)
        self.size = self._number = self._slope = self._last = self._tie_break = self._gain = self.normal = np.zeros(0)
        self._worth_of = np.zeros(0)
        self._rates = np.zeros((0, self._types))
        self.options = Columns(self._kind, self._kind, self._kind, self.size, self.size)
        self.first, self.second = LinearProgram(maximise=True), LinearProgram(maximise=True)
        self._bounds = {id(program): (self.size, self.size) for program in (self.first, self.second)}
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
            size, base = self._bounds[id(program)]
            self._bounds[id(program)] = np.append(size, np.zeros(more)), np.append(base, np.zeros(more))
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
            options = options.joined(self._shared(slots, self._pair_rates))
        self._add_columns(options)

    def _all_pairs(self, slots: Ints) -> PairPool:
        assert self._pair_rates is not None
        of = self._kind, self._width, self._rates, self._pair_rates
        return PairPool(slots, *of, self.normal, self._number)

    def _shared(self, slots: Ints, pair_rates: Floats) -> Columns:
        of = self._kind, self._width, self._rates, pair_rates
        if len(self._kind) <= FEW_PAIRED or self.every_pair:
            return shared(slots, *of)
        itself = beside_itself(slots, *of)
        if self._some_priced and len(slots) <= FEW_KINDS * len(self._kind):
            return itself
        self._some_priced = True
        pool = self._all_pairs(np.arange(len(self._kind)))
        normal = np.where(self.normal > 0, self.normal, 1.0)
        some = pool.promising(self._rates / normal[:, None])
        return itself.joined(some.only(np.isin(some.a, slots) | np.isin(some.b, slots)))

    def _add_columns(self, options: Columns) -> None:
        self.options = self.options.joined(options)
        upper = np.where(options.a == options.b, 0.0, inf)  # a class beside itself: not until it has two jobs
        gain, worth = self._enter(self.first, options, upper)
        self._enter(self.second, options, upper)
        first = self.first.columns - len(options)
        self.first.set_costs(first + np.arange(len(options)), 0 * worth if self._seeking else worth)
        self._worth_of = np.concatenate([self._worth_of, worth])
        tie_break = options.tie_break(self._number)
        self._gain = np.concatenate([self._gain, gain + TIE_BREAK * tie_break])
        self._tie_break = np.concatenate([self._tie_break, tie_break])
        self._cost = np.full(len(self._gain), np.nan)
        self._last = np.concatenate([self._last, self._recall(options)])
        self._columns = np.arange(1, 1 + len(self.options), dtype=np.int32)
        self.single = np.flatnonzero(self.options.b < 0)
        self.single_at = self.options.a[self.single], self.options.type[self.single]
        self._prices = None

    def _recall(self, options: Columns) -> Floats:
        if not self._kept:
            return np.zeros(len(options))
        key, kept = [*self._slot, None], self._kept
        found = zip(options.a.tolist(), options.b.tolist(), options.type.tolist(), strict=True)
        return np.array([kept.get((key[a], key[b], on), kept.get((key[b], key[a], on), 0.0)) for a, b, on in found])

    def _enter(self, program: LinearProgram, options: Columns, upper: Floats) -> tuple[Floats, Floats]:
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

    def _bound_rows(self, program: LinearProgram, base: Floats) -> None:
        """Give a program's rows the time that classes have now, and these levels."""
        was_size, was_base = self._bounds[id(program)]
        size, self._bounds[id(program)] = self.size, (self.size, base)
        moved = (base != was_base).nonzero()[0]
        if len(moved):
            program.set_row_bounds(self._level_row[moved], base[moved], np.full(len(moved), inf))
        if size is was_size:
            return
        resized = (size != was_size).nonzero()[0]
        program.set_row_bounds(self._time_row[resized], np.full(len(resized), -inf), size[resized])
        if self._pair_rates is not None:
            self._bound_pairs(program, was_size)

    def _bound_pairs(self, program: LinearProgram, before: Floats) -> None:
        """A class can be beside itself from its second job on."""
        itself = (self.options.a == self.options.b).nonzero()[0]
        two = self.size[self.options.a[itself]] >= 2
        turned = two != (before[self.options.a[itself]] >= 2)
        columns = itself[turned]
        if len(columns):
            program.set_bounds(columns + 1, np.zeros(len(columns)), np.where(two[turned], inf, 0.0))

    def _solved(self, program: LinearProgram) -> float | None:
        while True:
            solution = program.solve()
            if solution.status != "optimal":
                return None
            self._solved_last = program
            if self._pool is None or not len(more := self._paying(self._pool, program)):
                return solution.value
            self._add_columns(more)
            if program is self.second:
                self._cost = self._gain + STAY * self._last
                self.second.set_costs(self._columns, self._cost)

    def _paying(self, pool: PairPool, program: LinearProgram) -> Columns:
        """Pairs that are no columns yet, and would raise the objective."""
        price, last = program.row_prices(), program is self.second
        level_price = price[self._level_row[self.at]] - (1.0 if last else 0.0)
        tie_break = TIE_BREAK if last else 0.0
        time_price = price[self._time_row[self.at]]
        paid = 0.0 if last or self._seeking else 1.0  # for what a step is worth; the second program holds the total
        rate_worth = (paid - price[self._types]) * self._worth / self._worth_scale
        beyond = self._beyond_price(price)
        return pool.paying(price[: self._types], time_price, -level_price, rate_worth, beyond, tie_break)

    def _beyond_price(self, price: Floats) -> list[Beyond]:
        """What other rows pay for levels above a rate."""
        return []


def _no_solution() -> NoAnswerError:
    return NoAnswerError("the program of shares has no solution, which should not happen")


def _same(a: Floats | Ints | None, b: Floats | Ints | None) -> bool:
    return a is b if a is None or b is None else a.shape == b.shape and not np.count_nonzero(a != b)
