"""Optimus: accelerators one step at a time to the job whose end they bring forward most."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from dovetail.cluster.policies.base import Allocation, Problem
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
        scaled = np.arange(len(problem.rates))[:, None] if problem.scaled is None else problem.scaled
        widths = np.zeros(len(problem.rates), dtype=np.int64)
        widths[problem.kind] = problem.width
        widths = widths if problem.kind_width is None else problem.kind_width
        ways = [sorted((int(widths[kind]), kind) for kind in row if kind >= 0) for row in scaled.tolist()]
        rates, left = problem.rates.tolist(), problem.steps_left.tolist()
        asked = list(zip(problem.kind.tolist(), problem.most_width.tolist(), strict=True))
        may = {(kind, most): [each for each in ways[kind] if each[0] <= most] for kind, most in set(asked)}
        choices = [may[each] for each in asked]
        free = problem.counts.tolist()
        place: dict[int, tuple[int, int]] = {}  # by position: place in its choices, type

        fastest = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed).max(axis=1, initial=0.0)
        length = problem.steps_left / np.where(fastest > 0, fastest, 1e-300)
        for job in np.argsort(length, kind="stable").tolist():
            if not any(free):
                break
            for at, (width, kind) in enumerate(choices[job]):
                on = max((j for j, room in enumerate(free) if room >= width), key=rates[kind].__getitem__, default=-1)
                if on >= 0 and rates[kind][on] > 0:
                    place[job] = at, on
                    free[on] -= width
                    break

        def next_step(job: int) -> tuple[float, int, int] | None:
            """The time that a job wins per accelerator by its next width that is faster: to be the least in a heap."""
            at, on = place[job]
            width, kind = choices[job][at]
            for wider in range(at + 1, len(choices[job])):
                more, other = choices[job][wider][0] - width, choices[job][wider][1]
                if rates[other][on] > rates[kind][on]:
                    won_s = left[job] / rates[kind][on] - left[job] / rates[other][on]
                    return -won_s / more, job, wider
            return None

        heap = [step for job in place if len(choices[job]) > 1 and (step := next_step(job))]
        heapify(heap)
        while heap:
            _, job, wider = heappop(heap)
            at, on = place[job]
            more = choices[job][wider][0] - choices[job][at][0]
            if more <= free[on]:
                free[on] -= more
                place[job] = wider, on
                if step := next_step(job):
                    heappush(heap, step)
        share, runs_as = np.zeros((problem.jobs, len(problem.types))), problem.kind.copy()
        if place:
            runs = list(place)
            share[runs, [on for _, on in place.values()]] = 1.0
            runs_as[runs] = [choices[job][at][1] for job, (at, _) in place.items()]
        used = int(problem.counts.sum()) - sum(free)
        return Allocation(
            share=share, kind=runs_as, why=f"{len(place)} of {problem.jobs} jobs run, on {used} accelerators"
        )
