"""Pollux (OSDI'21): a search for the accelerators of every job on every server, for the best mean speed-up."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.goodput.batch import best_batch
from dovetail.cluster.goodput.fitting import fit
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.policies.base import AdaptiveJobs, Allocation, Floats, Ints, Problem
from dovetail.cluster.policies.sia import as_asked
from dovetail.core.registry import policy

_RESTART_S = 30.0
_MOST_NODES = 16  # of one job


@policy("pollux", level="cluster")
class Pollux:
    """The harmonic mean over jobs of speed-ups, each over its fair share of the accelerators, is as large as a seeded
    search finds it; a change counts less by what restarts have cost so far.

    The search is over matrices of jobs and servers: parents are crossed and changed, what breaks a limit is mended,
    the best go on, also into the next round. Types are not told apart: one fit per job serves all, large servers are
    taken as several small ones, and a job that was given several types keeps the one it has most of (of equals the
    fastest), also in the plan that the next round begins with. Only the width and type of a plan are carried out; where
    a job is, servers with room decide. Jobs without an application are placed first, the oldest before the others, at
    the width that they ask for.
    """

    agnostic, packs, strict, elastic, every_round = False, False, True, True, True
    tunes = True

    def __init__(self, seed: int = 0, population: int = 100, generations: int = 100) -> None:
        for name, value in (("population", population), ("generations", generations)):
            if not 2 <= value <= 1000:
                raise ValueError(f"{name} is {value}, expected 2 to 1000")
        self._random = np.random.default_rng(seed)
        self._size, self._generations = population, generations
        self._plans: Ints = np.zeros((0, 0, 0), dtype=np.int64)  # population x jobs x servers, of the last round
        self._ids: list[int] = []
        self._fits: dict[bytes, Floats] = {}

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        share, kind = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
        known = problem.adaptive
        adaptive = np.zeros(0, dtype=np.int64) if known is None else np.flatnonzero(known.application >= 0)
        free = _place_rigid(problem, np.setdiff1d(np.arange(problem.jobs), adaptive), share, kind)
        value = None
        if len(adaptive) and known is not None:
            value = self._search(problem, known, adaptive, free, share, kind)
        why = f"{np.count_nonzero(share)} of {problem.jobs} jobs run"
        return Allocation(share=share, kind=kind, value=value, why=why)

    def _search(
        self, problem: Problem, known: AdaptiveJobs, rows: Ints, free: Ints, share: Floats, kind: Ints
    ) -> float | None:
        size = int(max(known.per_server.min(), 1))
        node_type = np.repeat(np.arange(len(free)), -(-free // size))
        if not len(node_type):
            return None
        room = np.concatenate([np.minimum(size, count - np.arange(0, count, size)) for count in free])
        most = known.most_width[rows]
        if len(problem.types) > 1:
            most = np.minimum(most, max(int(problem.counts.min()), 1))
        speed = self._speed_ups(problem, known, rows, int(min(most.max(), room.sum())), int(room.sum()))
        speed *= len(room) / room.sum()
        age, restarts = problem.age_s[rows], known.restarts[rows]
        factor = np.maximum(age - restarts * _RESTART_S, 0.0) / (age + _RESTART_S)
        factor[(age < _RESTART_S) | (known.on[rows] < 0)] = 1.0
        plans = self._remembered(problem.ids[rows].tolist(), len(room))
        now = plans[0].copy()
        order = np.argsort(known.widest[rows].sum(axis=1), kind="stable")  # who had least first

        def mend(plans: Ints) -> Ints:
            return _mend(plans, room, most, order)

        def fitness(plans: Ints) -> Floats:
            width, many = plans.sum(axis=2), (plans > 0).sum(axis=2) > 1
            found = speed[many.astype(np.int64), np.arange(len(rows)), width]
            found = np.where((plans == now).all(axis=2), found, found * factor)
            mean: Floats = 1 / (1 / (found + 1e-3)).mean(axis=1)
            return mean

        plans = mend(plans)
        worth = fitness(plans)
        for _ in range(self._generations):
            children = mend(self._children(plans, worth, room))
            both = np.concatenate([plans, children])
            worth = np.concatenate([worth, fitness(children)])
            best = np.argsort(-worth, kind="stable")[: self._size]
            plans, worth = both[best], worth[best]
        self._plans, self._ids = plans, problem.ids[rows].tolist()
        for at, job in enumerate(rows.tolist()):
            widths = np.bincount(node_type, plans[0, at], len(free)).astype(np.int64)
            on = int(np.lexsort((_speeds_of_one(problem, known, job), widths))[-1])
            plans[0, at, node_type != on] = 0  # the plan as it is carried out, which the next round begins with
            if widths[on] and problem.scaled is not None and problem.kind_width is not None:
                may = problem.scaled[problem.kind[job]]
                same = np.flatnonzero((may >= 0) & (problem.kind_width[may] == widths[on]))
                if len(same):
                    share[job, on], kind[job] = 1.0, may[same[0]]
        return float(worth[0])

    def _remembered(self, ids: list[int], nodes: int) -> Ints:
        """The population of the last round, for the jobs of now."""
        plans = np.zeros((self._size, len(ids), nodes), dtype=np.int64)
        if self._plans.shape[2] == nodes:
            old = {job: at for at, job in enumerate(self._ids)}
            kept = [(at, old[job]) for at, job in enumerate(ids) if job in old]
            if kept:
                to, where = np.array(kept).T
                plans[: len(self._plans), to] = self._plans[: self._size, where]
        return plans

    def _children(self, plans: Ints, worth: Floats, room: Ints) -> Ints:
        """Of two parents each, by tournament; jobs come from either, and some of their servers change."""
        random, (count, jobs, nodes) = self._random, plans.shape
        pairs = random.integers(0, count, (2, 2, count))
        parents = np.where(worth[pairs[:, 0]] >= worth[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
        from_first = random.random((count, jobs, 1)) < 0.5
        children = np.where(from_first, plans[parents[0]], plans[parents[1]])
        changed = random.random(children.shape) < 1 / nodes
        emptied = random.random((count, jobs, 1)) < 1 / (2 * jobs)
        children = np.where(changed, random.integers(0, room + 1, children.shape), children)
        return np.where(emptied, 0, children)

    def _speed_ups(self, problem: Problem, known: AdaptiveJobs, rows: Ints, widest: int, gpus: int) -> Floats:
        """On one server and on several, by job and width from 0: goodput over that of the fair share."""
        fair = -(-gpus // len(rows))
        widths = np.arange(1, max(widest, fair) + 1)
        found = np.zeros((2, len(rows), len(widths) + 1))
        before, self._fits = self._fits, {}
        for at, job in enumerate(rows.tolist()):
            seen = [points for points in known.points[job].values() if len(points)]
            if not seen:
                found[:, at, 1:] = widths / fair
                continue
            points = np.concatenate(seen)
            key = points.tobytes()
            self._fits[key] = before[key] if key in before else fit(points).numbers
            application = known.applications[known.application[job]]
            profiles = application.types.values()
            best = best_batch(
                self._fits[key],
                known.grad_sqr[job],
                known.grad_var[job],
                np.array([[1], [2]]),
                widths,
                initial=application.initial,
                most=application.most,
                least_local=min(each.least_local for each in profiles),
                most_local=max(each.most_local for each in profiles),
            ).goodput
            found[:, at, 1:] = best / max(best[0, fair - 1], 1e-9)
        return found


def _speeds_of_one(problem: Problem, known: AdaptiveJobs, job: int) -> Floats:
    """Samples per second that a job has on one accelerator of every type."""
    profiles = map(known.applications[known.application[job]].types.get, problem.types)
    return np.array([0.0 if profile is None else profile.one_gpu for profile in profiles])


def _mend(plans: Ints, room: Ints, most: Ints, order: Ints) -> Ints:
    """Within limits: one job of several servers on a server, widths, servers of a job, and what servers have."""
    spread = ((plans > 0).sum(axis=2) > 1)[:, :, None] & (plans > 0)
    plans = np.where(spread & (spread.cumsum(axis=1) > 1), 0, plans)
    plans = np.where((plans > 0).cumsum(axis=2) > _MOST_NODES, 0, plans)
    before = plans.cumsum(axis=2) - plans
    plans = np.minimum(plans, np.maximum(most[:, None] - before, 0))
    sorted_plans = plans[:, order]
    before = sorted_plans.cumsum(axis=1) - sorted_plans
    mended = np.empty_like(plans)
    mended[:, order] = np.minimum(sorted_plans, np.maximum(room - before, 0))
    return mended


def _place_rigid(problem: Problem, rigid: Ints, share: Floats, kind: Ints) -> Ints:
    """Give jobs without an application the fastest type that has room; what is left of every type."""
    free, rates = problem.counts.tolist(), problem.rates.tolist()
    fastest = np.argsort(-problem.rates, axis=1, kind="stable").tolist()
    kinds, widths = as_asked(problem, rigid)
    for job, as_kind, width in zip(rigid.tolist(), kinds.tolist(), widths.tolist(), strict=True):
        on = next((on for on in fastest[as_kind] if free[on] >= width), -1)
        if on >= 0 and rates[as_kind][on] > 0:
            share[job, on], kind[job] = 1.0, as_kind
            free[on] -= width
    return np.array(free, dtype=problem.counts.dtype)
