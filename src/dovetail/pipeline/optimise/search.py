"""The search for the best chain of stages, one way per objective.

The least bottleneck under the plain rule of links is found by `furthest`; everything else by `labels`, with a cap on
the bottleneck where the objective needs one. Both are exact. Pools too large for that get a plan with a proven gap.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from dovetail.core.errors import InputError
from dovetail.pipeline.optimise.costs import StageCosts
from dovetail.pipeline.optimise.furthest import Prober, capacity_bound, least_bottleneck
from dovetail.pipeline.optimise.labels import CheapestChain, Found, Option, cheapest
from dovetail.pipeline.optimise.ordered import best_in_order, improve_order
from dovetail.pipeline.optimise.tables import Floats, Tables
from dovetail.pipeline.plan import Constraints, Objective

LABEL_WORK = 4e8  # additions up to which the general planner is used
_PROBE_SIZE = 2e8  # count vectors (bytes) up to which a probe is used


class Search:
    """Finds the best chain for an objective."""

    def __init__(self, tables: Tables, constraints: Constraints) -> None:
        self.tables = tables
        self.constraints = constraints
        self.costs = StageCosts(tables, constraints)
        self._latency: dict[float, CheapestChain | None] = {}

    def run(self, objective: Objective, microbatches: int, slack: float) -> Found | None:
        if objective == "throughput":
            return self._throughput()
        if self.costs.work > LABEL_WORK:
            raise InputError(
                f"objective {objective} is exact only up to some {LABEL_WORK:.0e} additions; this pool and model need "
                f"{self.costs.work:.0e}: use fewer devices or types, or objective throughput"
            )
        if objective == "latency":
            return _best(self.latency(inf))
        least = self._throughput()
        found = None if least is None else self._under(objective, least, microbatches, slack)
        return None if least is None or found is None else found._replace(probes=least.probes)

    def _under(self, objective: Objective, least: Found, microbatches: int, slack: float) -> Found | None:
        """The best for an objective that depends on the least bottleneck."""
        assert least.value is not None
        least_s = least.value
        if objective == "devices":
            options = self.costs.options
            chain = self.costs.chain(least_s * (1 + slack), lambda i: np.asarray(float(options[i].devices)))
            return _best(cheapest(chain, "sum"))
        if objective == "batch":
            return self._over_caps(least_s, lambda cap: self.latency(cap), lambda cap: (microbatches - 1) * cap)
        return self._spent(objective, least_s)

    def _throughput(self) -> Found | None:
        """The least bottleneck, with as few devices as it allows where that can be had exactly."""
        cap = self.constraints.latency_cap_s
        if self.constraints.plain and self.tables.pipeline.link_mbps is None and self.constraints.link_bits == (32,):
            if Prober.size(self.tables.counts) > _PROBE_SIZE:
                return self._anytime()
            prober = Prober(self.tables)
            value, probes = least_bottleneck(self.tables, prober)
            if value is None:
                return None
            stages = [(Option(k), i, j) for k, i, j in prober.stages(value)]
            return Found.best(stages, value, probes)
        if self.costs.work > LABEL_WORK:
            return self._anytime()
        best = cheapest(self.costs.chain(inf), "max")
        if best is None or cap is None:
            return _best(best)
        return self._capped(best.value, cap)

    def latency(self, cap_s: float) -> CheapestChain | None:
        """The least latency of one microbatch with no stage or link above the cap."""
        if cap_s not in self._latency:
            self._latency[cap_s] = cheapest(self.costs.latency_chain(cap_s), "sum")
        return self._latency[cap_s]

    def _capped(self, least_s: float, latency_cap_s: float) -> Found | None:
        """The least bottleneck with a latency within a cap: latency falls as the bottleneck may rise."""
        candidates = self.candidates(least_s)
        low, high = 0, len(candidates) - 1
        loosest = self.latency(float(candidates[-1]))
        most_s = latency_cap_s * (1 + 1e-12)  # sums differ by rounding with the order in which they are added
        if loosest is None or loosest.value > most_s:
            return None
        while low < high:
            middle = (low + high) // 2
            best = self.latency(float(candidates[middle]))
            if best is not None and best.value <= most_s:
                high = middle
            else:
                low = middle + 1
        value = float(candidates[high])
        best = self.latency(value)
        assert best is not None
        return Found.best(best.stages, value)

    def candidates(self, least_s: float) -> Floats:
        """All values that the bottleneck can have, from the least on."""
        values = [x[np.isfinite(x)] for x in self.costs.compute]
        values += [x[np.isfinite(x)] for row in self.costs.link for x in row]
        values.append(np.array([x for x in (*self.costs.enter, *self.costs.leave) if x < inf]))
        every = np.unique(np.concatenate(values))
        return every[every >= least_s]

    def _over_caps(
        self, least_s: float, under: Callable[[float], CheapestChain | None], extra: Callable[[float], float]
    ) -> Found | None:
        """Minimise under(cap) + extra(cap), where `under` falls and `extra` grows with the cap: intervals of caps whose
        best possible sum is no better than the best known are dropped, the others halved."""
        caps = self.candidates(least_s)
        known: dict[int, float] = {}
        best: tuple[float, int] | None = None

        def value(i: int) -> float:
            nonlocal best
            if i not in known:
                found = under(float(caps[i]))
                known[i] = inf if found is None else found.value
                total = known[i] + extra(float(caps[i]))
                if best is None or total < best[0]:
                    best = (total, i)
            return known[i]

        open_intervals = [(0, len(caps) - 1)]
        value(0), value(len(caps) - 1)
        while open_intervals:
            low, high = open_intervals.pop()
            if high - low < 2 or value(low) == value(high):
                continue
            assert best is not None
            if value(high) + extra(float(caps[low + 1])) >= best[0]:
                continue
            middle = (low + high) // 2
            value(middle)
            open_intervals += [(low, middle), (middle, high)]
        assert best is not None
        if best[0] == inf:
            return None
        found = under(float(caps[best[1]]))
        assert found is not None
        return Found.best(found.stages, best[0])

    def _spent(self, objective: Objective, least_s: float) -> Found | None:
        """Joules or money per item: what devices spend while busy, and while they wait for the slowest."""
        classes, items = self.tables.pipeline.classes, self.tables.pipeline.batch_size
        idle, busy = [], []
        for option in self.costs.options:
            c = classes[option.k]
            if objective == "energy":
                idle.append(c.watts_idle * option.devices / items)
                busy.append((c.watts_busy - c.watts_idle) * option.devices / items)
            else:
                idle.append(c.price_per_hour / 3600 * option.devices / items)
                busy.append(0.0)
        if not any(idle) and not any(busy):
            need = "watts_busy and watts_idle" if objective == "energy" else "price_per_hour"
            raise InputError(f"objective {objective} needs {need} of the device types")
        caps = self.candidates(least_s)
        best: tuple[float, CheapestChain] | None = None

        def spend(cap: float, waited: float) -> CheapestChain | None:
            def price(i: int) -> Floats:
                times = self.costs.compute[i]
                return np.where(np.isfinite(times), times, 0.0) * busy[i] + waited * idle[i]

            return cheapest(self.costs.chain(cap, price), "sum")

        open_intervals = [(0, len(caps) - 1)]
        while open_intervals:
            low, high = open_intervals.pop()
            bound = spend(float(caps[high]), float(caps[low]))
            if bound is None or (best is not None and bound.value >= best[0] * (1 - 1e-12)):
                continue
            actual = spend(float(caps[high]), float(caps[high])) if low < high else bound
            if actual is not None and (best is None or actual.value < best[0]):
                best = (actual.value, actual)
            if low < high:
                middle = (low + high) // 2
                open_intervals += [(middle + 1, high), (low, middle)]
        return None if best is None else Found.best(best[1].stages, best[0])

    def _anytime(self) -> Found | None:
        """Too large for proof: the best order found by local search, beside the capacity bound."""
        if not self.constraints.plain:
            raise InputError("constraints on a pool of this size are more than the exact planner can take")
        first = capacity_bound(self.tables)
        if first >= len(self.tables.candidates):
            return None
        bound = float(self.tables.candidates[first])
        order = [k for k, count in enumerate(self.tables.counts) for _ in range(count)]
        found = improve_order(self.tables, order)
        if found is None:
            found = best_in_order(self.tables, order)
        if found is None:
            return None
        value, stages = found
        return Found([(Option(k), i, j) for k, i, j in stages], value, bound, value <= bound, "local search")


def _best(chain: CheapestChain | None) -> Found | None:
    return None if chain is None else Found.best(chain.stages, chain.value)
