"""AlloX: least average completion time by matching jobs to places in the queues of single accelerators."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Floats, Problem
from dovetail.core.errors import InputError
from dovetail.core.registry import policy
from dovetail.solve.assignment import assign

NEVER = 1e-10  # steps per second where a job does not run, so that it comes there last of all


@policy("allox", level="cluster")
class AlloX:
    """Running jobs stay; the waiting are matched to queue places so that the sum of completion times is least.

    A job k-th from the end of an accelerator's queue delays k jobs by its own time, itself included: the matching of
    least total delay is optimal. Only the first of every queue starts. Of the waiting jobs the oldest part `alpha` is
    matched, or as many as there are free accelerators. Jobs have one accelerator each.
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
        ids = problem.ids.tolist()
        for job, one in enumerate(ids):
            if (on := self._type_of.get(one)) is not None and placed.free[on]:
                placed.put(job, on)
        kept = len(placed.type_of)
        waiting = np.array([job for job in range(len(ids)) if job not in placed.type_of], dtype=np.int64)
        waiting = waiting[np.argsort(-problem.age_s[waiting], kind="stable")]
        free = sum(placed.free)
        waiting = waiting[: max(int(self.alpha * len(waiting)), free)]
        if free and len(waiting):
            self._start(placed, waiting.tolist(), problem)
        self._type_of = {ids[job]: on for job, on in placed.type_of.items()}
        why = f"{kept} jobs stay, {len(placed.type_of) - kept} of {len(waiting)} matched start"
        return Allocation(share=placed.share(), why=why)

    def _start(self, placed: Placement, waiting: list[int], problem: Problem) -> None:
        by_name = sorted(range(len(problem.types)), key=lambda on: problem.types[on])
        queues = [on for on in by_name for _ in range(placed.free[on])]
        speed = problem.speed[waiting]
        time = problem.steps_left[waiting][:, None] / np.where(speed > 0, speed, NEVER)
        from_end = np.arange(1, len(waiting) + 1)

        def delay(job: int) -> Floats:
            total: Floats = np.outer(from_end, time[job, queues]).ravel() + problem.age_s[waiting[job]]
            return total

        place = assign(delay, len(waiting), len(waiting) * len(queues))
        head: dict[int, tuple[int, int]] = {}  # by queue: place from the end, job
        for job, at in zip(waiting, place.tolist(), strict=True):
            from_last, queue = divmod(at, len(queues))
            if problem.rates[problem.kind[job], queues[queue]] > 0:  # else it waits for another type
                head[queue] = max(head.get(queue, (-1, -1)), (from_last, job))
        for queue, (_, job) in head.items():
            placed.put(job, queues[queue])
