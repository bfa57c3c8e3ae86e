"""The batch that gives most progress per second, for any number of jobs and placements at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.cluster.goodput.efficiency import efficiency
from dovetail.cluster.goodput.throughput import iteration_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CANDIDATES = 50  # total batches that are tried, in geometric steps
_STEPS = np.arange(CANDIDATES) / (CANDIDATES - 1)
_SLACK = 1e-8  # before a batch is rounded up


class BestBatch(NamedTuple):
    """The best local batch and accumulation steps, and what they bring; all 0 where no batch is allowed."""

    local: Ints
    steps: Ints
    throughput: Floats  # samples per second
    efficiency: Floats
    goodput: Floats  # samples per second that are worth as much as at the initial batch


def split(total: ArrayLike, replicas: ArrayLike, initial: ArrayLike, most_local: ArrayLike) -> tuple[Ints, Ints]:
    """A total batch as local batch and accumulation steps. A lone accelerator with more than the initial batch has at
    least two local ones: from one alone no noise can be told.

    >>> local, steps = split([128, 256, 4096], [1, 1, 4], 128, 1000)
    >>> local.tolist(), steps.tolist()
    ([128, 128, 512], [0, 1, 1])
    """
    local = np.asarray(total) / np.asarray(replicas)
    steps = np.ceil(local / np.asarray(most_local) - _SLACK) - 1
    alone = (np.asarray(replicas) == 1) & (local > np.asarray(initial) + _SLACK)
    steps = np.maximum(steps, alone)
    whole = np.ceil(local / (steps + 1) - _SLACK)
    return whole.astype(np.int64), steps.astype(np.int64)


def best_batch(
    numbers: Floats,
    grad_sqr: ArrayLike,
    grad_var: ArrayLike,
    nodes: ArrayLike,
    replicas: ArrayLike,
    *,
    initial: ArrayLike,
    most: ArrayLike,
    least_local: ArrayLike,
    most_local: ArrayLike,
) -> BestBatch:
    """Of fifty total batches from the initial one to `most` the one with most goodput, the smallest of equals.

    All arguments broadcast; `numbers` has the seven numbers of the throughput model on its last axis.
    """

    def wide(values: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(values, dtype=np.float64)[..., None]

    nodes, replicas, initial = wide(nodes), wide(replicas), wide(initial)
    least_local, most_local, most = wide(least_local), wide(most_local), wide(most)
    first = np.maximum(initial, least_local * replicas)
    total = first * (most / first) ** _STEPS
    total[..., -1:] = most
    local, steps = split(total, replicas, initial, most_local)
    scale = replicas * local * (steps + 1) / initial
    allowed = (local >= least_local) & (local <= most_local)
    seconds = iteration_s(numbers[..., None, :], nodes, replicas, np.maximum(local, 1), steps)
    throughput = scale * initial / seconds
    worth = efficiency(wide(grad_sqr), wide(grad_var), np.maximum(scale, 1 / initial))
    goodput = np.where(allowed, throughput * worth, 0.0)
    at = goodput.argmax(axis=-1)[..., None]
    none = np.take_along_axis(goodput, at, -1)[..., 0] <= 0

    def chosen(values: NDArray[np.generic]) -> NDArray[np.generic]:
        found = np.take_along_axis(np.broadcast_to(values, goodput.shape), at, -1)[..., 0]
        return np.where(none, np.zeros((), values.dtype), found)

    return BestBatch(*map(chosen, (local, steps, throughput, worth, goodput)))  # type: ignore[arg-type]
