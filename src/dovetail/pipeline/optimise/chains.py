"""The one problem behind every objective: the cheapest chain of stages under counts of devices, a cap and a limit.

At a fixed pace all costs add up, and all that is shared (devices of each class, the latency, devices in all) does too.
So a chain is a path through (cut, option), and what is shared are resources of the path. With a price on each resource
the cheapest path is one backward pass, and what it costs less the prices of what there is bounds every allowed chain
from below, whatever the prices (Lagrangian relaxation).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from dovetail.pipeline.optimise.stages import Option, Stages
from dovetail.pipeline.optimise.tables import Floats

LIMIT = 1 + 5e-10  # of a cap: sums differ by rounding with the order in which they are added
NEAR = 1e-10  # chains that are cheaper by less, relatively, are not looked for
EXACT = 1 + 1e-13
UNLIKE = 12  # classes of devices from which on few chains dominate others, and prices have too many dimensions


def unlike(counts: Sequence[int]) -> bool:
    """Whether a pool has so many classes of devices that it is searched in other ways.

    >>> unlike([64, 64]), unlike([1] * 40)
    (False, True)
    """
    return len(counts) >= UNLIKE


class Capped(Struct):
    """A second cost of stages and links, whose sum may not exceed `cap`."""

    stage: Floats
    link: Floats
    enter: Floats
    leave: Floats
    cap: float


class Chains(Struct, dict=True):
    """Costs by option: `stage[o, i, j]`, `link[j, u, v]`, of entering and leaving, and `fixed` of each stage; infinite
    is forbidden."""

    options: list[Option]
    counts: list[int]
    stage: Floats
    link: Floats
    enter: Floats
    leave: Floats
    fixed: Floats
    capped: Capped | None = None
    max_devices: int | None = None
    whole: bool = False  # costs are whole numbers

    @property
    def layers(self) -> int:
        return int(self.stage.shape[1]) - 1

    @cached_property
    def use(self) -> Floats:
        """What one stage of each option takes of each resource: devices of each class, devices in all; last the cap,
        of which a stage takes what its table says."""
        use = np.zeros((len(self.options), len(self.counts) + 2))
        for o, option in enumerate(self.options):
            use[o, option.k] = use[o, -2] = option.devices
        return use

    @cached_property
    def limits(self) -> Floats:
        """How much there is of each resource; a limit that cannot bind is infinite."""
        most = sum(self.counts)
        devices = np.inf if self.max_devices is None or self.max_devices >= most else float(self.max_devices)
        return np.array([*map(float, self.counts), devices, np.inf if self.capped is None else self.capped.cap * LIMIT])

    @property
    def cap(self) -> int:
        """Which resource the cap is."""
        return len(self.counts) + 1

    @cached_property
    def priced(self) -> list[int]:
        """The resources that are limited."""
        return [int(r) for r in np.nonzero(np.isfinite(self.limits))[0]]

    @cached_property
    def finite(self) -> Chains:
        """The same chains where they cost nothing: what is forbidden stays so."""
        stage = np.full_like(self.stage, np.inf)
        stage[self.stage < np.inf] = 0.0
        free = Chains(
            self.options,
            self.counts,
            stage,
            np.where(np.isfinite(self.link), 0.0, np.inf),
            np.where(np.isfinite(self.enter), 0.0, np.inf),
            np.where(np.isfinite(self.leave), 0.0, np.inf),
            np.zeros_like(self.fixed),
            self.capped,
            self.max_devices,
        )
        free.__dict__["reach"] = self.reach
        return free

    @cached_property
    def reach(self) -> list[int]:
        """The last cut at which a stage that starts at each cut may end; the cut itself if there is none."""
        finite = np.asarray(np.isfinite(self.stage).any(axis=0))
        last = self.layers - np.argmax(finite[:, ::-1], axis=1)
        return [int(j) for j in np.where(finite.any(axis=1), last, np.arange(self.layers + 1))]

    @cached_property
    def _bands(self) -> tuple[list[int], Floats, Floats | None]:
        """The stages that start at each cut, up to the last that may, as rows of options: where the rows of each cut
        begin, what they cost, and what they take of the cap."""
        first, ends = [0], []
        for i, j in enumerate(self.reach):
            ends.append(np.arange(i + 1, j + 1))
            first.append(first[-1] + j - i)
        begin, end = np.repeat(np.arange(self.layers + 1), np.diff(first)), np.concatenate(ends)
        capped = None if self.capped is None else np.ascontiguousarray(self.capped.stage[:, begin, end].T)
        return first, np.ascontiguousarray(self.stage[:, begin, end].T), capped

    @cached_property
    def _links(self) -> tuple[Floats, Floats | None]:
        """The links by cut, second and first option: what they cost, and what they take of the cap."""
        capped = None if self.capped is None else np.ascontiguousarray(self.capped.link.transpose(0, 2, 1))
        return np.ascontiguousarray(self.link.transpose(0, 2, 1)), capped

    def relax(self, prices: Floats) -> Relaxed:
        """The cheapest chain when resources have these prices, and what it costs from every cut on."""
        c, price, reach = self.capped, float(prices[-1]), self.reach
        first, stage, capped_stage = self._bands
        link, capped_link = self._links
        enter, leave = self.enter, self.leave
        if c is not None and capped_stage is not None and capped_link is not None and price:
            stage, link = stage + price * capped_stage, link + price * capped_link
            enter, leave = enter + price * c.enter, leave + price * c.leave
        charge = self.use @ prices + self.fixed
        after = np.full((self.layers + 1, len(self.options)), np.inf)
        start = np.full_like(after, np.inf)
        after[-1] = leave
        for i in range(self.layers - 1, -1, -1):
            if reach[i] > i:
                here = start[i]
                np.minimum.reduce(stage[first[i] : first[i + 1]] + after[i + 1 : reach[i] + 1], axis=0, out=here)
                here += charge
                if i:
                    np.minimum.reduce(link[i] + here[:, None], axis=0, out=after[i])
        whole = enter + start[0]
        o, i = int(whole.argmin()), 0
        limited = self.limits[self.priced]
        base = -float(prices[self.priced] @ limited)
        chain: Stages = []
        if np.isfinite(whole[o]):
            while True:
                j = i + 1 + int((stage[first[i] : first[i + 1], o] + after[i + 1 : reach[i] + 1, o]).argmin())
                chain.append((self.options[o], i, j))
                if j == self.layers:
                    break
                o, i = int((link[j, :, o] + start[j]).argmin()), j
        return Relaxed(float(whole.min()) + base, prices, base, charge - self.fixed, after.T, start.T, chain)

    @cached_property
    def _numbers(self) -> dict[Option, int]:
        return {option: o for o, option in enumerate(self.options)}

    def figures(self, chain: Stages) -> tuple[float, Floats]:
        """What a chain costs, and what it takes of each resource."""
        o = np.array([self._numbers[option] for option, _, _ in chain])
        i, j = np.array([(i, j) for _, i, j in chain]).T
        use = self.use[o].sum(axis=0)
        c = self.capped
        if c is not None:
            use[-1] = _along(c.enter[o[0]] + c.leave[o[-1]], c.stage[o, i, j], c.link[i[1:], o[:-1], o[1:]])
        stages = self.stage[o, i, j] + self.fixed[o]
        return _along(self.enter[o[0]] + self.leave[o[-1]], stages, self.link[i[1:], o[:-1], o[1:]]), use

    def below(self, value: float) -> float:
        """What a bound must reach so that nothing is found below a value; what is nearer does not count."""
        return value - (1 - 1e-6 if self.whole else NEAR * abs(value)) if value < np.inf else np.inf

    def allows(self, chain: Stages) -> bool:
        """Whether nothing about a chain is forbidden, and it keeps all limits."""
        cost, use = self.figures(chain)
        return bool(np.isfinite(cost)) and self.allowed(use)

    def allowed(self, use: Floats) -> bool:
        """Whether a chain keeps all limits."""
        return bool((use <= self.limits * EXACT).all())


def _along(ends: float, stages: Floats, links: Floats) -> float:
    """The sum of both ends, and of stages and links one after another."""
    total = float(ends)
    for stage, link in zip(stages.tolist(), [0.0, *links.tolist()], strict=True):
        total += stage
        total += link
    return total


class Relaxed(NamedTuple):
    """A bound on every allowed chain, at some prices of resources; and what it comes from."""

    value: float
    prices: Floats
    base: float  # what there is of the resources, at these prices: taken off
    charge: Floats  # prices of what a stage of each option takes
    after: Floats  # least cost from a cut on, behind a stage of an option that ends there
    start: Floats  # the same before a stage of an option that starts there
    chain: Stages  # the cheapest; empty if there is none at all
