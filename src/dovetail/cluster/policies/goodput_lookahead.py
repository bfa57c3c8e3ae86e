"""Goodput with look-ahead: is a change worth its restart over all that a job still has to do?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.goodput.fitting import fit_all
from dovetail.cluster.optimise.goodputs import Configurations, Goodputs
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import AdaptiveJobs, Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.sia import all_ways, as_asked, current, decide
from dovetail.core.registry import policy

Bools = NDArray[np.bool_]
_PRICE = 0.045  # of an accelerator where all are of one type; where types differ, the scarce ones have prices anyway
_LONG_S = 7200.0  # on one accelerator: from here on a job's accelerator time counts
_WASTE = 1.7  # times as much of it as on one accelerator: no wider
_MORE_POINTS = 1.2  # times as many as at the last fit: time for another


@policy("goodput_lookahead", level="cluster")
class GoodputLookahead:
    """Every job has one configuration, so that the sum of powers of times to the end, over those on one accelerator of
    the slowest type, is least; a change adds `caution` times the restart that it costs.

    The time to the end is known from the epochs that are left and from goodput. Goodput is fitted to what all jobs of
    an application have seen so far, not each job alone; a width that nobody had yet on a type is believed no better
    than what the type with the widest jobs tells. `price` is what an accelerator costs against time: a job grows
    only while that pays. Where there is one type, long jobs grow only as far as they waste little: their accelerator
    time is at most 1.7 times that on one. Nobody waits while there is room.
    """

    agnostic, packs, strict, elastic, every_round = False, False, True, True, True

    def __init__(self, power: float = 0.5, caution: float = 1.5, price: float | None = None) -> None:
        if not 0 < power <= 1:
            raise ValueError(f"power is {power:g}, expected more than 0 and at most 1")
        if not 0 <= caution <= 100:
            raise ValueError(f"caution is {caution:g}, expected 0 to 100")
        if price is not None and not 0 <= price <= 10:
            raise ValueError(f"price is {price:g}, expected 0 to 10")
        self._power, self._caution, self._price = power, caution, price
        self._history = _History()
        self._own, self._told = Goodputs(), Goodputs()
        self._prices: Floats = np.zeros(0)

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        known = problem.adaptive
        rigid = np.arange(problem.jobs) if known is None else np.flatnonzero(known.application < 0)
        ways = all_ways(problem, rigid)
        now = current(problem, ways)
        seconds, restart_s = np.full((problem.jobs, len(ways.on)), np.inf), np.zeros(problem.jobs)
        if known is not None and len(rigid) < problem.jobs:
            seconds, restart_s = self._seconds(problem, ways)
        kind, width = as_asked(problem, rigid)
        with np.errstate(divide="ignore"):
            alone = problem.steps_left[rigid][:, None] / problem.rates[kind][:, ways.on]
        seconds[rigid] = np.where(ways.width == width[:, None], alone, np.inf)
        runs = np.isfinite(seconds)
        slowest = np.maximum(np.max(seconds, axis=1, initial=0.0, where=runs & _narrow(ways, runs)), 1e-9)
        stays = np.arange(len(ways.on)) == now[:, None]
        if len(problem.types) == 1:
            wastes = (seconds * ways.width > _WASTE * slowest[:, None]) & (slowest[:, None] > _LONG_S)
            runs &= ~wastes | stays | _narrow(ways, runs)
        lost = np.where(stays, 0.0, self._caution * restart_s[:, None])
        relative = np.where(runs, (seconds + lost) / slowest[:, None], 0.0)
        price = self._price if self._price is not None else _PRICE * (len(problem.types) == 1)
        cost = relative**self._power + price * relative * ways.width
        cheapest = np.min(cost, axis=1, initial=np.inf, where=runs)
        wait = max(1.1, float(np.max(cheapest, initial=0.0, where=np.isfinite(cheapest))) + 0.1)
        saving = np.where(runs, np.maximum(wait - cost, 1e-6), -np.inf)
        keeps = np.zeros(problem.jobs, dtype=np.bool_) if known is None else (known.pause_s > 0) & (now >= 0)
        if len(self._prices) != len(problem.counts):
            self._prices = np.zeros(len(problem.counts))
        return decide(problem, ways, saving, now, keeps, self._prices)

    def _seconds(self, problem: Problem, ways: Configurations) -> tuple[Floats, Floats]:
        """To the end of every adaptive job in every configuration, and of their restarts."""
        known = problem.adaptive
        assert known is not None
        self._history.learn(known, len(problem.types))
        numbers, widest = self._history.numbers, self._history.widest
        of = np.maximum(known.application, 0)
        new = np.isnan(known.grad_sqr)  # it never ran: as if noise and signal were alike
        known = replace(
            known,
            numbers=numbers[of],
            grad_sqr=np.where(new, 1.0, known.grad_sqr),
            grad_var=np.where(new, 1.0, known.grad_var),
        )
        most = np.array([one.most for one in known.applications])[of]
        goodput = self._own.table(replace(problem, adaptive=known), ways, most)
        if len(problem.types) > 1:
            best_known = np.arange(len(problem.types)) == widest.argmax(axis=1)[:, None]
            told = replace(known, numbers=np.where(best_known[:, :, None], numbers, np.nan)[of])
            other = self._told.table(replace(problem, adaptive=told), ways, most)
            guessed = (other > 0) & (ways.width > widest[of][:, ways.on]) & (widest.max(axis=1)[of] > 0)[:, None]
            goodput = np.where(guessed, np.minimum(goodput, other), goodput)
        samples = np.array([one.initial * one.slowdown for one in known.applications])[of] * problem.steps_left
        restart_s = np.array([one.restart_s or 0.0 for one in known.applications])[of]
        with np.errstate(divide="ignore"):
            return samples[:, None] / goodput, np.where(known.application < 0, 0.0, restart_s)


def _narrow(ways: Configurations, runs: Bools) -> Bools:
    """The narrowest configurations that each job may have: what others are compared with."""
    most = np.iinfo(np.int64).max
    width = np.where(runs, ways.width, most)
    found: Bools = width == width.min(axis=1, keepdims=True, initial=most)
    return found


class _History:
    """What all jobs of each application have seen on each type, and the fits of that."""

    def __init__(self) -> None:
        self._points: dict[tuple[int, int], dict[tuple[float, ...], Floats]] = {}
        self._sizes: dict[tuple[int, int], set[tuple[int, int]]] = {}  # servers and accelerators that jobs had
        self._fitted: dict[tuple[int, int], int] = {}  # points at the last fit
        self.numbers: Floats = np.zeros((0, 0, 7))
        self.widest: Ints = np.zeros((0, 0), dtype=np.int64)

    def learn(self, known: AdaptiveJobs, types: int) -> None:
        if self.numbers.shape[:2] != (len(known.applications), types):
            self.numbers = np.full((len(known.applications), types, 7), np.nan)
            self.widest = np.zeros((len(known.applications), types), dtype=np.int64)
        due = set()
        for of, points in zip(known.application.tolist(), known.points, strict=True):
            for on, rows in points.items():
                seen = self._points.setdefault((of, on), {})
                sizes = self._sizes.setdefault((of, on), set())
                for row in rows:
                    seen[tuple(row[:3].tolist())] = row
                    size = (int(row[0]), int(row[1]))
                    if size not in sizes:
                        sizes.add(size)
                        due.add((of, on))
                self.widest[of, on] = max(width for _, width in sizes)
                if len(seen) > _MORE_POINTS * self._fitted.get((of, on), 0):
                    due.add((of, on))
        if due:
            numbers, _ = fit_all([np.array(list(self._points[at].values())) for at in sorted(due)])
            for at, found in zip(sorted(due), numbers, strict=True):
                self.numbers[at], self._fitted[at] = found, len(self._points[at])
