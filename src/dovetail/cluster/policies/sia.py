"""Sia (SOSP'23): adaptive jobs share types of accelerators by goodput, one integer program per round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.goodput.application import MOST_WIDTH
from dovetail.cluster.optimise.classes import Classes, apart, group
from dovetail.cluster.optimise.configurations import choose
from dovetail.cluster.optimise.goodputs import Configurations, Goodputs, configurations
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.core.registry import policy

# Seconds that a restart is taken to cost; what it does cost is the application's own.
RESTART_S = {"deepspeech2": 25.0, "cifar10": 30.0, "yolov3": 45.0, "bert": 120.0, "imagenet": 250.0}
USUAL_RESTART_S = 30.0
_DEAREST = 3000.0  # value of a configuration
_SMALL = 128  # accelerators, up to which the program is solved to the last digit
_GAP = 1e-3  # beyond that


@policy("sia", level="cluster")
class Sia:
    """Every job has one configuration or waits, so that the sum of values is best; a value is a power of the goodput.

    Goodput is counted over the job's least, times a factor for those who would have to restart; `power` below 0 helps
    who has little. Who waits costs `wait`. Jobs in the middle of a restart keep what they have. A job that never ran
    has no preference of type. Jobs without an application are rigid: they have the width that they ask for (the widest
    that fits, where that does not), or nothing; if it `scales` them, any width at which their model has a rate, which
    is then their goodput.
    """

    agnostic, packs, strict, elastic, every_round = False, False, True, True, True
    tunes = True

    def __init__(self, power: float = -0.5, wait: float = 1.1, rounds: bool = True, scales: bool = False) -> None:
        if power == 0 or abs(power) > 10:
            raise ValueError(f"power is {power:g}, expected a number between -10 and 10 that is not 0")
        if not wait > 0:
            raise ValueError(f"wait is {wait:g}, expected more than 0")
        self._power, self._wait, self._rounds, self._scales = power, wait, rounds, scales
        self._goodputs = Goodputs()
        self._prices: Floats | None = None

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        rows = alike(problem)
        ways, table = self.table(problem, rows.first)
        now = current(problem, ways)
        keeps = np.zeros(problem.jobs, dtype=np.bool_)
        if problem.adaptive is not None:
            keeps = (problem.adaptive.pause_s > 0) & (now >= 0)
        factor = restart_factor(problem)[rows.first]
        value = values(table, factor, now[rows.first], self._power, rounds=self._rounds)
        saving = self._wait + (value if self._power > 0 else -value)
        saving = np.where(table > 0, saving, -np.inf)
        return decide(problem, ways, saving, rows.of, now, keeps, self._start(len(problem.counts)))

    def _start(self, types: int) -> Floats:
        if self._prices is None or len(self._prices) != types:
            self._prices = np.zeros(types)
        return self._prices

    def table(self, problem: Problem, jobs: Ints | None = None) -> tuple[Configurations, Floats]:
        """Configurations, and the normalised goodput of these jobs (by default all) in each, 0 where it may not run."""
        known = problem.adaptive
        jobs = np.arange(problem.jobs) if jobs is None else jobs
        rigid = np.arange(len(jobs)) if known is None else np.flatnonzero(known.application[jobs] < 0)
        kind, width = as_asked(problem, jobs[rigid])
        scaled = problem.scaled if self._scales else None
        ways = all_ways(problem, jobs[rigid], scaled is not None)
        table = np.zeros((len(jobs), len(ways.on)))
        if known is not None:
            table = self._goodputs.table(problem, ways, known.batch)[jobs]
        least = np.ones(len(jobs))
        if len(rigid) and scaled is not None and problem.kind_width is not None:
            may = scaled[problem.kind[jobs[rigid]]]
            widths = np.where(may >= 0, problem.kind_width[may], 0)
            same = widths[:, :, None] == ways.width
            table[rigid] = np.where(same, problem.rates[may][:, :, ways.on], 0.0).max(axis=1, initial=0.0)
            least[rigid] = np.min(widths, axis=1, initial=MOST_WIDTH, where=widths > 0)
        elif len(rigid):
            table[rigid] = np.where(ways.width == width[:, None], problem.rates[kind][:, ways.on], 0.0)
            least[rigid] = width
        smallest = np.min(table, axis=1, initial=np.inf, where=table > 0)
        return ways, table / np.where(np.isfinite(smallest), smallest, 1.0)[:, None] * least[:, None]


def alike(problem: Problem, *traits: NDArray[Any]) -> Classes:
    """Jobs without an application that are of one kind and width, and equal in these traits; others are alone."""
    if problem.adaptive is None:
        return group(problem.kind, problem.width, *traits, keys=False)
    own = np.where(problem.adaptive.application < 0, -1, np.arange(problem.jobs))
    return group(problem.kind, problem.width, own, *traits, keys=False) if own.min() < 0 else apart(problem.jobs)


def as_asked(problem: Problem, rigid: Ints) -> tuple[Ints, Ints]:
    """Kinds and widths of rigid jobs: as they ask, or where that fits nowhere, as wide as does."""
    kind, width = problem.kind[rigid], problem.width[rigid]
    if problem.scaled is None or problem.kind_width is None:
        return kind, width
    fits = (problem.rates > 0) & (problem.kind_width[:, None] <= problem.counts)
    able: NDArray[np.bool_] = np.asarray(fits.any(axis=1))
    may = problem.scaled[kind]
    fitting = np.where((may >= 0) & able[may], problem.kind_width[may], 0)
    widest = np.take_along_axis(may, fitting.argmax(axis=1)[:, None], 1)[:, 0]
    kind = np.where(able[kind] | (fitting.max(axis=1, initial=0) == 0), kind, widest)
    return kind, problem.kind_width[kind]


def all_ways(problem: Problem, rigid: Ints, scales: bool = False) -> Configurations:
    """Configurations for adaptive jobs, if there are any, and for these others of any width: as they ask, or as their
    models may have if that `scales`."""
    per_server = np.maximum(problem.counts if problem.adaptive is None else problem.adaptive.per_server, 1)
    ways, widths = configurations(problem.counts, per_server), np.unique(as_asked(problem, rigid)[1])
    if scales and problem.scaled is not None and problem.kind_width is not None:
        may = problem.scaled[problem.kind[rigid]]
        widths = np.unique(problem.kind_width[may[may >= 0]])
    known = set(zip(ways.on.tolist(), ways.width.tolist(), strict=True))
    more = [
        (on, -(-width // int(per_server[on])), width)
        for on, count in enumerate(problem.counts.tolist())
        for width in widths.tolist()
        if width <= count and (on, width) not in known
    ]
    added = np.array(more, dtype=np.int64).reshape(-1, 3).T
    ways = Configurations(*(np.concatenate(both) for both in zip(ways, added, strict=True)))
    if problem.adaptive is not None:
        return ways
    asked = np.isin(ways.width, widths)
    return Configurations(*(column[asked] for column in ways))


def current(problem: Problem, ways: Configurations) -> Ints:
    """The configuration that every job has now, or -1."""
    known = problem.adaptive
    if known is None or not len(ways.on):
        return np.full(problem.jobs, -1)
    same = (ways.on == known.on[:, None]) & (ways.width == problem.width[:, None])
    found: Ints = np.where(same.any(axis=1), same.argmax(axis=1), -1)
    return found


def restart_factor(problem: Problem) -> Floats:
    """By how much a job's goodput falls if it restarts now: less, the older it is and the fewer restarts it had."""
    known = problem.adaptive
    if known is None:
        return np.ones(problem.jobs)
    by_application = np.array([RESTART_S.get(one.name, USUAL_RESTART_S) for one in known.applications] + [0.0])
    cost = by_application[known.application]
    worked = np.maximum(problem.age_s - known.restarts * cost, 0.0)
    like_new = (problem.age_s < cost) | (known.on < 0) | (known.application < 0)
    factor: Floats = np.where(like_new, 1.0, worked / np.maximum(problem.age_s + cost, 1e-9))
    return factor


def values(table: Floats, factor: Floats, now: Ints, power: float, *, rounds: bool) -> Floats:
    """What configurations are worth (power above 0) or cost (below): rounded to cents as the original does, or not."""
    stays = np.arange(table.shape[1]) == now[:, None]
    goodput = np.where(table > 0, table, 1e-4) * np.where(stays, 1.0, factor[:, None])
    with np.errstate(divide="ignore"):
        value = np.minimum(goodput**power, _DEAREST)
    return value.round(2).astype(np.float32).astype(np.float64) if rounds else value


def decide(
    problem: Problem,
    ways: Configurations,
    saving: Floats,
    of: Ints,
    now: Ints,
    keeps: NDArray[np.bool_],
    prices: Floats,
) -> Allocation:
    """The plan that saves most, as an allocation; `of` is the row of `saving` that tells of a job."""
    free, chosen = problem.counts.copy(), np.where(keeps, now, -1)
    kept = np.flatnonzero(keeps)
    np.subtract.at(free, ways.on[now[kept]], ways.width[now[kept]])
    others = np.flatnonzero(~keeps)
    gap = 0.0 if problem.counts.sum() <= _SMALL else _GAP
    plan = choose(saving, ways.on, ways.width, np.maximum(free, 0), of=of[others], gap=gap, prices=prices)
    chosen[others] = plan.choice
    runs = np.flatnonzero(chosen >= 0)
    share, kind = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
    share[runs, ways.on[chosen[runs]]] = 1.0
    if problem.scaled is not None and problem.kind_width is not None:
        may = problem.scaled[problem.kind[runs]]
        same = (problem.kind_width[may] == ways.width[chosen[runs]][:, None]) & (may >= 0)
        kind[runs] = np.take_along_axis(may, same.argmax(axis=1)[:, None], 1)[:, 0]
    why = f"{len(runs)} of {problem.jobs} jobs run, worth {plan.saved:.6g}"
    if plan.bound - plan.saved > 1e-9:
        why += f", at most {plan.bound - plan.saved:.2g} less than could be"
    return Allocation(share=share, kind=kind, value=plan.saved, why=why)
