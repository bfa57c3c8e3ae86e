"""How many jobs would rather have another job's part of the cluster than their own."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Allocation, Floats, Problem

_MOST = 64  # jobs that are compared with each other, evenly picked
_BETTER = 1 + 1e-6  # by less nobody is envied: shares are rounded


def envy(problem: Problem, found: Allocation) -> float | None:
    """The share of pairs of jobs (one, other) where the one would be faster with the other's accelerator time.

    Parts are compared by weight: who weighs twice as much is not envied for twice as much. Of two jobs that share
    accelerators, each has half of their time. None if there are no two jobs.

    >>> two = dict(now_s=0, types=("a", "b"), counts=np.array([1, 1]), prices=np.ones(2), ids=np.arange(2),
    ...     kind=np.arange(2), rates=np.array([[2.0, 1.0], [2.0, 3.0]]), width=np.ones(2, int), weight=np.ones(2),
    ...     steps_left=np.ones(2), age_s=np.zeros(2), deadline_s=np.ones(2))
    >>> swapped = Allocation(share=np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> envy(Problem(**two), swapped), envy(Problem(**two), Allocation(share=swapped.share[::-1]))
    (1.0, 0.0)
    """
    if problem.jobs < 2:
        return None
    rows = np.linspace(0, problem.jobs - 1, min(_MOST, problem.jobs)).astype(np.int64)
    kind = problem.kind if found.kind is None else found.kind
    width = problem.width if found.kind is None or problem.kind_width is None else problem.kind_width[kind]
    share = found.share
    if len(found.pairs):
        share = share.copy()
        for side in (0, 1):
            np.add.at(share, found.pairs[:, side], found.pair_share / 2)
    part: Floats = (share * (width / problem.weight)[:, None])[rows]  # accelerator time by weight
    mine = (problem.weight / width)[rows]
    given: Floats = part[None, :, :] * mine[:, None, None]  # of the first, with the part of the second
    given /= np.maximum(given.sum(axis=2, keepdims=True), 1.0)
    wished = (given * problem.rates[kind[rows]][:, None, :]).sum(axis=2)
    has = found.throughput(problem)[rows]
    better = wished > has[:, None] * _BETTER
    np.fill_diagonal(better, False)
    return float(better.sum()) / (len(rows) * (len(rows) - 1))
