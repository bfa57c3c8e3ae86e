"""The least bottleneck when a link is as fast as its slower end: parametric search with a probe over count vectors.

For a bottleneck T, let `reach[k][i]` be the furthest cut that a device of class k can take the model to when it starts
at any usable cut up to i. Then g(c) = max over k of reach[k][g(c - e_k)] is the furthest cut that devices c can reach,
and T is feasible if and only if g(all devices) is the last cut. Taking any start up to i loses nothing: a device that
starts inside the range of the one before it can take over from there, or, where that cut is too large for the sender,
from the sender's own end, which is then smaller (layer times are not negative, memory only grows with layers and
buffers, a link is as fast as its slower end). `tests/pipeline` holds this against brute force and the general planner.

A probe looks up one byte per count vector and class. The look-ups run as `bytes.translate` over whole levels, so the
plain interpreter does some hundred million of them a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from dovetail.pipeline.inputs.problem import BYTES_PER_S
from dovetail.pipeline.optimise.counts import CountVectors
from dovetail.pipeline.optimise.tables import Bools, Floats, Tables

Stage = tuple[int, int, int]  # class, first cut, last cut
_MAX_CUTS = 256  # a cut must fit in a byte; longer models use 16-bit look-ups
_Cuts = NDArray[np.uint8] | NDArray[np.uint16]


class Reach:
    """What each class can reach within a bottleneck: by start cut, and by any start up to a cut."""

    def __init__(self, tables: Tables, bottleneck_s: float) -> None:
        cuts = np.arange(tables.layers + 1)
        self.usable: list[Bools] = []
        self.from_cut: list[NDArray[np.int64]] = []
        self.up_to: list[NDArray[np.int64]] = []
        for k, device in enumerate(tables.pipeline.classes):
            usable = np.zeros(tables.layers + 1, dtype=bool)
            if device.bw_mbps > 0:
                usable = tables.cut_bytes / (device.bw_mbps * BYTES_PER_S) <= bottleneck_s
            usable[[0, -1]] = True
            allowed = (tables.compute[k] <= bottleneck_s) & usable[None, :]
            furthest = np.where(allowed.any(axis=1), tables.layers - np.argmax(allowed[:, ::-1], axis=1), 0)
            furthest[~usable] = 0
            self.usable.append(usable)
            self.from_cut.append(furthest)
            self.up_to.append(np.maximum(np.maximum.accumulate(furthest), cuts))


class Prober:
    """Probes bottlenecks on one set of tables. The class with most devices is scanned within a level's rows."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.order = sorted(range(len(tables.counts)), key=lambda k: tables.counts[k])
        self._last = self.order[-1]
        self._outer = CountVectors([tables.counts[k] for k in self.order[:-1]])
        self._before = [
            [self._outer.before(level, k) for k in range(len(self.order) - 1)] if level else []
            for level in range(len(self._outer.levels))
        ]
        self._wide = tables.layers >= _MAX_CUTS

    @staticmethod
    def size(counts: Sequence[int]) -> int:
        """How many count vectors a probe visits."""
        return prod(count + 1 for count in counts)

    def feasible(self, bottleneck_s: float) -> bool:
        levels = self._levels(Reach(self.tables, bottleneck_s), keep=False)
        return int(levels[-1][-1, -1]) >= self.tables.layers

    def _levels(self, reach: Reach, keep: bool) -> list[_Cuts]:
        """g for every count vector, a matrix per level: rows are vectors of the other classes, columns the last's."""
        maps = [self._map(reach.up_to[k]) for k in self.order]
        width = self.tables.counts[self._last] + 1
        kept: list[_Cuts] = []
        for vectors, before in zip(self._outer.levels, self._before, strict=True):
            here = np.zeros((len(vectors), width), dtype=np.uint16 if self._wide else np.uint8)
            for look, (rows, below) in zip(maps, before, strict=False):
                image = _look_up(kept[-1], look)
                here[rows] = np.maximum(here[rows], image[below])
            columns = np.ascontiguousarray(here.T)
            for count in range(1, width):
                np.maximum(columns[count], _look_up(columns[count - 1], maps[-1]), out=columns[count])
            kept.append(np.ascontiguousarray(columns.T))
            if not keep and len(kept) > 1:
                kept.pop(0)
        return kept

    def _map(self, reach: NDArray[np.int64]) -> bytes | NDArray[np.uint16]:
        if self._wide:
            return reach.astype(np.uint16)
        table = np.zeros(256, dtype=np.uint8)
        table[: len(reach)] = reach
        return table.tobytes()

    def stages(self, bottleneck_s: float) -> list[Stage]:
        """A schedule within a feasible bottleneck, with no device that could be left out of it."""
        reach = Reach(self.tables, bottleneck_s)
        levels = self._levels(reach, keep=True)
        counts = [self.tables.counts[k] for k in self.order]

        def furthest(vector: list[int]) -> int:
            return int(levels[sum(vector[:-1])][self._outer.row(vector[:-1]), vector[-1]])

        steps: list[Stage] = []
        while (end := furthest(counts)) > 0:
            fewer = [[c - (i == k) for i, c in enumerate(counts)] for k, count in enumerate(counts) if count]
            spare = next((vector for vector in fewer if furthest(vector) == end), None)
            if spare is not None:
                counts = spare
                continue
            for k, count in enumerate(counts):
                if not count:
                    continue
                vector = [c - (i == k) for i, c in enumerate(counts)]
                limit = furthest(vector)
                if int(reach.up_to[self.order[k]][limit]) == end:
                    start = int(np.nonzero(reach.from_cut[self.order[k]][: limit + 1] == end)[0][-1])
                    steps.append((self.order[k], start, end))
                    counts = vector
                    break
        return self._real(reach, reversed(steps))

    def _real(self, reach: Reach, steps: Iterable[Stage]) -> list[Stage]:
        """Steps may start inside the range of their predecessor; make them stages that meet, as the proof does."""
        stages: list[Stage] = []
        for k, start, end in steps:
            while stages and stages[-1][1] >= start:
                stages.pop()
            if start == 0:
                stages = []
            elif stages:
                u, first, last = stages[-1]
                if start < last and reach.usable[u][start] and np.isfinite(self.tables.compute[u, first, start]):
                    stages[-1] = (u, first, start)
                else:
                    start = last
            if start < end:
                stages.append((k, start, end))
        return stages


def _look_up(cuts: _Cuts, look: bytes | NDArray[np.uint16]) -> _Cuts:
    if isinstance(look, bytes):
        return np.frombuffer(cuts.tobytes().translate(look), dtype=np.uint8).reshape(cuts.shape)
    return look[cuts]


def capacity_bound(tables: Tables) -> int:
    """The first candidate for which all devices together could hold the model, whatever the order: a lower bound."""
    weights = np.mean([np.array(c.time_s) / (sum(c.time_s) or 1.0) for c in tables.pipeline.classes], axis=0)
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    share = ends[None, :] - ends[:, None]
    candidates = tables.candidates

    def enough(bottleneck_s: float) -> bool:
        held = 0.0
        for k, count in enumerate(tables.counts):
            allowed = share[tables.compute[k] <= bottleneck_s]
            held += count * float(allowed.max(initial=0.0))
        return held >= float(ends[-1]) * (1 - 1e-12)

    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if enough(float(candidates[middle])):
            high = middle
        else:
            low = middle + 1
    return low


def least_bottleneck(tables: Tables, prober: Prober) -> tuple[float | None, int]:
    """The least feasible candidate (None if there is none), and how many probes it took."""
    candidates: Floats = tables.candidates
    low = high = capacity_bound(tables)
    step, probes = 8, 0
    while True:
        if high >= len(candidates):
            high = len(candidates) - 1
            if low > high:
                return None, probes
        probes += 1
        if prober.feasible(float(candidates[high])):
            break
        low, high, step = high + 1, high + step, 4 * step
    while low < high:
        middle = (low + high) // 2
        probes += 1
        if prober.feasible(float(candidates[middle])):
            high = middle
        else:
            low = middle + 1
    return float(candidates[high]), probes
