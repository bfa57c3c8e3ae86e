"""Isolated: the cluster is cut into as many equal parts as there are jobs, and nobody gains from others."""

from __future__ import annotations

from dovetail.cluster.optimise.shares import isolated_share
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.core.registry import policy


@policy("isolated", level="cluster")
class Isolated:
    """Every job has 1/n of every type to itself: what all other policies are compared with."""

    agnostic, packs, strict = True, False, False

    def allocate(self, problem: Problem) -> Allocation:
        return Allocation(share=isolated_share(problem), why=f"1/{problem.jobs} of every type for each job")
