"""What stages and links cost the general planner, under the constraints and a cap on the bottleneck."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf

import numpy as np

from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.furthest import Prober
from dovetail.pipeline.optimise.labels import CostChain, Option
from dovetail.pipeline.optimise.tables import Floats, Tables, data_s
from dovetail.pipeline.plan import Constraints


class StageCosts:
    """Chains of costs for the general planner: options, and what stages and links cost under an objective."""

    def __init__(self, tables: Tables, constraints: Constraints) -> None:
        self.tables = tables
        p = tables.pipeline
        self.options = [
            Option(k, r)
            for k, count in enumerate(tables.counts)
            for r in range(1, min(constraints.replicas, count) + 1)
        ]
        # Replicas take turns: they divide the pace of a stage and its links, not the time of one microbatch.
        self.single = [self._times(o.k, constraints) for o in self.options]
        self.compute = [times / o.devices for times, o in zip(self.single, self.options, strict=True)]
        scale = min(constraints.link_bits) / 32
        wait_s = np.array(p.link_s) if p.link_s else np.zeros((len(p.classes), len(p.classes)))
        sent = (tables.transfers - wait_s[:, :, None]) * scale
        self.link_single = [[sent[u.k, v.k] + wait_s[u.k, v.k] for v in self.options] for u in self.options]
        self.link = [
            [(sent[u.k, v.k] + wait_s[u.k, v.k]) / min(u.devices, v.devices) for v in self.options]
            for u in self.options
        ]
        enter = [data_s(p, o.k, 0, constraints.data_mbps) for o in self.options]
        leave = [data_s(p, o.k, p.layers, constraints.data_mbps) for o in self.options]
        self.enter = [inf if _barred(p, o.k, constraints.first) else enter[i] for i, o in enumerate(self.options)]
        self.leave = [inf if _barred(p, o.k, constraints.last) else leave[i] for i, o in enumerate(self.options)]
        self.max_devices = constraints.max_stages
        if constraints.first is not None and constraints.first == constraints.last:
            self.link = [[np.full_like(x, inf) for x in row] for row in self.link]  # one host, so one stage

    def _times(self, k: int, constraints: Constraints) -> Floats:
        """Times of intervals on a class; the whole model is none where two hosts of the class must hold its ends."""
        times: Floats = self.tables.compute[k]
        if len(set(constraints.pinned)) == 2 and set(constraints.pinned) <= set(self.tables.pipeline.classes[k].hosts):
            times = times.copy()
            times[0, -1] = inf
        return times

    def chain(self, cap_s: float, cost: Callable[[int], Floats] | None = None) -> CostChain:
        """A chain with everything above the cap forbidden. Without `cost`, stages and links cost their pace; with it,
        stages cost `cost(option)` and links nothing."""
        cap_s = min(cap_s, sys.float_info.max)  # what is forbidden stays so without a cap
        stages = [np.where(t <= cap_s, t if cost is None else cost(i), inf) for i, t in enumerate(self.compute)]
        links = [[np.where(x <= cap_s, x if cost is None else 0.0, inf) for x in row] for row in self.link]
        enter, leave = (
            [inf if x > cap_s else x if cost is None else 0.0 for x in side] for side in (self.enter, self.leave)
        )
        return CostChain(self.options, self.tables.counts, stages, links, enter, leave, self.max_devices)

    def latency_chain(self, cap_s: float) -> CostChain:
        """A chain with everything above the cap forbidden, where stages and links cost what one microbatch waits."""
        chain = self.chain(cap_s)
        chain.stage = [np.where(np.isfinite(a), b, inf) for a, b in zip(chain.stage, self.single, strict=True)]
        chain.link = [
            [np.where(np.isfinite(a), b, inf) for a, b in zip(row, alone, strict=True)]
            for row, alone in zip(chain.link, self.link_single, strict=True)
        ]
        return chain

    @property
    def work(self) -> float:
        return Prober.size(self.tables.counts) * len(self.options) * float(self.tables.layers + 1) ** 2


def _barred(p: Pipeline, k: int, host: str | None) -> bool:
    return host is not None and host not in p.classes[k].hosts
