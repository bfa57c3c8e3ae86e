"""Every plan of a small problem, one after another: what the planner is held against in tests and benchmarks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf, isfinite
from typing import NamedTuple

from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise.tables import Tables, data_s


class PlanFigures(NamedTuple):
    """What a plan gives, computed stage by stage."""

    bottleneck_s: float
    latency_s: float
    devices: int
    energy_j: float
    money: float


StageList = list[tuple[int, int, int, int]]  # class, replicas, first cut, last cut


def every_plan(tables: Tables, replicas: int = 1) -> Iterator[StageList]:
    """All chains of stages that fit, whatever their links."""
    counts = list(tables.counts)
    stages: StageList = []

    def extend(start: int) -> Iterator[StageList]:
        if start == tables.layers:
            yield list(stages)
            return
        for k, count in enumerate(counts):
            for used in range(1, min(replicas, count) + 1):
                for end in range(start + 1, tables.layers + 1):
                    if isfinite(tables.compute[k, start, end]):
                        counts[k] -= used
                        stages.append((k, used, start, end))
                        yield from extend(end)
                        stages.pop()
                        counts[k] += used

    yield from extend(0)


def evaluate(tables: Tables, stages: StageList, data_mbps: float | None = None) -> PlanFigures:
    """PlanFigures from first principles: a plain loop over stages and links."""
    p = tables.pipeline
    ends_s = [data_s(p, stages[0][0], 0, data_mbps), data_s(p, stages[-1][0], p.layers, data_mbps)]
    pace_s, latency_s = max(ends_s), sum(ends_s)
    for x, (k, used, i, j) in enumerate(stages):
        run_s = float(tables.compute[k, i, j])
        pace_s, latency_s = max(pace_s, run_s / used), latency_s + run_s
        if x:
            u, before, _, _ = stages[x - 1]
            send_s = float(tables.transfers[u, k, i])
            pace_s = max(pace_s, send_s / min(before, used))
            latency_s += send_s
    energy = money = 0.0
    for k, used, i, j in stages:
        c = p.classes[k]
        busy_s = float(tables.compute[k, i, j]) / used
        energy += used * (busy_s * (c.watts_busy - c.watts_idle) + (pace_s * c.watts_idle if pace_s < inf else 0.0))
        money += used * c.price_per_hour / 3600 * (pace_s if pace_s < inf else 0.0)
    used_devices = sum(used for _, used, _, _ in stages)
    return PlanFigures(pace_s, latency_s, used_devices, energy / p.batch_size, money / p.batch_size)


def random_pipeline(seed: int, links: bool = False) -> Pipeline:
    """A small problem that tries everything: tight memory, dead links, free layers, equal times."""
    rng = random.Random(seed)
    layers = rng.randint(1, 6)
    classes = [
        DeviceClass(
            name=f"type{k}",
            type=f"type{k}",
            hosts=[f"host{k}-{i}" for i in range(rng.randint(1, 3))],
            bw_mbps=rng.choice([0, 1, 10, 100, 1000]),
            mem_mib=rng.choice([3, 8, 15, 40, 100]),
            time_s=[rng.choice([0.0, 0.1, 0.5, 1.3, rng.random()]) for _ in range(layers)],
            watts_busy=rng.choice([5.0, 10.0, 100.0]),
            watts_idle=rng.choice([1.0, 5.0]),
            price_per_hour=rng.choice([1.0, 2.0, 10.0]),
        )
        for k in range(rng.randint(1, 3))
    ]
    table = range(len(classes))
    return Pipeline(
        model="random",
        layers=layers,
        mem_mib=[rng.choice([1.0, 2.0, 5.0, 10.5]) for _ in range(layers)],
        cut_bytes=[rng.choice([0, 1, 10, 100]) * 100_000 for _ in range(layers + 1)],
        classes=classes,
        batch_size=rng.choice([1, 4]),
        dtype="torch.float32",
        buffers_in=rng.choice([0, 1, 2]),
        buffers_out=rng.choice([0, 1, 2]),
        link_mbps=[[rng.choice([0.0, 1.0, 10.0, 1000.0]) for _ in table] for _ in table] if links else None,
        link_s=[[rng.choice([0.0, 0.05]) for _ in table] for _ in table] if links else None,
    )
