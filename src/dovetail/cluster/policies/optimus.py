"""Optimus: accelerators one step at a time to the job whose end they bring forward most."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.classes import group
from dovetail.cluster.optimise.shares import nothing
from dovetail.cluster.optimise.turns import in_turn
from dovetail.cluster.policies.base import Allocation, Ints, Problem
from dovetail.core.registry import policy


@policy("optimus", level="cluster")
class Optimus:
    """Every job first gets its least width, the shortest job first, each on the fastest type with room; then, as long
    as accelerators are free, the job gets its next width whose remaining time falls most per accelerator added.

    A job may have any width that its model has rates for, whatever it asked for; a change costs a restart. It is not
    moved to another type to grow.
    """

    agnostic, packs, strict, elastic = False, False, False, True

    def allocate(self, problem: Problem) -> Allocation:
        if not problem.jobs:
            return nothing(problem, "no jobs")
        scaled = np.arange(len(problem.rates))[:, None] if problem.scaled is None else problem.scaled
        widths = np.zeros(len(problem.rates), dtype=np.int64)
        widths[problem.kind] = problem.width
        size = (widths if problem.kind_width is None else problem.kind_width).tolist()
        ways = [sorted((size[kind], kind) for kind in row if kind >= 0) for row in scaled.tolist()]
        classes = group(problem.kind, problem.most_width)
        may = [[each for each in ways[kind] if each[0] <= most] for kind, most in classes.key]
        free = problem.counts.copy()
        at, on = _least(problem, classes.of, may, free)
        several = np.array([len(each) > 1 for each in may])[classes.of]
        grows = {job: may[classes.of[job]] for job in np.flatnonzero(several & (on >= 0)).tolist()}
        if grows and free.any():
            at = _widen(problem, grows, at.tolist(), on.tolist(), free)
        runs = np.flatnonzero(on >= 0)
        share, runs_as = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
        share[runs, on[runs]] = 1.0
        runs_as[runs] = [may[of][way][1] for of, way in zip(classes.of[runs].tolist(), at[runs].tolist(), strict=True)]
        used = int(problem.counts.sum() - free.sum())
        return Allocation(
            share=share, kind=runs_as, why=f"{len(runs)} of {problem.jobs} jobs run, on {used} accelerators"
        )


def _least(problem: Problem, of: Ints, may: list[list[tuple[int, int]]], free: Ints) -> tuple[Ints, Ints]:
    """By job: the least width that has room, by its place in what its class may have, and the type, or -1; the shortest
    job first. Taken from what is `free`."""
    never = int(free.max(initial=0)) + 1, -1
    most = max(1, *map(len, may))
    padded = np.array([each + [never] * (most - len(each)) for each in may], dtype=np.int64).reshape(-1, most, 2)
    sizes, which = np.unique(padded[:, :, 0], return_inverse=True)
    which = which.reshape(padded.shape[:2])
    rates = np.where(padded[:, :, 1] < 0, 0.0, problem.rates.T[:, padded[:, :, 1]])  # types x classes x widths
    fastest = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed).max(axis=1, initial=0.0)
    order = np.argsort(problem.steps_left / np.where(fastest > 0, fastest, 1e-300), kind="stable")
    turn = of[order]

    def wish(jobs: Ints, room: NDArray[np.bool_]) -> Ints:
        asked = np.zeros(len(may), dtype=np.bool_)
        asked[turn[jobs]] = True
        asked_for = np.flatnonzero(asked)
        rate = np.where(room.reshape(len(free), -1)[:, which[asked_for]], rates[:, asked_for], 0.0)
        able = rate.max(axis=0) > 0
        row, at = np.arange(len(asked_for)), able.argmax(axis=1)
        found = np.full(len(may), -1)
        on = rate[:, row, at].argmax(axis=0)
        found[asked_for] = np.where(able[row, at], on * len(sizes) + which[asked_for, at], -1)
        return found[turn[jobs]]

    on, width = np.arange(len(free)).repeat(len(sizes)), np.tile(sizes, len(free))
    taken = np.empty_like(order)
    taken[order] = in_turn(wish(np.arange(len(of)), width <= free[on]), on, width, free, wish)
    type_of = np.where(taken < 0, -1, taken // len(sizes))
    same = (which[of] == (taken % len(sizes))[:, None]) & (rates[type_of, of] > 0)
    return same.argmax(axis=1), type_of


def _widen(
    problem: Problem, choices: dict[int, list[tuple[int, int]]], at: list[int], on: list[int], free: Ints
) -> Ints:
    """The places of all jobs once these, by position, were given what is `free` one step at a time."""
    rates, left, room = problem.rates.tolist(), problem.steps_left.tolist(), free.tolist()

    def next_step(job: int) -> tuple[float, int, int] | None:
        """The time that a job wins per accelerator by its next width that is faster: to be the least in a heap."""
        (width, kind), by = choices[job][at[job]], on[job]
        for wider in range(at[job] + 1, len(choices[job])):
            more, other = choices[job][wider][0] - width, choices[job][wider][1]
            if rates[other][by] > rates[kind][by]:
                won_s = left[job] / rates[kind][by] - left[job] / rates[other][by]
                return -won_s / more, job, wider
        return None

    heap = [step for job in choices if (step := next_step(job))]
    heapify(heap)
    while heap:
        _, job, wider = heappop(heap)
        more = choices[job][wider][0] - choices[job][at[job]][0]
        if more <= room[on[job]]:
            room[on[job]] -= more
            at[job] = wider
            if step := next_step(job):
                heappush(heap, step)
    free[:] = room
    return np.array(at)
