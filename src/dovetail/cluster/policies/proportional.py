"""Proportional: every job's time is spread over the types as the accelerators are."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.shares import spread, water_level
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


@policy("proportional", level="cluster")
class ProportionalShares:
    """Every job spends its time on each type in proportion to its accelerators; all jobs get the same time.

    With enough accelerators for all that is all of the time: the share that max-min policies measure levels against.
    """

    agnostic, packs, strict = True, False, False

    def allocate(self, problem: Problem) -> Allocation:
        # Weight = width makes water_level's time per job equal, and its level the time.
        time, level = water_level(problem.width, problem.width.astype(np.float64), float(problem.counts.sum()))
        return Allocation(share=spread(problem, time), value=level, why=f"each job has {level:.3g} of its time")
