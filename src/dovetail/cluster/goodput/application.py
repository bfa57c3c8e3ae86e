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


NOTHING = Batch(0, 0, 0)


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

    def shapes(self, width: int, per_server: int) -> list[Shape]:
        """Placements of so many accelerators that were measured, and the usual one."""
        found = {compact(width, per_server), (1, width - 1) if width > 1 else (1,)}
        found |= {tuple(map(int, name)) for name in self.placements if sum(map(int, name)) == width}
        found |= {_even(*size) for size in self._by_size if size[1] == width}
        return sorted(found)

    def least_s(self, shape: Shape, totals: Floats) -> Floats:
        """Seconds that an optimiser step takes at least with these total batches or larger ones.

        Between two measured local batches it takes no less than at the shorter of both."""
        local = np.array(sorted({row[0] for rows in self.placements.values() for row in rows}))
        local = np.geomspace(self.least_local, self.most_local, 20) if self.numbers else local
        step, sync = self.step_s(shape, local)
        if len(local) == 1:
            local, step, sync = np.repeat([local, step, sync], 2, axis=1)
        quick, work = np.minimum(step[:-1], step[1:]), np.minimum((step - sync)[:-1], (step - sync)[1:])
        before = np.maximum(np.ceil(totals[:, None] / (sum(shape) * local[1:]) - 1e-9) - 1, 0.0)
        found: Floats = (quick + before * work).min(axis=1)
        return found

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

    def fault(self) -> str:
        """Why nothing could be computed with it; nothing if all fits together."""
        epochs = len(self.progress)
        if not epochs or sorted(set(self.progress)) != self.progress or not 0 < self.progress[0] <= self.size < 1e15:
            return "progress: expected one or more numbers, each above the one before"
        for name, values in (("grad_sqr", self.grad_sqr), ("grad_var", self.grad_var)):
            if len(values) != len(self.batches) or any(len(of_batch) != epochs for of_batch in values):
                return f"{name}: expected {len(self.batches)} lists of {epochs} values"
            if not all(0 <= value < np.inf for of_batch in values for value in of_batch):
                return f"{name}: expected numbers from 0 on"
        if not self.batches or sorted(set(self.batches)) != self.batches or self.batches[0] < 1:
            return "batches: expected one or more, each above the one before"
        if not 1 <= self.initial <= self.most or not 0 < self.slowdown < np.inf:
            return "initial, most, slowdown: expected 1 <= initial <= most, and a slowdown above 0"
        for name, profile in self.types.items():
            times = [row[-2:] for rows in profile.placements.values() for row in rows]
            times += [row[-2:] for row in profile.scalability]
            if not all(0 <= sync < step < np.inf for step, sync in times):
                return f"types.{name}: expected steps longer than their exchange"
            if not 1 <= profile.least_local <= profile.most_local or len(profile.numbers) not in (0, 7):
                return f"types.{name}: expected 1 <= least_local <= most_local, and seven numbers or none"
            if not profile.numbers and not profile.placements:
                return f"types.{name}: expected placements or seven numbers"
        return ""

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
        if len(batches) == 1:
            return sqr[0, epoch], var[0, epoch]
        above = min(max(int(batches.searchsorted(batch)), 1), len(batches) - 1)
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

    def best_rates(self, on: str, per_server: int, widest: int) -> Floats:
        """By width and epoch, progress per second that no batch and no placement can beat."""
        totals = np.geomspace(self.initial, self.most, 2 * len(self.batches))
        noise = np.array([var / np.maximum(sqr, 1e-300) for sqr, var in map(self.statistics, totals)])
        files = np.array(self.batches)
        for low, noisiest in zip(totals[:-1], noise, strict=False):  # between two totals, no more than around them
            inside = (files >= low) & (files <= low * totals[1] / totals[0])
            for sqr, var in map(self.statistics, files[inside]):
                np.maximum(noisiest, var / np.maximum(sqr, 1e-300), out=noisiest)
        scale = np.append(totals[1:], self.most)[:, None] / self.initial
        noise = np.maximum(noise, np.append(noise[1:], noise[-1:], axis=0))
        worth = (noise + 1) / (noise / scale + 1)
        found: Floats = np.zeros((widest, len(self.progress)))
        for width in range(1, min(widest, self.most // self.types[on].least_local) + 1):
            took_s = np.min(
                [self.types[on].least_s(shape, totals) for shape in self.types[on].shapes(width, per_server)], axis=0
            )
            found[width - 1] = (worth / took_s[:, None]).max(axis=0) / self.slowdown
        return found

    def fixed(self, on: str, shape: Shape, total: int) -> Batch | None:
        """A given total batch, split over accelerators; None if they are too many for it.

        Where it cannot be split evenly, some have a sample less: the others set the pace."""
        profile, width = self.types[on], sum(shape)
        total = max(total, profile.least_local * width)
        local, steps = (int(value) for value in split(total, width, self.initial, profile.most_local_at(shape)))
        local = self.cut(shape, local, steps).local
        return Batch(local, steps, min(total, self.most)) if profile.least_local <= local else None

    def cut(self, shape: Shape, local: int, steps: int) -> Batch:
        """A batch that was chosen, with no more than the largest total."""
        local = min(local, self.most // (sum(shape) * (steps + 1)))
        return Batch(local, steps, sum(shape) * local * (steps + 1))

    def most_width(self, widest: int) -> int:
        """How many accelerators a job may have next that had `widest`, on the type that takes the smallest batches: it
        at most doubles, and its largest batch can be split over them."""
        least = min((profile.least_local for profile in self.types.values()), default=1)
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


def _even(nodes: int, replicas: int) -> Shape:
    """So many accelerators over so many servers."""
    return tuple(sorted(replicas // nodes + (i < replicas % nodes) for i in range(nodes)))


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
