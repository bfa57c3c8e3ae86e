"""First come, first served, each on the type where it runs fastest; with packing, the queue joins those that run."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Ints, Problem
from dovetail.core.registry import policy


def oldest_first(problem: Problem) -> tuple[Placement, list[int]]:
    """Jobs in order of arrival on the fastest type with room, up to the first that finds no room; and who waits."""
    placed = Placement(problem)
    for job in range(problem.jobs):
        if (on := placed.fastest(job)) is not None:
            placed.put(job, on)
        elif not placed.fits(job) and not placed.never_runs(job):
            return placed, list(range(job, problem.jobs))
    return placed, []


@policy("fifo_perf", level="cluster")
class FifoPerf:
    """Jobs in order of arrival take the fastest type with room; the first that finds none stops all behind it."""

    agnostic, packs, strict = False, False, True

    def allocate(self, problem: Problem) -> Allocation:
        placed, waiting = oldest_first(problem)
        return Allocation(share=placed.share(), why=f"{len(placed.type_of)} oldest jobs run, {len(waiting)} wait")


@policy("fifo_packed", level="cluster")
class FifoPacked:
    """As fifo_perf; then the head of the queue joins a job with which it makes `gain` times one job's progress."""

    agnostic, packs, strict = False, True, True

    def __init__(self, gain: float = 1.5) -> None:
        self.gain = gain

    def allocate(self, problem: Problem) -> Allocation:
        placed, waiting = oldest_first(problem)
        single, on = np.array(sorted(placed.type_of), dtype=np.int64), np.full(problem.jobs, -1)
        on[list(placed.type_of)] = list(placed.type_of.values())
        pairs: list[tuple[int, int]] = []
        for job in waiting if problem.pair_rates is not None else []:
            best = self._partner(problem, job, single, on)
            if best is None:
                break
            pairs.append((best, job))
            single = single[single != best]
        share = placed.share()
        pair_share = np.array([share[first] for first, _ in pairs]).reshape(len(pairs), len(problem.types))
        share[[first for first, _ in pairs]] = 0.0
        at = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        why = f"{len(placed.type_of)} oldest jobs run, {len(pairs)} share with them"
        return Allocation(share=share, pairs=at, pair_share=pair_share, why=why)

    def _partner(self, problem: Problem, job: int, single: Ints, type_of: Ints) -> int | None:
        """The running job that gains most from company, if it is enough."""
        assert problem.pair_rates is not None
        single = single[problem.width[single] == problem.width[job]]
        if not len(single):
            return None
        mine, theirs, on = problem.kind[job], problem.kind[single], type_of[single]
        alone_mine, alone_theirs = problem.rates[mine, on], problem.rates[theirs, on]
        pair_mine, pair_theirs = problem.pair_rates[mine, theirs, on], problem.pair_rates[theirs, mine, on]
        both = (pair_mine > 0) & (pair_theirs > 0)
        gain = np.where(both, pair_mine / np.maximum(alone_mine, 1e-300) + pair_theirs / alone_theirs, 0.0)
        best = int(gain.argmax())
        return int(single[best]) if gain[best] > self.gain else None
