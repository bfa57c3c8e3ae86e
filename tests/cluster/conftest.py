"""Small clusters and jobs for the tests of this level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np
import pytest

from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies.base import Allocation, Floats, Problem

Make = Callable[..., ClusterSetup]


class FixedPrices:
    def __init__(self, prices: Sequence[float]) -> None:
        self._prices = np.array(prices, dtype=np.float64)

    def price_at(self, t: float) -> Floats:
        return self._prices

    def next_change(self, t: float) -> float:
        return inf


class Table:
    """A policy that gives shares from a table by job id, and pairs by ids."""

    agnostic = False
    strict = False

    def __init__(
        self, shares: Mapping[int, Sequence[float]], pairs: Mapping[tuple[int, int], Sequence[float]] | None = None
    ) -> None:
        self._shares = shares
        self._pairs = pairs or {}
        self.packs = bool(pairs)

    def allocate(self, problem: Problem) -> Allocation:
        share = np.zeros((problem.jobs, len(problem.types)))
        at = {int(job): i for i, job in enumerate(problem.ids)}
        for job, i in at.items():
            share[i] = self._shares.get(job, 0.0)
        pairs = [(at[a], at[b], given) for (a, b), given in self._pairs.items() if a in at and b in at]
        return Allocation(
            share=share,
            pairs=np.array([pair[:2] for pair in pairs], dtype=np.int64).reshape(-1, 2),
            pair_share=np.array([pair[2] for pair in pairs]).reshape(-1, len(problem.types)),
        )


THROUGHPUTS = Throughputs(
    types=("fast", "slow"),
    kinds=[("A", 1), ("B", 1), ("A", 2), ("B", 4)],
    alone=np.array([[4.0, 1.0], [2.0, 2.0], [8.0, 2.0], [6.0, 0.0]]),
    spread=np.array([[4.0, 1.0], [2.0, 2.0], [6.0, 1.5], [3.0, 0.0]]),
    pairs=np.array(
        [
            [[3.0, 0.0], [2.0, 0.5], [0.0, 0.0], [0.0, 0.0]],
            [[1.5, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]],
            [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
            [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
        ]
    ),
)


@pytest.fixture
def make_setup() -> Make:
    def make(
        jobs: Sequence[Job],
        counts: Sequence[int] = (2, 2),
        per_server: Sequence[int] = (2, 2),
        window: tuple[int, int] | None = None,
        outages: Sequence[Outage] = (),
        throughputs: Throughputs = THROUGHPUTS,
    ) -> ClusterSetup:
        return ClusterSetup(
            counts=np.array(counts),
            per_server=np.array(per_server),
            throughputs=throughputs,
            prices=FixedPrices([3.6] * len(throughputs.types)),
            jobs=list(jobs),
            window=window,
            outages=list(outages),
        )

    return make
