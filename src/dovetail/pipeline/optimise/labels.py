"""The general exact planner: the cheapest chain of stages under any links, by dynamic programming over
(devices used, class of the last stage, last cut).

Costs of stages and links are added (latency, energy, number of devices) or their maximum is taken (bottleneck). Unlike
`furthest`, it asks nothing of the links, so it serves link tables, latencies, pinned ends and replicated stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from dovetail.pipeline.optimise.counts import CountVectors, Ints
from dovetail.pipeline.optimise.tables import Floats


class Option(NamedTuple):
    """A way to run a stage: on `devices` of class `k` (replicas take turns)."""

    k: int
    devices: int = 1


Stages = list[tuple[Option, int, int]]  # each with its first and last cut


class CostChain(Struct):
    """Costs by option: `stage[v][i, j]`, `link[u][v][j]`, of entering `enter[v]` and leaving `leave[v]`; infinite is
    forbidden."""

    options: list[Option]
    counts: list[int]
    stage: list[Floats]
    link: list[list[Floats]]
    enter: list[float]
    leave: list[float]
    max_devices: int | None = None


class CheapestChain(NamedTuple):
    value: float
    stages: Stages


class Found(NamedTuple):
    """What a search or a rule found: the stages, the value of the objective (None: its bottleneck is), and the least
    that any plan can have."""

    stages: Stages
    value: float | None = None
    bound_s: float = 0.0
    optimal: bool = False
    method: str = "exact"
    probes: int = 0

    @classmethod
    def best(cls, stages: Stages, value: float, probes: int = 0) -> Found:
        """No other is better."""
        return cls(stages, value, value, True, probes=probes)


def cheapest(chain: CostChain, combine: Literal["sum", "max"]) -> CheapestChain | None:
    """The cheapest chain from cut 0 to the last, or None if there is none. Ties go to fewer devices."""
    if not chain.stage or chain.stage[0].shape[0] == 1:
        return CheapestChain(0.0, [])
    found, trace = _solve(chain, combine)
    best = min(found, key=lambda end: (end[0], end[1]), default=None)
    return None if best is None else CheapestChain(best[0], trace(best))


def cheapest_by_devices(chain: CostChain, combine: Literal["sum", "max"]) -> dict[int, CheapestChain]:
    """The cheapest chain with each number of devices for which there is one."""
    if not chain.stage or chain.stage[0].shape[0] == 1:
        return {0: CheapestChain(0.0, [])}
    found, trace = _solve(chain, combine)
    return {end[1]: CheapestChain(end[0], trace(end)) for end in found}


_End = tuple[float, int, int, int]  # the cost of a chain, how many devices it uses, its row and last option


def _solve(chain: CostChain, combine: Literal["sum", "max"]) -> tuple[list[_End], Callable[[_End], Stages]]:
    """The ends of the cheapest chains, one per number of devices, and the way from an end to its chain's stages."""
    join = np.add if combine == "sum" else np.maximum
    cuts = chain.stage[0].shape[0]
    vectors = CountVectors(chain.counts)
    top = min(len(vectors.levels) - 1, chain.max_devices if chain.max_devices is not None else len(vectors.levels))
    best: list[Floats] = [np.full((1, len(chain.options), cuts), np.inf)]
    found: list[_End] = []
    for level in range(1, top + 1):
        here = np.full((len(vectors.levels[level]), len(chain.options), cuts), np.inf)
        for v, option in enumerate(chain.options):
            if option.devices > level:
                continue
            rows, below = vectors.before(level, option.k, option.devices)
            start = _starts(chain, best, level - option.devices, below, v, join)
            reached = np.full((len(rows), cuts), np.inf)
            for i in np.nonzero(np.isfinite(start).any(axis=0))[0]:
                step = join(start[:, i : i + 1], chain.stage[v][i : i + 1, i + 1 :])
                np.minimum(reached[:, i + 1 :], step, out=reached[:, i + 1 :])
            here[rows, v] = reached
        best.append(here)
        total = join(here[:, :, -1], np.array(chain.leave)[None, :])
        at = np.unravel_index(int(np.argmin(total)), total.shape)
        value = float(total[at])
        if np.isfinite(value):
            found.append((value, level, int(at[0]), int(at[1])))
    return found, lambda end: _trace(chain, vectors, best, end, join)


def _starts(chain: CostChain, best: Sequence[Floats], level: int, rows: Ints, v: int, join: np.ufunc) -> Floats:
    """For each row below, the cheapest way to be about to start option v at each cut."""
    if level == 0:
        start = np.full((1, chain.stage[v].shape[0]), np.inf)
        start[0, 0] = chain.enter[v]
        return start
    below = best[level][rows]
    links = np.array([chain.link[u][v] for u in range(len(chain.options))])
    return np.asarray(join(below, links[None, :, :]).min(axis=1))


def _trace(chain: CostChain, vectors: CountVectors, best: Sequence[Floats], found: _End, join: np.ufunc) -> Stages:
    _, level, row, v = found
    vector = [int(c) for c in vectors.levels[level][row]]
    end = chain.stage[0].shape[0] - 1
    stages: Stages = []
    while True:
        option = chain.options[v]
        wanted = best[sum(vector)][vectors.row(vector), v, end]
        vector[option.k] -= option.devices
        level = sum(vector)
        start = _starts(chain, best, level, np.array([vectors.row(vector)], dtype=np.int32), v, join)[0]
        through = join(start[:end], chain.stage[v][:end, end])
        i = int(np.nonzero(through == wanted)[0][-1])
        stages.append((option, i, end))
        if level == 0:
            return stages[::-1]
        into = [join(best[level][vectors.row(vector), u, i], chain.link[u][v][i]) for u in range(len(chain.options))]
        v, end = int(np.argmin(into)), i
