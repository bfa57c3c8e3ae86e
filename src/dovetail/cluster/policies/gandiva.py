"""Gandiva: equal parts for all, and when jobs outnumber accelerators, random pairs that are kept while they do well."""

from __future__ import annotations

import random

import numpy as np

from dovetail.cluster.optimise.shares import isolated_share, within_limits
from dovetail.cluster.policies.base import Allocation, Ints, Problem
from dovetail.core.registry import policy


@policy("gandiva", level="cluster")
class Gandiva:
    """All running units have equal parts; pairs are drawn at random and kept while sharing beats taking turns.

    With enough accelerators for everybody nobody shares. The same seed and calls give the same pairs.
    """

    agnostic, packs, strict = False, True, False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._pairs: list[tuple[int, int]] = []  # ids

    def allocate(self, problem: Problem) -> Allocation:
        if problem.pair_rates is None or problem.width.sum() <= problem.counts.sum():
            self._pairs = []
            return Allocation(share=isolated_share(problem), why="room for everybody, equal parts")
        at = {one: job for job, one in enumerate(problem.ids.tolist())}
        kept = [(at[a], at[b]) for a, b in self._pairs if a in at and b in at and self._good(problem, at[a], at[b])]
        taken = {job for pair in kept for job in pair}
        single = [job for job in range(problem.jobs) if job not in taken]
        for _ in range(problem.jobs):
            if len(single) < 2:
                break
            first, second = sorted(self._random.sample(single, 2))
            if problem.width[first] == problem.width[second] and self._good(problem, first, second):
                kept.append((first, second))
                single = [job for job in single if job not in (first, second)]
        self._pairs = [(int(problem.ids[a]), int(problem.ids[b])) for a, b in kept]
        return self._equal_parts(problem, np.array(kept, dtype=np.int64).reshape(-1, 2), single)

    def _good(self, problem: Problem, first: int, second: int) -> bool:
        """Whether two jobs together, over the types as they are, make at least one job's progress."""
        assert problem.pair_rates is not None
        a, b = problem.kind[first], problem.kind[second]
        both = np.stack([problem.pair_rates[a, b], problem.pair_rates[b, a]])
        alone = np.stack([problem.rates[a], problem.rates[b]])
        progress = np.where((both > 0).all(axis=0), (both / np.where(alone > 0, alone, np.inf)).sum(axis=0), 0.0)
        return bool(progress @ problem.counts >= problem.counts.sum())

    def _equal_parts(self, problem: Problem, pairs: Ints, single: list[int]) -> Allocation:
        part = problem.counts / (len(pairs) + len(single))
        share = np.zeros((problem.jobs, len(problem.types)))
        share[single] = part / problem.width[single][:, None]
        pair_share = part / problem.width[pairs[:, 0]][:, None]
        share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
        pair_share /= np.maximum(pair_share.sum(axis=1), 1.0)[:, None]
        share, pair_share = within_limits(problem, share, pairs, pair_share)
        why = f"{len(pairs)} pairs and {len(single)} single jobs have equal parts"
        return Allocation(share=share, pairs=pairs, pair_share=pair_share, why=why)
