"""First come, first served, and who runs on a slow type moves to a faster one that is free: FIFO at its best, blind."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.policies.fifo import kept
from dovetail.core.registry import policy


@policy("fifo_moving", level="cluster")
class FifoMoving:
    """Jobs in order of arrival take the fastest type with room, and move when a faster one is free, the oldest first.

    Which of two types is the faster is what everybody knows of them: the mean over all models. Of a job's own rates it
    knows only where it does not run at all. Nobody overtakes the head of the queue, and nobody moves to a slower type.
    """

    agnostic, packs, strict = False, False, True

    def __init__(self) -> None:
        self._type_of: dict[int, int] = {}  # by id

    def allocate(self, problem: Problem) -> Allocation:
        placed, ids = kept(problem, self._type_of), problem.ids.tolist()
        order, runs = fastest_first(problem), (problem.rates > 0).tolist()
        kind, faster = problem.kind.tolist(), {on: order[:place] for place, on in enumerate(order)}
        moving = True
        while moving:  # what one leaves may be faster for another
            moving = False
            for job, on in sorted(placed.type_of.items()):
                for to in faster[on]:
                    if placed.has_room(job, to) and runs[kind[job]][to]:
                        placed.put(job, to)
                        moving = True
                        break
        for job in range(len(ids)):
            if job in placed.type_of or placed.never_runs(job):
                continue
            best = next((on for on in order if placed.has_room(job, on) and runs[kind[job]][on]), None)
            if best is None:
                break
            placed.put(job, best)
        self._type_of = {ids[job]: on for job, on in placed.type_of.items()}
        return Allocation(
            share=placed.share(), why=f"{len(placed.type_of)} oldest of {len(ids)} jobs run, on fast types"
        )


def fastest_first(problem: Problem) -> list[int]:
    """Types by the mean over models of their speed, as a part of the fastest type's; the first of equals first."""
    best = problem.rates.max(axis=1, initial=0.0)
    known = problem.rates[best > 0] / best[best > 0, None]
    speed = known.mean(axis=0) if len(known) else np.zeros(len(problem.types))
    order: list[int] = np.argsort(-speed, kind="stable").tolist()
    return order
