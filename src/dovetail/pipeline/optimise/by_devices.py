"""The cheapest chain with every number of devices, by dynamic programming over (devices used, class of the last stage,
last cut): for small pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dovetail.pipeline.optimise.chains import Chains
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.counts import CountVectors, Ints
from dovetail.pipeline.optimise.furthest import Prober
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Floats


def work(costs: Costs) -> float:
    """How many additions it takes."""
    return Prober.size(costs.tables.counts) * len(costs.options) * float(costs.tables.layers + 1) ** 2


class ChainOfCost(NamedTuple):
    value: float
    stages: Stages


def cheapest_by_devices(chain: Chains, combine: Literal["sum", "max"]) -> dict[int, ChainOfCost]:
    """The cheapest chain with each number of devices for which there is one."""
    if not len(chain.stage) or chain.layers == 0:
        return {0: ChainOfCost(0.0, [])}
    found, trace = _solve(chain, combine)
    return {end[1]: ChainOfCost(end[0], trace(end)) for end in found}


_End = tuple[float, int, int, int]  # the cost of a chain, how many devices it uses, its row and last option


def _solve(chain: Chains, combine: Literal["sum", "max"]) -> tuple[list[_End], Callable[[_End], Stages]]:
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
        total = join(here[:, :, -1], chain.leave[None, :])
        at = np.unravel_index(int(np.argmin(total)), total.shape)
        value = float(total[at])
        if np.isfinite(value):
            found.append((value, level, int(at[0]), int(at[1])))
    return found, lambda end: _trace(chain, vectors, best, end, join)


def _starts(chain: Chains, best: Sequence[Floats], level: int, rows: Ints, v: int, join: np.ufunc) -> Floats:
    """For each row below, the cheapest way to be about to start option v at each cut."""
    if level == 0:
        start = np.full((1, chain.stage[v].shape[0]), np.inf)
        start[0, 0] = chain.enter[v]
        return start
    below = best[level][rows]
    links = np.array([chain.link[:, u, v] for u in range(len(chain.options))])
    return np.asarray(join(below, links[None, :, :]).min(axis=1))


def _trace(chain: Chains, vectors: CountVectors, best: Sequence[Floats], found: _End, join: np.ufunc) -> Stages:
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
        into = [join(best[level][vectors.row(vector), u, i], chain.link[i, u, v]) for u in range(len(chain.options))]
        v, end = int(np.argmin(into)), i
