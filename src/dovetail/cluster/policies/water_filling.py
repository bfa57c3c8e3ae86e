"""Water filling: lexicographic max-min fairness, flat or over entities.

All levels rise together, each at the speed of its weight, until somebody cannot rise; it stays there, the others go on.
Duality tells who is stuck: a class whose level row has a price would have to fall for the rest to rise.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import Classes, group
from dovetail.cluster.optimise.equal_shares import equally
from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.optimise.shares import nothing, spread, water_level
from dovetail.cluster.optimise.unlike import UnlikeShares, either, too_many
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.registry import policy

RULES = ("fairness", "fifo")
STUCK = 1e-7  # prices add up to 1; below this one is noise, and who is stuck is found in the next step all the same


class InnerRules:
    """How each entity divides what it gets among its jobs: one rule for all, or `NAME=RULE,...` and fairness for the
    others.

    >>> InnerRules("fifo"), InnerRules("a=fairness,b=fifo")
    (fifo, a=fairness,b=fifo)
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._of: dict[str, str] = {}
        for part in text.split(",") if "=" in text else []:
            name, _, rule = (piece.strip() for piece in part.rpartition("="))
            if not name or rule not in RULES or name in self._of:
                raise ValueError(f"inner={text!r}: expected each entity once, as NAME=RULE, found {part!r}")
            self._of[name] = rule
        if not self._of and text not in RULES:
            raise ValueError(f"inner={text!r}: expected {' or '.join(RULES)}, or NAME=RULE,...")

    def __repr__(self) -> str:
        return self._text

    def oldest_first(self, problem: Problem) -> NDArray[np.bool_]:
        """By entity: whether its oldest job goes first."""
        if problem.entity_weight is None:
            return np.zeros(0, dtype=bool)
        if not self._of:
            return np.full(len(problem.entity_weight), self._text == "fifo")
        for name in self._of:
            if name not in problem.entities:
                raise InputError(f"inner={self._text!r}: no entity is {name!r}{did_you_mean(name, problem.entities)}")
        return np.array([self._of.get(name) == "fifo" for name in problem.entities])


class Tide:
    """How fast everybody rises, given who is stuck: by weight, by weight within an entity, or the entity's oldest."""

    def __init__(self, problem: Problem, first: Ints, count: Ints, oldest_first: NDArray[np.bool_]) -> None:
        self._weight, self._count, self._oldest_first = problem.weight[first], count, oldest_first
        self._width = problem.width[first]
        self._by_age = np.argsort(first)
        self._by_age_rank = np.argsort(self._by_age)
        self._entity = None if problem.entity is None else problem.entity[first]
        self.flat = self._entity is None  # then nobody's speed depends on who else is stuck
        top = 0 if problem.entity is None else int(problem.entity.max()) + 1
        self._entity_weight = np.ones(top) if problem.entity_weight is None else problem.entity_weight

    def speed(self, stuck: NDArray[np.bool_]) -> Floats:
        """The rise of everybody's level, 0 for who is stuck."""
        if self._entity is None:
            share = np.where(stuck, 0.0, self._weight)
        else:
            open_weight = np.where(stuck, 0.0, self._weight)
            within = np.bincount(self._entity, open_weight * self._count, minlength=len(self._entity_weight))
            share = self._entity_weight[self._entity] * open_weight / np.maximum(within[self._entity], 1e-300)
            if self._oldest_first.any():
                by_age = self._oldest_first[self._entity]
                share[by_age] = 0.0
                rising = self._by_age[(by_age & ~stuck)[self._by_age]]
                entities, oldest = np.unique(self._entity[rising], return_index=True)
                share[rising[oldest]] = self._entity_weight[entities]
        rise: Floats = share / self._width
        return rise

    def levels(self, time: float, top: Floats) -> tuple[Floats, Floats]:
        """Everybody's level after this time, and how fast it rises then, if nobody is stuck but at its top.

        What an entity has risen in all is its weight times the time. Where it is fair, its jobs have risen to one
        height, each times its weight, but those at their top; else the older ones are at their top.
        """
        full, share = top * self._width, self._weight * time
        moves = np.where(share < full, self._weight, 0.0)
        if self._entity is not None:
            share, moves = self._within(time * self._entity_weight, full)
        return np.minimum(share, full) / self._width, moves / self._width

    def until(self, top: Floats) -> float:
        """The time after which everybody is at its top."""
        full = top * self._width
        if self._entity is None:
            return float((full / self._weight).max())
        total = np.bincount(self._entity, full * self._count, minlength=len(self._entity_weight))
        return float((total / self._entity_weight).max())

    def _within(self, risen: Floats, full: Floats) -> tuple[Floats, Floats]:
        """By class: its height and speed, where entities have risen so far in all."""
        share, moves = np.zeros(len(full)), np.zeros(len(full))
        assert self._entity is not None
        for entity in np.unique(self._entity).tolist():
            mine = np.flatnonzero(self._entity == entity)
            if self._oldest_first[entity]:
                mine = mine[np.argsort(self._by_age_rank[mine])]
                before = np.cumsum(full[mine]) - full[mine]
                share[mine] = np.clip(risen[entity] - before, 0.0, full[mine])
                rising = (risen[entity] >= before) & (risen[entity] < before + full[mine])
                moves[mine] = np.where(rising, self._entity_weight[entity], 0.0)
                continue
            weight, count = self._weight[mine], self._count[mine]
            height = full[mine] / weight  # at which a class is at its top
            order = np.argsort(height, kind="stable")
            wide = np.cumsum((weight * count)[order][::-1])[::-1]  # of those who are not yet
            past = np.cumsum((full[mine] * count)[order]) - (full[mine] * count)[order]
            total = past + height[order] * wide  # risen in all, when each reaches its top
            at = int(np.searchsorted(total, risen[entity], side="right"))
            if at == len(mine):
                share[mine] = full[mine]
                continue
            reached = (risen[entity] - past[at]) / wide[at]
            share[mine] = np.minimum(weight * reached, full[mine])
            moves[mine] = np.where(height > reached, weight * self._entity_weight[entity] / wide[at], 0.0)
        return share, moves


@policy("max_min_fairness_water_filling", level="cluster")
class WaterFilling:
    """Nobody's time can grow but by taking from somebody with no more, by width and weight; types are not told apart.

    `inner` is how an entity divides what it gets among its jobs: fairness, or fifo (the oldest first), or each in its
    own way (`research=fifo,product=fairness`).
    """

    agnostic, packs, strict = True, False, False

    def __init__(self, inner: str = "fairness") -> None:
        self._inner = InnerRules(inner)

    def allocate(self, problem: Problem) -> Allocation:
        capacity = float(problem.counts.sum())
        if problem.entity is None or not problem.jobs:
            time, _ = water_level(problem.width, problem.weight, capacity)
        else:
            time = self._fill(problem, capacity)
        level = float((time * problem.width / problem.weight).min(initial=np.inf)) if problem.jobs else 0.0
        return Allocation(share=spread(problem, time), value=level, why=f"levels from {level:.3g} up")

    def _fill(self, problem: Problem, left: float) -> Floats:
        jobs = np.arange(problem.jobs)
        tide = Tide(problem, jobs, np.ones(problem.jobs, dtype=np.int64), self._inner.oldest_first(problem))
        time, stuck = np.zeros(problem.jobs), np.zeros(problem.jobs, dtype=bool)
        while left > 1e-12 and not stuck.all():
            speed = tide.speed(stuck)
            rising = speed > 0
            until_full = ((1.0 - time[rising]) / speed[rising]).min()
            until_empty = left / (speed @ problem.width)
            step = min(until_full, until_empty)
            time = time + speed * step
            left -= step * float(speed @ problem.width)
            stuck |= rising & (time >= 1 - 1e-12)
        return np.minimum(time, 1.0)


@policy("max_min_fairness_water_filling_perf", level="cluster")
class WaterFillingPerf:
    """Nobody's level can grow but by taking from somebody whose level is no higher.

    `inner` is how an entity divides what it gets among its jobs: fairness, or fifo (the oldest first), or each in its
    own way (`research=fifo,product=fairness`).
    """

    agnostic, packs, strict = False, False, False

    def __init__(self, inner: str = "fairness") -> None:
        self._inner = InnerRules(inner)
        self._program = ShareProgram()
        self._unlike = UnlikeShares()
        self._tides: list[float] = []  # how high the tide was at each step of the last allocation

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        traits: list[NDArray[Any]] = [problem.weight]
        oldest_first = self._inner.oldest_first(problem)
        if problem.entity is not None:  # where the oldest goes first, every job is a class of its own
            traits += [problem.entity, np.where(oldest_first[problem.entity], problem.ids, -1)]
        classes = group(problem.kind, *traits)
        tide = Tide(problem, classes.first, classes.count, oldest_first)
        if self.packs:
            return self._by_program(problem, classes, tide)
        ways = partial(self._by_prices, problem, classes, tide), partial(self._by_program, problem, classes, tide)
        return either(too_many(len(classes.key)), *ways)

    def _by_prices(self, problem: Problem, classes: Classes, tide: Tide) -> Allocation:
        self._unlike.load(problem, classes)
        level, steps = self._levels_by_prices(tide)
        value = self._least(problem, classes.first, level, self._unlike.runs)
        return self._unlike.settle(problem, value=value, why=f"levels from {value:.3g} up in {steps} steps")

    def _by_program(self, problem: Problem, classes: Classes, tide: Tide) -> Allocation:
        self._program.load(problem, classes, problem.rates, problem.pair_rates if self.packs else None)
        level, steps = self._levels(tide)
        self._program.settle(level)
        value = self._least(problem, classes.first, level, self._program.fits())
        return equally(problem, classes, self._program, value=value, why=f"levels from {value:.3g} up in {steps} steps")

    def _least(self, problem: Problem, first: Ints, level: Floats, fits: Floats) -> float:
        scaled = (level * problem.width[first] / problem.weight[first])[fits > 0]
        return float(scaled.min()) if len(scaled) else 0.0

    def _levels(self, tide: Tide) -> tuple[Floats, int]:
        """The final level of every class, and in how many steps it was reached."""
        program = self._program
        stuck, top = program.fits() == 0, program.top_level()
        level, reached, steps = np.zeros(len(stuck)), 0.0, 0
        before, self._tides = iter(self._tides), []
        guess = next(before, inf) if tide.flat else -inf
        while not stuck.all():
            speed = tide.speed(stuck)
            full, rise = self._rise(speed, level, top, guess - reached)
            level = np.where(full, top, level + speed * rise)
            reached += rise
            steps += 1
            price = program.level_prices() * np.where(full, 0.0, speed)
            held_up = price > min(STUCK, price.max() / 2)
            stuck |= full | held_up
            if tide.flat and (level < top * (1 - 1e-9))[held_up].any():
                self._tides.append(reached)
                guess = next(before, inf)
        return level, steps

    def _levels_by_prices(self, tide: Tide) -> tuple[Floats, int]:
        """The same, where a step ends when a type is used up: who is at its top holds nobody up."""
        program = self._unlike.program
        level, time, steps, before, self._tides = np.zeros(program.blocks), 0.0, 0, self._tides, []
        program.demand(level)
        while steps < program.types + 1:
            top = program.top
            until = tide.until(top)
            start = before[steps] if steps < len(before) else until
            time = program.highest(partial(tide.levels, top=top), until, start, time)
            level = tide.levels(time, top)[0]
            self._tides.append(time)
            steps += 1
            if program.freeze(level).all():
                break
        return level, steps

    def _rise(self, speed: Floats, level: Floats, top: Floats, guess: float) -> tuple[NDArray[np.bool_], float]:
        """How far the tide can rise, and who is at its top by then and goes no further.

        Who is at its top does not hold the others up, so all whom the tide would take there if it rose as far as is
        guessed are taken there at once. If it does not rise so far, they were too many.
        """
        until_top = np.divide(top - level, speed, out=np.full(len(speed), inf), where=speed > 0)
        full = until_top < min(guess, until_top[speed > 0].max())  # somebody must be left to rise
        while full.any():
            rise = self._program.level_above(np.where(full, 0.0, speed), np.where(full, top, level))
            if rise is None:
                break
            if rise >= until_top[full].max():
                return full, rise
            full &= until_top <= rise  # without the others it rises at least as far
        return np.zeros_like(full), self._program.highest_level(speed, level)


@policy("max_min_fairness_water_filling_packed", level="cluster")
class WaterFillingPacked(WaterFillingPerf):
    """Water filling where two jobs of one width may share accelerators."""

    packs = True
