"""What a training job really does: how long its steps take by batch and placement, and what they are worth by epoch.

Policies and jobs know of it only what they have seen; simulations know all of it.
"""

from __future__ import annotations

from functools import cache, cached_property, lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import ArrayLike, NDArray

from dovetail.cluster.goodput.batch import split
from dovetail.cluster.goodput.efficiency import gain
from dovetail.cluster.goodput.throughput import compute_s, iteration_s

Floats = NDArray[np.float64]
Shape = tuple[int, ...]  # accelerators in each server, in order

MOST_WIDTH = 64  # accelerators of one job
_ALL = slice(None)
_NEAREST = 40  # measured sizes among which the triangle around another one is looked for
_MOST_NODES = 16  # more servers are as slow as so many


class Batch(NamedTuple):
    """The batch of one accelerator, accumulation steps before the exchanging one, and samples of all together."""

    local: int
    steps: int
    total: int


class TypeProfile(Struct, frozen=True, dict=True, kw_only=True):
    """How long steps of an application take on a type: as measured, or by the seven numbers of the throughput model.

    `placements` holds rows (local batch, seconds of a step, seconds of it that were exchange) by placement, whose
    digits are accelerators per server in the rotation that is least; `scalability` rows (servers, accelerators, local
    batch, step, exchange).
    """

    least_local: int  # batch of one accelerator
    most_local: int
    one_gpu: float  # samples per second of one accelerator
    placements: dict[str, list[tuple[float, float, float]]] = {}
    scalability: list[tuple[float, float, float, float, float]] = []
    numbers: list[float] = []

    def most_local_at(self, shape: Shape) -> int:
        """The largest local batch that fits there: what was measured."""
        if self.numbers:
            return self.most_local
        rows = self.placements.get(placement(shape))
        if rows is None:
            nodes, replicas = min(len(shape), _MOST_NODES), sum(shape)
            rows = [(row[2], 0.0, 0.0) for row in self.scalability if row[0] >= nodes and row[1] >= replicas]
        return int(max((row[0] for row in rows), default=self.most_local))

    def step_s(self, shape: Shape, local: ArrayLike) -> tuple[Floats, Floats]:
        """Seconds of an exchanging step, and of them those of the exchange, at local batches."""
        if self.numbers:
            numbers = np.array(self.numbers)
            step = iteration_s(numbers, len(shape), sum(shape), local)
            return step, step - compute_s(numbers, local)
        if (rows := self.placements.get(placement(shape))) is not None:
            return _along(np.array(rows), local)
        at = (min(len(shape), _MOST_NODES), sum(shape))
        around = _around(tuple(self._by_size), at)
        found = [(weight, *_along(self._by_size[size], local)) for size, weight in around]
        return sum(w * step for w, step, _ in found), sum(w * sync for w, _, sync in found)  # type: ignore[return-value]

    @cached_property
    def _by_size(self) -> dict[tuple[int, int], Floats]:
        """Rows by servers and accelerators: means over placements of the same size, and the scalability rows."""
        rows = [
            (len(name), sum(map(int, name)), *row)
            for name, of_placement in self.placements.items()
            for row in of_placement
        ]
        sizes: dict[tuple[int, int], dict[float, list[tuple[float, float]]]] = {}
        for nodes, replicas, local, step, sync in [*rows, *self.scalability]:
            sizes.setdefault((int(nodes), int(replicas)), {}).setdefault(local, []).append((step, sync))
        return {
            size: np.array([(local, *np.mean(times, axis=0)) for local, times in sorted(by_local.items())])
            for size, by_local in sizes.items()
        }


class Application(Struct, frozen=True, dict=True, kw_only=True):
    """What jobs of an application are like. Progress is counted in iterations at the initial batch.

    `progress` is where each epoch ends; `grad_sqr` and `grad_var`, by batch of `batches` and epoch, are the squared
    norm of the gradient and its variance at the initial batch. A job runs `slowdown` times longer than was measured.
    """

    name: str
    initial: int  # total batch
    most: int
    progress: list[float]
    batches: list[int]
    grad_sqr: list[list[float]]
    grad_var: list[list[float]]
    types: dict[str, TypeProfile] = field(default_factory=dict)
    slowdown: float = 1.0
    restart_s: float | None = None  # None: what the rules say

    @property
    def size(self) -> float:
        """All that a job has to do."""
        return self.progress[-1]

    @cached_property
    def _statistics(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.batches, dtype=np.float64), np.array(self.grad_sqr), np.array(self.grad_var)

    def statistics(self, batch: float, epoch: int | slice = _ALL) -> tuple[Floats, Floats]:
        """`grad_sqr` and `grad_var` at a total batch in an epoch, or in all; between two batches they are linear."""
        batches, sqr, var = self._statistics
        above = int(np.clip(np.searchsorted(batches, batch), 1, max(len(batches) - 1, 1)))
        if len(batches) == 1:
            return sqr[0, epoch], var[0, epoch]
        low, high = batches[above - 1], batches[above]
        part = min(max((batch - low) / (high - low), 0.0), 1.0)
        mixed = [values[above - 1, epoch] * (1 - part) + values[above, epoch] * part for values in (sqr, var)]
        return mixed[0], mixed[1]

    def rate(self, on: str, shape: Shape, how: Batch, epoch: int | slice = _ALL) -> Floats:
        """Progress per second on a type, in an epoch or in all."""
        step, sync = self.types[on].step_s(shape, how.local)
        worth = gain(*self.statistics(how.total, epoch), how.total / self.initial)
        found: Floats = worth / (step + how.steps * (step - sync)) / self.slowdown
        return found

    def seconds(self, on: str, shape: Shape, how: Batch) -> float:
        """How long a whole job takes that keeps its placement and batch."""
        return float((np.diff(self.progress, prepend=0.0) / self.rate(on, shape, how)).sum())

    def fixed(self, on: str, shape: Shape, total: int) -> Batch | None:
        """A given total batch, split over accelerators; None if they are too many for it.

        Where it cannot be split evenly, some have a sample less: the others set the pace."""
        profile, width = self.types[on], sum(shape)
        total = max(total, profile.least_local * width)
        local, steps = (int(value) for value in split(total, width, self.initial, profile.most_local_at(shape)))
        return self.within(on, shape, Batch(local, steps, total))

    def within(self, on: str, shape: Shape, how: Batch) -> Batch | None:
        """The same with no more than the largest total batch; None if that is less than the profile knows."""
        local = min(how.local, self.most // (sum(shape) * (how.steps + 1)))
        found = how._replace(local=local, total=min(how.total, self.most))
        return found if self.types[on].least_local <= local else None

    def most_width(self, widest: int, on: str | None = None) -> int:
        """How many accelerators a job may have next that had `widest`: it at most doubles.

        What its largest batch can be split over depends on the type, or is the most of any."""
        types = self.types.values() if on is None else [self.types[on]]
        least = min((profile.least_local for profile in types), default=1)
        return min(max(2 * widest, 1), MOST_WIDTH, self.most // least)


def placement(shape: Shape) -> str:
    """How a placement is written: its digits in the rotation that is least.

    >>> placement((4, 2)), placement((4,))
    ('24', '4')
    """
    return "".join(map(str, min(shape[i:] + shape[:i] for i in range(len(shape)))))


def compact(width: int, per_server: int) -> Shape:
    """The placement of as few servers as possible.

    >>> compact(6, 4), compact(3, 4), compact(8, 4)
    ((4, 2), (3,), (4, 4))
    """
    whole, rest = divmod(width, per_server)
    return (per_server,) * whole + ((rest,) if rest else ())


def _along(rows: Floats, local: ArrayLike) -> tuple[Floats, Floats]:
    """Step and exchange at local batches, linear between rows."""
    at = np.asarray(local, dtype=np.float64)
    return np.interp(at, rows[:, 0], rows[:, 1]), np.interp(at, rows[:, 0], rows[:, 2])


@cache
def _triples(count: int) -> NDArray[np.int64]:
    """All ways to choose three of so many."""
    return np.array(list(combinations(range(count), 3)), dtype=np.int64).reshape(-1, 3)


@lru_cache(maxsize=4096)
def _around(sizes: tuple[tuple[int, int], ...], at: tuple[int, int]) -> list[tuple[tuple[int, int], float]]:
    """Sizes (servers, accelerators) that were measured around one that was not, and their weights: the corners of the
    triangle of Delaunay that it is in; outside of all, the nearest one.

    >>> _around(((1, 1), (1, 3), (3, 3), (9, 9)), (2, 3))
    [((1, 3), 0.5), ((3, 3), 0.5)]
    >>> _around(((1, 1), (1, 3), (3, 3)), (1, 4))
    [((1, 3), 1.0)]
    """
    points, target = np.array(sizes, dtype=np.float64), np.array(at, dtype=np.float64)
    near = np.lexsort([((points - target) ** 2).sum(axis=1)])
    corners = near[_triples(min(len(near), _NEAREST))]
    a, b, c = points[corners].transpose(1, 0, 2)
    u, v, w = b - a, c - a, target - a
    area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    flat = area == 0
    area[flat] = 1.0
    of_b, of_c = (w[:, 0] * v[:, 1] - w[:, 1] * v[:, 0]) / area, (u[:, 0] * w[:, 1] - u[:, 1] * w[:, 0]) / area
    weights = np.stack([1 - of_b - of_c, of_b, of_c], axis=1)
    weights[np.abs(weights) < 1e-12] = 0.0
    inside = ~flat & (weights >= 0).all(axis=1)
    if not inside.any():
        return [(sizes[near[0]], 1.0)]
    # The triangle whose corners, lifted onto a paraboloid, lie lowest above the target is Delaunay's.
    height = np.where(inside, (weights * (points[corners] ** 2).sum(axis=2)).sum(axis=1), np.inf)
    best = int(height.argmin())
    return [(sizes[i], float(share)) for i, share in zip(corners[best], weights[best], strict=True) if share > 0]
