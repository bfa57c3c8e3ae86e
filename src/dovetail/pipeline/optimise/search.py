"""The search for the best chain of stages, one way per objective, for as long as the clock allows.

The least bottleneck under the plain rule of links is found by `furthest` where the pool is small. All else is the
cheapest chain at a pace (`cheapest`): at one pace for latency and devices, over intervals of paces for the others.
"""

from __future__ import annotations

from math import inf

from dovetail.pipeline.optimise.cheapest import BoundedChain, CheapestChain
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.fewest import FewestDevices
from dovetail.pipeline.optimise.furthest import Prober, least_bottleneck
from dovetail.pipeline.optimise.intervals import Intervals
from dovetail.pipeline.optimise.paces import LeastPace
from dovetail.pipeline.optimise.stages import Option
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Objective

_PACE_SHARE = 0.5  # of the time, for the pace that a slack is added to
_AGAIN = 1.2  # of what it took to find few devices, kept to look for them once more
_PROBE_SIZE = 3e6  # count vectors (bytes) up to which a probe is used


class Search:
    """Finds the best chain for an objective: the best one known when time is over, with what none can beat."""

    def __init__(self, tables: Tables, constraints: Constraints, clock: SearchClock) -> None:
        self.tables = tables
        self.constraints = constraints
        self.clock = clock
        self.costs = Costs(tables, constraints)
        self.probes = 0
        self._paces: LeastPace | None = None  # the search for the least bottleneck, which can go on
        self.pace_gap = 0.0  # how far above the least the bottleneck may be that a slack is added to

    def run(self, objective: Objective, microbatches: int = 1, slack: float = 0.0) -> BoundedChain:
        """The best chain. Without one, an infinite bound proves that there is none."""
        if not len(self.costs.paces):
            return BoundedChain(None, inf, inf)
        if objective == "throughput":
            return self.throughput()
        if objective == "latency":
            return self.least("latency")
        if objective == "devices":
            return self._devices(slack)
        return Intervals(self.costs, self.costs.tariff(objective, microbatches), self.clock).run()

    def least(self, objective: Objective, pace_s: float = inf, max_devices: int | None = None) -> BoundedChain:
        """The least latency, or the fewest devices, of chains of at most this pace and so many devices."""
        tariff = self.costs.tariff(objective)
        return CheapestChain(self.costs.chains(tariff, 0.0, pace_s, max_devices), self.clock, tell=True).run()

    def throughput(self, clock: SearchClock | None = None) -> BoundedChain:
        """The least bottleneck."""
        if self.plain and Prober.size(self.tables.counts) <= _PROBE_SIZE:
            prober = Prober(self.tables)
            value, self.probes = least_bottleneck(self.tables, prober)
            if value is None:
                return BoundedChain(None, inf, inf)
            return BoundedChain([(Option(k), i, j) for k, i, j in prober.stages(value)], value, value)
        self._paces = LeastPace(self.costs, clock or self.clock)
        return self._paces.run()

    def any(self) -> BoundedChain:
        """Some chain, or the proof that there is none."""
        if not len(self.costs.paces):
            return BoundedChain(None, inf, inf)
        return LeastPace(self.costs, self.clock).any()

    @property
    def plain(self) -> bool:
        """Whether links are as fast as their slower ends, and nothing but cuts is asked for."""
        return self.constraints.plain and self.tables.pipeline.link_mbps is None

    def _devices(self, slack: float) -> BoundedChain:
        """The fewest devices within a slack of the least bottleneck: of the best one known, if that is not proven.

        None needs fewer than what that allows. With as few within the slack of a bottleneck that is proven to be no
        more than the least, the answer is proven all the same.
        """
        least = self.throughput(self.clock.part(_PACE_SHARE * self.clock.left_s))
        if least.stages is None and least.bound < inf and self._paces is not None:
            least = self._paces.go_on(self.clock.part(_PACE_SHARE * self.clock.left_s))
        if least.stages is None:
            return least
        before_s = self.clock.left_s
        found = self._few(least, slack)
        if least.closed:
            return found
        # Where few devices were proven at once, the time that is left is the pace's: but for as long as that took.
        spare_s = self.clock.left_s - _AGAIN * (before_s - self.clock.left_s)
        if self._paces is not None and found.closed and spare_s > 0:
            better = self._paces.go_on(self.clock.part(spare_s))
            again = self._few(better, slack) if better.value < least.value else found
            if again.closed:
                least, found = better, again
            least = least._replace(bound=max(least.bound, better.bound))
        if least.closed:
            return found
        sure_s = least.bound * (1 + slack)
        assert found.stages is not None
        if self.costs.pace_s(found.stages) > sure_s:
            surely = self.least("devices", sure_s)
            if surely.stages is None or surely.value > found.value:
                self.pace_gap = least.value / least.bound - 1 if least.bound > 0 else inf
                return found._replace(proven=False)
            found = found._replace(stages=surely.stages)
        return found

    def _few(self, least: BoundedChain, slack: float) -> BoundedChain:
        """The fewest devices within a slack of a pace; that pace's own chain if none with fewer is found in time."""
        assert least.stages is not None
        return FewestDevices(self.costs, self.clock, least.value * (1 + slack) * (1 + 5e-10), least.stages).run()
