"""First come, first served: jobs keep the accelerators they were given, and nobody overtakes the head of the queue."""

from __future__ import annotations

import random

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


def kept(problem: Problem, type_of: dict[int, int]) -> Placement:
    """Jobs where they were, by id, as far as there is still room."""
    placed = Placement(problem)
    for job, one in enumerate(problem.ids.tolist()):
        if (on := type_of.get(one)) is not None and placed.has_room(job, on):
            placed.put(job, on)
    return placed


@policy("fifo", level="cluster")
class Fifo:
    """Jobs run to the end where they started; the head of the queue takes the type that a finished job left, or any.

    It does not tell types apart: among the types with room (and on which the job runs at all) it draws one. Nobody
    overtakes the head of the queue.
    """

    agnostic, packs, strict = True, False, True

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._type_of: dict[int, int] = {}  # by id

    def allocate(self, problem: Problem) -> Allocation:
        placed = kept(problem, self._type_of)
        ids = problem.ids.tolist()
        present = set(ids)
        left_by_finished = [on for job, on in self._type_of.items() if job not in present]
        waiting = [job for job in range(len(ids)) if job not in placed.type_of]
        for job in waiting:
            runs_on = [on for on in placed.fits(job) if problem.rates[problem.kind[job], on] > 0]
            if not runs_on:
                if placed.never_runs(job):
                    continue
                break
            just_left = [on for on in left_by_finished if on in runs_on]
            on = just_left[0] if just_left else self._random.choice(runs_on)
            if just_left:
                left_by_finished.remove(on)
            placed.put(job, on)
        self._type_of = {ids[job]: on for job, on in placed.type_of.items()}
        return Allocation(share=placed.share(), why=f"{len(placed.type_of)} oldest of {len(ids)} jobs run to their end")
