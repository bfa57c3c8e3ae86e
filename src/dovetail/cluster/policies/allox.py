"""AlloX: least average completion time by matching jobs to places in the queues of single accelerators."""

from __future__ import annotations

from itertools import repeat

import numpy as np

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.optimise.queues import queue
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.core.errors import InputError
from dovetail.core.registry import policy
from dovetail.solve.assignment import assign

NEVER = 1e-10  # steps per second where a job does not run, so that it comes there last of all
_SHOWN = 1e-6  # of the sum
EXACT = 100  # waiting jobs that are matched to the last digit


@policy("allox", level="cluster")
class AlloX:
    """Running jobs stay; the waiting are matched to what is free now, with the least sum of completion times there.

    An accelerator that is busy is not waited for, so a job may go to a slow type for good. A job k-th from the end of
    an accelerator's queue delays k jobs by its own time, itself included: the matching of least total delay is optimal
    for what waits, on what is free. Only the first of every queue starts. Of the waiting jobs the oldest part `alpha`
    is matched, or as many as there are free accelerators. Jobs have one accelerator each. Of more than 100 that are
    matched, the sum is as little as it can be by moves of single jobs: its reason says how far from the least at most.
    """

    agnostic, packs, strict, narrow = False, False, False, True

    def __init__(self, alpha: float = 1.0) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha:g}, expected more than 0 and at most 1")
        self.alpha = alpha
        self._type_of: dict[int, int] = {}  # by id

    def allocate(self, problem: Problem) -> Allocation:
        if (problem.width > 1).any():
            wide = int((problem.width > 1).argmax())
            found = f"job {problem.ids[wide]} needs {problem.width[wide]}"
            raise InputError(f"policy allox places jobs on one accelerator each, but {found}; choose another policy")
        placed = Placement(problem)
        had = np.fromiter(map(self._type_of.get, problem.ids.tolist(), repeat(-1)), np.int64, problem.jobs)
        stays = np.flatnonzero(had >= 0)
        placed.put_in_turn(stays, had[stays])
        kept = len(placed.type_of)
        waits = np.ones(problem.jobs, dtype=np.bool_)
        waits[list(placed.type_of)] = False
        waiting = np.flatnonzero(waits)
        waiting = waiting[np.argsort(-problem.age_s[waiting], kind="stable")]
        free, above = sum(placed.free), 0.0
        waiting = waiting[: max(int(self.alpha * len(waiting)), free)]
        if free and len(waiting):
            above = (self._match if len(waiting) <= EXACT else self._queue)(placed, waiting, problem)
        runs = problem.ids[list(placed.type_of)].tolist()
        self._type_of = dict(zip(runs, placed.type_of.values(), strict=True))
        why = f"{kept} jobs stay, {len(placed.type_of) - kept} of {len(waiting)} matched start"
        if above > _SHOWN:
            why += f", in all at most {100 * above:.2g} % later than could be"
        return Allocation(share=placed.share(), why=why)

    def _match(self, placed: Placement, waiting: Ints, problem: Problem) -> float:
        by_name = sorted(range(len(problem.types)), key=lambda on: problem.types[on])
        queues = np.array([on for on in by_name for _ in range(placed.free[on])])
        speed = problem.speed[waiting]
        time = problem.steps_left[waiting][:, None] / np.where(speed > 0, speed, NEVER)
        from_end = np.arange(1, len(waiting) + 1)
        # No queue is longer than it would be if all of its type had all jobs.
        most = -(-len(waiting) // np.maximum(placed.free, 1))[queues]
        from_last, at = np.nonzero(from_end[:, None] <= most)
        on = queues[at]

        def delay(job: int) -> Floats:
            total: Floats = from_end[from_last] * time[job, on] + problem.age_s[waiting[job]]
            return total

        head: dict[int, tuple[int, int]] = {}  # by queue: place from the end, job
        for job, place in zip(waiting.tolist(), assign(delay, len(waiting), len(on)).tolist(), strict=True):
            if problem.rates[problem.kind[job], on[place]] > 0:  # else it waits for another type
                head[int(at[place])] = max(head.get(int(at[place]), (-1, -1)), (int(from_last[place]), job))
        for number, (_, job) in head.items():
            placed.put(job, int(queues[number]))
        return 0.0

    def _queue(self, placed: Placement, waiting: Ints, problem: Problem) -> float:
        """The same for many jobs; gives by how much their completion times may add up to more than the least."""
        free, speed = np.array(placed.free), problem.rates[problem.kind[waiting]]
        able = ((speed > 0) & (free > 0)).any(axis=1)
        waiting, speed = waiting[able], speed[able]
        if not len(waiting):
            return 0.0
        left = problem.steps_left[waiting][:, None]
        found = queue(np.where(speed > 0, left / np.where(speed > 0, speed, 1.0), np.inf), free)
        for on, jobs in enumerate(found.order):
            for job in waiting[jobs[::-1][: placed.free[on]]].tolist():  # who comes first in its queue
                placed.put(job, on)
        return found.above
