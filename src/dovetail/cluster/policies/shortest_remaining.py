"""Shortest remaining time first: who can be done soonest runs where it runs fastest."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


@policy("shortest_remaining", level="cluster")
class ShortestRemaining:
    """Jobs in order of accelerator time left on their fastest type, each on the fastest type with room.

    A job on k accelerators counts k times its time, as it keeps so many others waiting. Nobody waits for one that does
    not fit.
    """

    agnostic, packs, strict = False, False, False

    def allocate(self, problem: Problem) -> Allocation:
        fastest = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed).max(axis=1, initial=0.0)
        runs = fastest > 0
        left_s = np.where(runs, problem.width * problem.steps_left / np.where(runs, fastest, 1.0), np.inf)
        placed = Placement(problem)
        placed.put_fastest(np.argsort(left_s, kind="stable")[: int(runs.sum())].tolist())
        return Allocation(share=placed.share(), why=f"the {len(placed.type_of)} shortest of {problem.jobs} jobs run")
