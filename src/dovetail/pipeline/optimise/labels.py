"""Chains built cut by cut, as many at a time as a beam is wide: exact where nothing promising was left out.

A label is a chain up to a cut: its last option, the devices it uses, its cost, what it takes of the cap. Prices of
resources tell what it will cost at least when it is complete: labels that cannot beat what is known are dropped, those
that another one dominates too, and of the others the most promising are kept. The best bound of those that were
dropped only for want of room bounds every chain that was not looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.pipeline.optimise.chains import Chains, Relaxed
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.stages import Stages
from dovetail.pipeline.optimise.tables import Bools, Floats

_Words = NDArray[np.uint64]
_Ints = NDArray[np.int64]
_BLOCK = 128  # labels compared at a time
_AT_ONCE = 100_000  # labels made at a time: between them the clock is asked


class Guide(NamedTuple):
    """Prices that bound what a label will cost (or, without `cost`, by how much it will break the limits)."""

    relaxed: Relaxed
    cost: bool


class Beam(NamedTuple):
    """The best chain found below what was known (None: none), its cost, and the least bound of what was dropped."""

    chain: Stages | None
    value: float
    lost: float


class _Packed:
    """Counts of devices as bits of a few words, so that whole vectors are added and compared at once."""

    def __init__(self, chains: Chains, free: Set[int]) -> None:
        guards, limits, places, shift = [0], [0], [], 0
        for r in chains.priced:
            if r in free or r == chains.cap:
                continue
            count = int(chains.limits[r])
            bits = count.bit_length() + 1
            if shift + bits > 64:
                guards.append(0)
                limits.append(0)
                shift = 0
            places.append((r, len(limits) - 1, shift))
            limits[-1] |= count << shift
            guards[-1] |= 1 << (shift + bits - 1)
            shift += bits
        self._guard = np.array(guards, dtype=np.uint64)
        self.limit = np.array(limits, dtype=np.uint64)
        self.step = np.zeros((len(chains.options), len(limits)), dtype=np.uint64)
        for o, used in enumerate(chains.use):
            for r, word, at in places:
                self.step[o, word] += np.uint64(int(min(used[r], chains.limits[r] + 1)) << at)

    def within(self, small: _Words, large: _Words) -> Bools:
        """Whether each vector is nowhere above the other; words are the last axis, and compared one after another."""
        found: Bools | None = None
        for word, guard in enumerate(self._guard):
            left = (large[..., word] | guard) - small[..., word]
            left &= guard
            same: Bools = left == guard
            found = same if found is None else np.logical_and(found, same, out=found)
        assert found is not None
        return found


class _Labels(NamedTuple):
    """Labels side by side, each at a cut: behind a stage that ends there, or before one that starts there."""

    cost: Floats
    capped: Floats
    words: _Words
    priced: Floats  # for each label and guide, what the devices are worth that it uses
    option: _Ints
    cut: _Ints
    start: _Ints  # the number of the stage's start

    def take(self, rows: NDArray[np.integer] | Bools | slice) -> _Labels:
        return _Labels(*(part[rows] for part in self))  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: list[_Labels]) -> _Labels:
        return parts[0] if len(parts) == 1 else _Labels(*(np.concatenate(x) for x in zip(*parts, strict=True)))


class Labels:
    """Beams through the chains, all with the same guides. Of `free` resources there is enough: how much labels take of
    them is not looked at, and no guide may have a price for them."""

    def __init__(self, chains: Chains, guides: list[Guide], clock: SearchClock, free: Set[int] = frozenset()) -> None:
        self._chains = chains
        self._clock = clock
        self._capped = None if chains.cap in free else chains.capped
        self._pack = _Packed(chains, free)
        # By cut, option and guide.
        self._after = np.array([g.relaxed.after + g.relaxed.base for g in guides]).T.copy()
        self._before = np.array([g.relaxed.start + g.relaxed.base for g in guides]).T.copy()
        self._charge = np.array([g.relaxed.charge for g in guides]).T.copy()
        self._price = np.array([float(g.relaxed.prices[-1]) for g in guides])
        self._costs = np.array([g.cost for g in guides])
        self._units = np.array([abs(g.relaxed.base) or 1.0 for g in guides])
        last = chains.layers - np.argmax(np.isfinite(chains.stage)[:, :, ::-1], axis=2)
        self._reach = np.where(np.isfinite(chains.stage).any(axis=2), last, 0)

    def beam(self, below: float, width: int, first: bool = False) -> Beam:
        """The cheapest chain that costs less than `below`, with so many labels kept at each cut.

        With `first` any chain will do. When time runs out, nothing is known of what was not looked at.
        """
        self._best, self._end, self._lost = below, -1, inf
        self._births: list[tuple[int, int, _Ints, _Ints]] = []  # first number, cut, options, and the starts before
        self._count = 0
        self._limit()
        begun = _Labels.joined(self._start(None, 0))
        for j in range(1, self._chains.layers):
            begun = begun.take(self._reach[begun.option, begun.cut] >= j)
            arrived, scores = [], []
            for low in range(0, len(begun.cost), _AT_ONCE):
                if self._clock.over or (first and self._end >= 0):
                    return self._found(-inf)
                here, score = self._arrive(begun.take(slice(low, low + _AT_ONCE)), j)
                arrived.append(here)
                scores.append(score)
            if not any(map(len, scores)):
                continue
            kept = self._keep(_Labels.joined(arrived), np.concatenate(scores), j, width)
            begun = _Labels.joined([begun, *self._start(kept, j)])
        return self._found(self._lost)

    def _limit(self) -> None:
        """What bounds must stay below."""
        self._limits = np.where(self._costs, self._chains.below(self._best), 1e-12 * self._units)

    def _arrive(self, begun: _Labels, j: int) -> tuple[_Labels, Floats]:
        """The labels of stages that end at a cut, and what they promise."""
        chains = self._chains
        added = chains.stage[begun.option, begun.cut, j]
        # The first guide, which is the best one, drops most of them: the others are asked about the rest.
        hope = begun.priced[:, 0] + self._after[j, begun.option, 0]
        if self._costs[0]:
            hope += begun.cost + added
        if self._price[0] and self._capped is not None:
            hope += self._price[0] * (begun.capped + self._capped.stage[begun.option, begun.cut, j])
        rows = np.nonzero((hope < self._limits[0]) & np.isfinite(added))[0]
        begun, cost = begun.take(rows), begun.cost[rows] + added[rows]
        capped = begun.capped
        if self._capped is not None:
            capped = capped + self._capped.stage[begun.option, begun.cut, j]
        bounds = begun.priced + self._after[j][begun.option] + np.multiply.outer(cost, self._costs)
        if self._capped is not None:
            bounds += np.multiply.outer(capped, self._price)
        ok = _every(bounds < self._limits)
        made, bounds = begun._replace(cost=cost, capped=capped).take(ok), bounds[ok]
        if self._costs.any():
            return made, bounds[:, self._costs].max(axis=1)
        return made, (bounds / self._units).max(axis=1)

    def _keep(self, labels: _Labels, score: Floats, j: int, width: int) -> _Labels:
        """The most promising labels that no other dominates."""
        if len(score) > width:
            order = np.lexsort((labels.cost, labels.option, *labels.words.T))
            same = (labels.words[order[1:]] == labels.words[order[:-1]]).all(axis=1)
            same &= labels.option[order[1:]] == labels.option[order[:-1]]
            same &= labels.capped[order[1:]] >= labels.capped[order[:-1]]
            rows = order[np.concatenate([[True], ~same])]
            labels, score = labels.take(rows), score[rows]
        order = np.argsort(score, kind="stable")
        if len(order) > 3 * width:
            self._lost = min(self._lost, float(score[order[3 * width]]))
            order = order[: 3 * width]
        labels, score = labels.take(order), score[order]
        kept = np.zeros(0, dtype=np.int64)
        more = self._more(j)
        for low in range(0, len(score), _BLOCK):
            if len(kept) >= width:
                self._lost = min(self._lost, float(score[low]))
                break
            block = np.arange(low, min(low + _BLOCK, len(score)))
            if len(kept):
                block = block[~self._dominated(labels.take(kept), labels.take(block), more).any(axis=0)]
            within = np.triu(self._dominated(labels.take(block), labels.take(block), more), 1)
            kept = np.concatenate([kept, block[~within.any(axis=0)]])
        if len(kept) > width:
            self._lost = min(self._lost, float(score[kept[width]]))
        return labels.take(kept[:width])

    def _more(self, j: int) -> tuple[Floats, Floats | None]:
        """At most how much more it costs, and takes of the cap, to go on from one option than from another."""
        link, capped = self._chains.link[j], self._capped
        return _more(link), None if capped is None else _more(np.where(np.isfinite(link), capped.link[j], inf))

    def _dominated(self, these: _Labels, others: _Labels, more: tuple[Floats, Floats | None]) -> Bools:
        """Whether each of these is at least as good as each of the others, whatever comes next."""
        cost, capped = more
        found: Bools = these.cost[:, None] <= (others.cost - cost[:, others.option])[these.option]
        if capped is not None:
            found &= these.capped[:, None] <= (others.capped - capped[:, others.option])[these.option]
        found &= self._pack.within(these.words[:, None], others.words[None, :])
        return found

    def _start(self, labels: _Labels | None, j: int) -> list[_Labels]:
        """Begin stages of all options at a cut behind these labels; None stands for the beginning of the model."""
        if labels is not None:
            few = max(_AT_ONCE // len(self._chains.options), 1)
            begun = []
            for low in range(0, len(labels.cost), few):
                if self._clock.over:
                    self._lost = -inf
                    break
                part = labels.take(slice(low, low + few))
                begun.append(self._begin(part, self._chains.link[j][part.option], j))
            return begun
        none = np.array([-1])
        words = np.zeros((1, self._pack.step.shape[1]), dtype=np.uint64)
        nothing = _Labels(np.zeros(1), np.zeros(1), words, np.zeros((1, len(self._costs))), none, none, none)
        return [self._begin(nothing, self._chains.enter[None], 0)]

    def _begin(self, labels: _Labels, added: Floats, j: int) -> _Labels:
        """The stages that begin at a cut, where it costs so much for each label to go on with each option."""
        chains, capped = self._chains, self._capped
        used = labels.words[:, None] + self._pack.step
        options, rows = np.nonzero((np.isfinite(added) & self._pack.within(used, self._pack.limit)).T)
        cost, sums = labels.cost[rows] + added[rows, options], labels.capped[rows]
        bounds = labels.priced[rows] + self._before[j][options] + np.multiply.outer(cost, self._costs)
        if capped is not None:
            sums = sums + (capped.link[j][labels.option[rows], options] if j else capped.enter[options])
            bounds += np.multiply.outer(sums, self._price)
        ok = np.nonzero(_every(bounds < self._limits))[0]
        options, rows = options[ok], rows[ok]
        made = _Labels(
            cost[ok] + chains.fixed[options],
            sums[ok],
            used[rows, options],
            labels.priced[rows] + self._charge[options],
            options,
            np.full(len(rows), j),
            np.arange(self._count, self._count + len(rows)),
        )
        if not len(rows):
            return made
        self._births.append((self._count, j, options, labels.start[rows]))
        self._count += len(rows)
        total = made.cost + chains.stage[options, j, -1] + chains.leave[options]
        if capped is not None:
            whole = made.capped + capped.stage[options, j, -1] + capped.leave[options]
            total = np.where(whole <= chains.limits[-1], total, inf)
        best = int(total.argmin())
        if total[best] < self._best:
            self._best, self._end = float(total[best]), int(made.start[best])
            self._limit()
        return made

    def _found(self, lost: float) -> Beam:
        if self._end < 0:
            return Beam(None, self._best, lost)
        firsts = [birth[0] for birth in self._births]
        at, j = self._end, self._chains.layers
        chain: Stages = []
        while at >= 0:
            first, i, options, before = self._births[bisect_right(firsts, at) - 1]
            chain.append((self._chains.options[int(options[at - first])], i, j))
            at, j = int(before[at - first]), i
        return Beam(chain[::-1], self._best, lost)


def limit_guides(chains: Chains) -> list[Guide]:
    """Bounds on what is left of the cap and of the limit on devices."""
    guides = []
    for r in (-2, -1):
        if np.isfinite(chains.limits[r]):
            prices = np.zeros(len(chains.limits))
            prices[r] = 1.0 / chains.limits[r]
            guides.append(Guide(chains.finite.relax(prices), False))
    return guides


def _every(rows: Bools) -> Bools:
    """Whether all columns hold, for each row: they are few, so one after another."""
    kept: Bools = rows[..., 0].copy()
    for column in range(1, rows.shape[-1]):
        kept &= rows[..., column]
    return kept


def _more(link: Floats) -> Floats:
    """At most how much more it costs to go on from one option than from another, whatever comes next."""
    apart = link[:, None, :] - np.where(np.isfinite(link), link, -inf)[None, :, :]
    worst: Floats = np.where(np.isfinite(link)[None, :, :], apart, -inf).max(axis=2)
    return worst
