"""Gandiva: equal parts for all, and when jobs outnumber accelerators, random pairs that are kept while they do well."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.optimise.shares import isolated_share, within_limits
from dovetail.cluster.policies.base import Allocation, Ints, Problem
from dovetail.core.registry import policy

FEW = 40  # of so many, all pairs are looked at before any is drawn


@policy("gandiva", level="cluster")
class Gandiva:
    """All running units have equal parts; pairs are drawn at random and kept while sharing beats taking turns.

    With enough accelerators for everybody nobody shares. With fewer, as many pairs are made as it takes for everybody
    to run: who shares while accelerators are idle only loses. With `pair_all`, as in Gavel's, all share that do well
    together, however few are too many; runs by its rules are so. The same seed and calls give the same pairs.
    """

    agnostic, packs, strict = False, True, False
    pair_all: bool

    _table: NDArray[np.bool_] | None  # by kind and kind, in this call

    def __init__(self, seed: int = 0, pair_all: bool = False) -> None:
        self.pair_all = pair_all
        self._random = np.random.default_rng(seed)
        self._pairs = np.zeros((0, 2), dtype=np.int64)  # ids

    def by_older_rules(self) -> Gandiva:
        """A copy that pairs all."""
        again = deepcopy(self)
        again.pair_all = True
        return again

    def allocate(self, problem: Problem) -> Allocation:
        if problem.pair_rates is None or problem.width.sum() <= problem.counts.sum():
            self._pairs = self._pairs[:0]
            return Allocation(share=isolated_share(problem), why="room for everybody, equal parts")
        self._table = self._of_few_kinds(problem)
        pairs = self._still_here(problem)
        pairs = self._needed(problem, pairs[self._good(problem, pairs)])
        single = np.ones(problem.jobs, dtype=bool)
        single[pairs] = False
        draws = problem.jobs
        while draws and self._crowded(problem, pairs) and (left := int(single.sum())) > 1:
            alone = np.flatnonzero(single)
            if left <= FEW and not self._good(problem, alone[np.stack(np.triu_indices(left, 1), axis=1)]).any():
                break
            drawn = self._random.permutation(alone)
            drawn = np.sort(drawn[: len(drawn) // 2 * 2].reshape(-1, 2)[:draws], axis=1)
            draws -= len(drawn)
            pairs = self._needed(problem, np.concatenate([pairs, drawn[self._good(problem, drawn)]]))
            single[pairs] = False
        self._pairs = problem.ids[pairs]
        return self._equal_parts(problem, pairs, np.flatnonzero(single))

    def _crowded(self, problem: Problem, pairs: Ints) -> bool:
        """Whether jobs and these pairs still outnumber the accelerators."""
        saved = int(problem.width[pairs[:, 0]].sum())
        return self.pair_all or int(problem.width.sum()) - saved > int(problem.counts.sum())

    def _needed(self, problem: Problem, pairs: Ints) -> Ints:
        """Of these pairs, the first ones until everybody has room."""
        if self.pair_all:
            return pairs
        width = problem.width[pairs[:, 0]]
        needed: Ints = pairs[width.cumsum() - width < problem.width.sum() - problem.counts.sum()]
        return needed

    def _still_here(self, problem: Problem) -> Ints:
        """The pairs of the last time of which both are there, as positions."""
        order = np.argsort(problem.ids, kind="stable")
        at = order[np.searchsorted(problem.ids, self._pairs, sorter=order).clip(max=problem.jobs - 1)]
        here: Ints = at[(problem.ids[at] == self._pairs).all(axis=1)]
        return here

    def _good(self, problem: Problem, pairs: Ints) -> NDArray[np.bool_]:
        """Whether two jobs of one width together, over the types as they are, make at least one job's progress."""
        same = problem.width[pairs[:, 0]] == problem.width[pairs[:, 1]]
        a, b = problem.kind[pairs].T
        good: NDArray[np.bool_] = same & (self._worth_it(problem, a, b) if self._table is None else self._table[a, b])
        return good

    def _of_few_kinds(self, problem: Problem) -> NDArray[np.bool_] | None:
        """Whether each kind does well beside each other, if that is less to ask than about the jobs."""
        kinds = len(problem.rates)
        if kinds**2 > problem.jobs:
            return None
        a, b = np.indices((kinds, kinds)).reshape(2, -1)
        return self._worth_it(problem, a, b).reshape(kinds, kinds)

    def _worth_it(self, problem: Problem, a: Ints, b: Ints) -> NDArray[np.bool_]:
        assert problem.pair_rates is not None
        both = np.stack([problem.pair_rates[a, b], problem.pair_rates[b, a]])
        alone = np.stack([problem.rates[a], problem.rates[b]])
        progress = np.where((both > 0).all(axis=0), (both / np.where(alone > 0, alone, np.inf)).sum(axis=0), 0.0)
        enough: NDArray[np.bool_] = progress @ problem.counts >= problem.counts.sum()
        return enough

    def _equal_parts(self, problem: Problem, pairs: Ints, single: Ints) -> Allocation:
        part = problem.counts / (len(pairs) + len(single))
        share = np.zeros((problem.jobs, len(problem.types)))
        share[single] = part / problem.width[single][:, None]
        pair_share = part / problem.width[pairs[:, 0]][:, None]
        share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
        pair_share /= np.maximum(pair_share.sum(axis=1), 1.0)[:, None]
        share, pair_share = within_limits(problem, share, pairs, pair_share)
        why = f"{len(pairs)} pairs and {len(single)} single jobs have equal parts"
        return Allocation(share=share, pairs=pairs, pair_share=pair_share, why=why)
