"""Goodput with look-ahead: is a change worth its restart while it lasts?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.goodput.fitting import FitMemory
from dovetail.cluster.optimise.classes import Classes
from dovetail.cluster.optimise.goodputs import Configurations, Goodputs, limits
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import AdaptiveJobs, Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.sia import alike, all_ways, as_asked, current, decide
from dovetail.core.registry import policy

_LARGE_S = 8 * 3600.0  # of a whole job on one accelerator: from here on it counts no more than others, and wastes less
_WASTE = 1.5  # power of waste on the type that they have, which large jobs pay for
_SOON_S = 3600.0  # accelerator seconds left, from which on a large one counts as others do, if it will be the longest
_SAY = 3.0  # of a job that will have been here so many times as long as the mean, or more
_LONGEST = 2.0  # times as much say of those who will have been here longest
_NEARLY = 0.9  # of the P99 of all stays: they will
_LONG = 2.0  # times the mean: less is not long
_HOPE = 1.3  # times as fast as believed is what these expect of widths that nobody had yet on a type
_TELL = 3  # widths that were had on a type tell what the next one does: no more hope
_UNSEEN = 2.0  # times the noise that was seen is what larger batches are believed to see
_LASTS_S = 2400.0  # at least so long is a configuration believed to last, and so to pay for its restart
_MORE_POINTS = 1.2  # times as many as at the last fit: time for another


@dataclass(slots=True, kw_only=True)
class _Rows:
    """What the policy knows of jobs. Those that it has no reason to tell apart are one row."""

    classes: Classes
    soonest_s: Floats  # by job: to its end, in its best configuration
    seconds: Floats  # by row and configuration: to the end of its first job
    restart_s: Floats  # by row, as all that follows
    hopeful: NDArray[np.bool_]  # and configuration: nobody had as many accelerators, and few widths tell what they do
    say: Floats
    longest: NDArray[np.bool_]

    def lasts_s(self, seconds: Floats) -> float:
        """How long a configuration is believed to last."""
        of = self.classes.of
        several = self.classes.count[of] > 1  # none of whom has an application
        left_s = np.where(several, self.soonest_s, np.min(seconds, axis=1, initial=np.inf)[of])
        left_s = left_s[np.isfinite(left_s)]
        return max(_LASTS_S, float(np.median(left_s))) if len(left_s) else _LASTS_S


@policy("goodput_lookahead", level="cluster")
class GoodputLookahead:
    """Every job has one configuration, so that the sum of powers of times to the end is least; a change, or a start,
    adds `caution` times the restart that it costs, as many times as such a span goes into what the job has left, once
    at least: the time that half of the jobs have left at most, but no less than 40 minutes; then others have come and
    gone. Times are over the least accelerator time that a job could do with,
    and `price` is what more of that costs: jobs grow only while it pays.

    The time to the end is known from the epochs that are left and from goodput. Goodput is fitted to what all jobs of
    an application have seen so far, not each job alone; so a new job may at once be as wide as others were, or twice.
    A width that nobody had yet on a type is believed no better than what the type with the widest jobs tells. Noise is
    believed as whoever had the largest batch in the same epoch saw it; who had it himself believes twice as much.
    An application that nobody ran is as fast as one accelerator of each type is known to be.

    Jobs that will have been here longer than the mean of all so far count more, up to three times, and pay less, so
    that the last ones end sooner. Those who will have been here longest count twice as much again, and try what nobody
    of their application had yet, where fewer than three widths of a type tell what it does. Jobs that take one
    accelerator more than eight hours do neither, and pay more for what they waste by being wide, but not for being on a
    slow type; if they will be the longest, they count as others do in their last hour of accelerator time. Nobody waits
    while there is room.
    """

    agnostic, packs, strict, elastic, every_round = False, False, True, True, True
    tunes, wide_as_others = True, True

    def __init__(self, power: float = 0.5, caution: float = 3.0, price: float = 0.06) -> None:
        if not 0 < power <= 1:
            raise ValueError(f"power is {power:g}, expected more than 0 and at most 1")
        if not 0 <= caution <= 100:
            raise ValueError(f"caution is {caution:g}, expected 0 to 100")
        if not 0 <= price <= 10:
            raise ValueError(f"price is {price:g}, expected 0 to 10")
        self._power, self._caution, self._price = power, caution, price
        self._history = _History()
        self._here: Ints = np.zeros(0, dtype=np.int64)  # ids
        self._stay_s: Floats = np.zeros(0)  # how long they are believed to be here from coming to end
        self._gone_s: Floats = np.zeros(0)  # likewise, of those that left
        self._own, self._told = Goodputs(), Goodputs()
        self._prices: Floats = np.zeros(0)

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        known = problem.adaptive
        ways, rows = self._rows(problem)
        first, now = rows.classes.first, current(problem, ways)
        seconds, restart_s, say, longest = rows.seconds, rows.restart_s, rows.say, rows.longest
        runs = np.isfinite(seconds)
        large = _whole_s(problem)[first] > _LARGE_S
        soon = large & longest
        soon[soon] = np.min(seconds[soon] * ways.width, axis=1, initial=np.inf) <= _SOON_S
        seconds = np.where(rows.hopeful & (longest & ~large)[:, None], seconds / _HOPE, seconds)
        say = np.where(large, np.where(soon, say, 1.0), np.where(longest, _LONGEST * say, say))[:, None]
        lasts_s = rows.lasts_s(seconds) if restart_s.any() else _LASTS_S
        restarts = np.maximum(np.where(runs, seconds, 0.0) / lasts_s, 1.0)  # who has long to go will change again
        pause_s = self._caution * restart_s[:, None] * restarts
        seconds += np.where(np.arange(len(ways.on)) == now[first][:, None], 0.0, pause_s)
        used_s = np.where(runs, seconds * ways.width, 0.0)  # of accelerators
        least_s = np.where(runs, used_s, np.inf).min(axis=1, initial=np.inf)
        wastes = used_s / np.maximum(least_s, 1e-9)[:, None]
        dear = wastes.copy()
        dear[large] = (used_s[large] / _least_there(used_s[large], runs[large], ways.on)) ** _WASTE
        cost = say * (wastes / ways.width) ** self._power + self._price / say * dear
        wait = max(1.1, float(np.where(runs, cost, 0.0).max(initial=0.0)) + 0.1)  # more than any way to run
        saving = np.where(runs, wait - cost, -np.inf)
        keeps = np.zeros(problem.jobs, dtype=np.bool_) if known is None else (known.pause_s > 0) & (now >= 0)
        if len(self._prices) != len(problem.counts):
            self._prices = np.zeros(len(problem.counts))
        return decide(problem, ways, saving, rows.classes.of, now, keeps, self._prices)

    def _rows(self, problem: Problem) -> tuple[Configurations, _Rows]:
        """What is known of jobs, those together that are alike and have as much say."""
        known, kinds = problem.adaptive, alike(problem)
        adapts = np.zeros(problem.jobs, dtype=np.bool_) if known is None else known.application >= 0
        rigid = np.flatnonzero(~adapts[kinds.first])
        ways = all_ways(problem, kinds.first[rigid])
        kind, width = as_asked(problem, kinds.first[rigid])
        speed = np.zeros((len(kinds.first), len(ways.on)))
        speed[rigid] = np.where(ways.width == width[:, None], problem.rates[kind][:, ways.on], 0.0)
        soonest_s = _over(problem.steps_left, speed.max(axis=1, initial=0.0)[kinds.of])
        if some := bool(adapts.any()):
            seconds, restart_s, hopeful = self._seconds(problem, ways)
            soonest_s = np.where(adapts, np.min(seconds, axis=1, initial=np.inf), soonest_s)
        say, longest = self._say(problem, soonest_s)
        classes = alike(problem, np.where(longest, -say, say))
        first = classes.first
        alone_s = _over(problem.steps_left[first][:, None], speed[kinds.of[first]])
        return ways, _Rows(
            classes=classes,
            soonest_s=soonest_s,
            seconds=np.where(adapts[first][:, None], seconds[first], alone_s) if some else alone_s,
            restart_s=restart_s[first] if some else np.zeros(len(first)),
            hopeful=hopeful[first] if some else np.zeros(alone_s.shape, dtype=np.bool_),
            say=say[first],
            longest=longest[first],
        )

    def _say(self, problem: Problem, soonest_s: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """How much jobs count: more, if they will have been here longer than the mean of all so far. And whether they
        are among those who will have been here longest."""
        stay_s = np.where(np.isfinite(soonest_s), problem.age_s + soonest_s, 0.0)
        self._gone_s = np.append(self._gone_s, self._stay_s[np.isin(self._here, problem.ids, invert=True)])
        self._here, self._stay_s = problem.ids.copy(), stay_s
        everybody = np.sort(np.append(self._gone_s, stay_s))
        mean_s, long_s = max(float(everybody.mean()), 1.0), _NEARLY * everybody[int(0.99 * len(everybody))]
        say: Floats = np.clip(stay_s / mean_s, 1.0, _SAY)
        return say, stay_s >= max(long_s, _LONG * mean_s)

    def _seconds(self, problem: Problem, ways: Configurations) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """To the end of every adaptive job in every configuration, and of their restarts; and whether nobody of a job's
        application had as many accelerators of the type yet, and few widths tell what they do."""
        known = problem.adaptive
        assert known is not None
        self._history.learn(known, len(problem.types))
        numbers, widest = self._history.numbers, self._history.widest
        of = np.maximum(known.application, 0)
        noise = self._history.noise(known, problem.width)
        known = replace(
            known,
            numbers=numbers[of],
            widest=np.maximum(known.widest, widest[of]),
            grad_sqr=np.ones(problem.jobs),
            grad_var=noise,
        )
        most = np.array([one.most for one in known.applications])[of]
        goodput = self._own.table(replace(problem, adaptive=known), ways, most)
        new = (ways.width > widest[of][:, ways.on]) & (known.application >= 0)[:, None]
        hopeful = new & (self._history.widths < _TELL)[of][:, ways.on]
        if len(problem.types) > 1:
            best_known = np.arange(len(problem.types)) == widest.argmax(axis=1)[:, None]
            told = replace(known, numbers=np.where(best_known[:, :, None], numbers, np.nan)[of])
            other = self._told.table(replace(problem, adaptive=told), ways, most)
            guessed = (other > 0) & new & (widest.max(axis=1)[of] > 0)[:, None]
            goodput = np.where(guessed, np.minimum(goodput, other), goodput)
        unseen = np.asarray(np.isnan(numbers).all(axis=(1, 2)))[of][:, None]
        one_gpu = limits(problem.types, known)[2]
        goodput = np.where(unseen & (goodput > 0), one_gpu[of][:, ways.on], goodput)
        samples = np.array([one.initial * one.slowdown for one in known.applications])[of] * problem.steps_left
        restart_s = np.array([one.restart_s or 0.0 for one in known.applications])[of]
        with np.errstate(divide="ignore"):
            return samples[:, None] / goodput, np.where(known.application < 0, 0.0, restart_s), hopeful


def _over(steps: Floats, speed: Floats) -> Floats:
    """Seconds that steps take, for ever where there is no speed."""
    seconds: Floats = np.where(speed > 0, steps / np.where(speed > 0, speed, 1.0), np.inf)
    return seconds


def _least_there(used_s: Floats, runs: NDArray[np.bool_], on: Ints) -> Floats:
    """The least accelerator time that jobs could do with on the type of each configuration."""
    least_s = np.full((len(used_s), int(on.max(initial=-1)) + 1), np.inf)
    for way, at in enumerate(on.tolist()):
        np.minimum(least_s[:, at], np.where(runs[:, way], used_s[:, way], np.inf), out=least_s[:, at])
    found: Floats = np.maximum(least_s[:, on], 1e-9)
    return found


def _whole_s(problem: Problem) -> Floats:
    """Seconds of whole jobs on one accelerator of the slowest type, by the rates that are known before they run; 0 of
    those without an application."""
    known = problem.adaptive
    if known is None:
        return np.zeros(problem.jobs)
    speeds = ([one.types[name].one_gpu for name in problem.types if name in one.types] for one in known.applications)
    sizes = np.array([one.size * one.initial * one.slowdown for one in known.applications])
    whole_s = sizes / np.array([min(speed, default=np.inf) for speed in speeds])
    return np.append(whole_s, 0.0)[known.application]


class _History:
    """What all jobs of each application have seen on each type, and the fits of that."""

    def __init__(self) -> None:
        self._noise: dict[tuple[int, int], tuple[int, float]] = {}  # by application and epoch: largest batch, its noise
        self._points: dict[tuple[int, int], dict[tuple[float, ...], Floats]] = {}
        self._sizes: dict[tuple[int, int], set[tuple[int, int]]] = {}  # servers and accelerators that jobs had
        self._fitted: dict[tuple[int, int], int] = {}  # points at the last fit
        self._fits = FitMemory()
        self.numbers: Floats = np.zeros((0, 0, 7))
        self.widest: Ints = np.zeros((0, 0), dtype=np.int64)
        self.widths: Ints = np.zeros((0, 0), dtype=np.int64)  # how many different ones

    def noise(self, known: AdaptiveJobs, width: Ints) -> Floats:
        """The noise scale that is believed of every job: what a job of its application saw with the largest batch in
        its epoch; if that was itself, twice as much: larger batches see more."""
        found = np.ones(len(known.application))
        seen = known.grad_var / np.maximum(known.grad_sqr, 1e-12)
        total = width * known.local * (known.steps + 1)
        rows = list(zip(known.application.tolist(), known.epoch.tolist(), total.tolist(), seen.tolist(), strict=True))
        for of, epoch, batch, phi in rows:
            if phi == phi and batch >= self._noise.get((of, epoch), (0, 0.0))[0]:
                self._noise[of, epoch] = batch, phi
        for job, (of, epoch, batch, phi) in enumerate(rows):
            largest, most = self._noise.get((of, epoch), (0, 1.0))
            found[job] = most if phi != phi else max(phi, most) if largest > batch else _UNSEEN * phi
        return found

    def learn(self, known: AdaptiveJobs, types: int) -> None:
        if self.numbers.shape[:2] != (len(known.applications), types):
            self.numbers = np.full((len(known.applications), types, 7), np.nan)
            self.widest = np.zeros((len(known.applications), types), dtype=np.int64)
            self.widths = np.zeros_like(self.widest)
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
                widths = {width for _, width in sizes}
                self.widest[of, on], self.widths[of, on] = max(widths), len(widths)
                if len(seen) > _MORE_POINTS * self._fitted.get((of, on), 0):
                    due.add((of, on))
        if due:
            numbers = self._fits.numbers([np.array(list(self._points[at].values())) for at in sorted(due)])
            for at, found in zip(sorted(due), numbers, strict=True):
                self.numbers[at], self._fitted[at] = found, len(self._points[at])
