"""The pipeline planner at every size: how soon there is a plan, how near it is to the best, and when that is proven.
Prints JSON, or with --table rows for a page.

    python -m bench.pipeline_anytime                               all pools; CPU seconds of one thread
    python -m bench.pipeline_anytime --only "4x16x96" --seeds 4 5

Pools: types up to 15 times apart in speed. std: ample memory; fit: so tight that a quarter to a third of all devices is
needed at least; odd: each type has its own layer profile; net: slow links; unlike: all devices different, with a table
of links between them. Under "limits" a plan has a cap on latency, a floor on throughput and at most three quarters of
the devices; under "all" also replicas, both ends pinned, a data host, and links of 8, 16 or 32 bits with a table.
"""

from __future__ import annotations

import argparse
import random
import time
from math import inf
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import patch

from msgspec.structs import replace

from bench import show
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise import clock
from dovetail.pipeline.plan import Constraints, Objective, Plan
from dovetail.pipeline.planner import plan

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
SIZES = {  # types, devices, layers, the kinds, CPU seconds at most
    "4x16x96": (4, 64, 96, ("std", "fit", "odd", "net"), 10.0),
    "10x512x256": (10, 512, 256, ("std", "fit", "odd", "net"), 20.0),
    "40x96": (40, 40, 96, ("unlike",), 30.0),
}
LIMITS = ("none", "limits", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--kinds", nargs="+", help="of these kinds of pool only")
    parser.add_argument("--limits", choices=LIMITS, nargs="+", default=LIMITS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--objectives", choices=OBJECTIVES, nargs="+", default=OBJECTIVES)
    parser.add_argument("--cpu-s", type=float, help="at most so long for a plan")
    parser.add_argument("--table", action="store_true", help="rows of a page instead of JSON")
    words = parser.parse_args()
    sizes: dict[str, Any] = {}
    for size in words.only:
        types, devices, layers, kinds, most_s = SIZES[size]
        rows = {}
        for kind in kinds:
            for limits in words.limits if not words.kinds or kind in words.kinds else ():
                for seed in words.seeds:
                    problem = pool(kind, types, devices, layers, seed, links=limits == "all")
                    asked = constraints(problem, limits)
                    row = {o: measure(problem, o, asked, words.cpu_s or most_s) for o in words.objectives}
                    rows[f"{kind}, {limits}, seed {seed}"] = row
                    if words.table:
                        print(f"| {size} {kind} | {limits} | {' | '.join(map(told, row.values()))} |", flush=True)
        cells = [cell for row in rows.values() for cell in row.values()]
        gaps = [inf if cell["gap_percent"] is None else cell["gap_percent"] for cell in cells]
        sizes[size] = {
            "cells": len(cells),
            "proven": sum(cell["proven"] for cell in cells),
            "largest_gap_percent": max(gaps, default=None),
            "most_cpu_s": max((cell["cpu_s"] for cell in cells), default=None),
            "rows": rows,
        }
    if not words.table:
        show(sizes)


def told(cell: dict[str, Any]) -> str:
    """A cell of the page: CPU seconds to the first plan, and to the proof or, with what is left, to the end."""
    if cell["proven"]:
        return f"{cell['first_s']:.2f}; {cell['cpu_s']:.2f}" if cell["gap_percent"] is not None else "none"
    gap = "no plan" if cell["gap_percent"] is None else f"{cell['gap_percent']:.1f} %"
    return f"{cell['first_s'] or 0:.2f}; **{gap}** after {cell['cpu_s']:.0f}"


def measure(problem: Pipeline, objective: Objective, asked: Constraints, most_s: float) -> dict[str, Any]:
    """One plan: CPU seconds to the first one known, in all, and what is proven in the end."""
    begin = time.process_time()
    first: list[float] = []

    def tell(best: float, bound: float) -> None:
        if best < inf and not first:
            first.append(time.process_time() - begin)

    with patch.object(clock, "time", SimpleNamespace(monotonic=time.process_time)):  # a limit is one of CPU seconds
        made = plan(problem, objective, asked, slack=0.05, time_limit_s=most_s, progress=tell)
    cpu_s = time.process_time() - begin
    if isinstance(made, Plan):
        gap = None if made.gap is None else 100 * made.gap
        return {"first_s": first[0] if first else cpu_s, "cpu_s": cpu_s, "gap_percent": gap, "proven": made.optimal}
    return {"first_s": None, "cpu_s": cpu_s, "gap_percent": None, "proven": False, "reasons": made.reasons}


def pool(kind: str, types: int, devices: int, layers: int, seed: int, links: bool = False) -> Pipeline:
    """A pool of one kind, by its seed."""
    rng = random.Random(f"{kind} {types} {devices} {layers} {seed}")
    work = [rng.uniform(0.5, 1.5) for _ in range(layers)]
    mem = [rng.uniform(100.0, 300.0) for _ in range(layers)]
    classes = []
    for k in range(types):
        count = devices // types + (k < devices % types)
        speed = 15 ** (k / (types - 1)) * rng.uniform(0.8, 1.25)
        spread = (0.4, 2.5) if kind == "odd" else (0.95, 1.05)
        tight = kind == "fit" or (kind == "unlike" and seed % 2)
        room = sum(mem) / devices * rng.uniform(2.5, 5.0) if tight else sum(mem) * rng.uniform(0.3, 1.2)
        watts = 30 * speed**0.7 * rng.uniform(0.7, 1.4)
        classes.append(
            DeviceClass(
                name=f"t{k}",
                type=f"t{k}",
                hosts=[f"t{k}-{n}" for n in range(count)],
                bw_mbps=float(rng.choice([20, 50, 100, 300] if kind == "net" else [1000, 2500, 10000])),
                mem_mib=max(room, max(mem) + 50.0),
                time_s=[0.01 * w / speed * rng.uniform(*spread) for w in work],
                watts_busy=watts,
                watts_idle=watts * rng.uniform(0.1, 0.4),
                price_per_hour=speed**0.8 * rng.uniform(0.5, 2.0),
            )
        )
    table = links or kind == "unlike"
    mbps = [[rng.uniform(500.0, 5000.0) for _ in classes] for _ in classes] if table else None
    seconds = [[rng.choice([0.0, 0.0005, 0.002]) for _ in classes] for _ in classes] if table else None
    return Pipeline(
        model=kind,
        layers=layers,
        mem_mib=mem,
        cut_bytes=[int(rng.choice([1, 1, 4]) * rng.uniform(0.5, 1.5) * 2**20) for _ in range(layers + 1)],
        classes=classes,
        batch_size=8,
        dtype="torch.float32",
        link_mbps=mbps,
        link_s=seconds,
    )


def constraints(problem: Pipeline, limits: str) -> Constraints:
    """What a plan must keep, from what is possible without it."""
    if limits == "none":
        return Constraints()
    asked = Constraints(max_stages=3 * len(problem.hosts) // 4)
    if limits == "all":
        first, last = problem.classes[1].hosts[0], problem.classes[-1].hosts[-1]
        asked = replace(asked, first=first, last=last, replicas=3, data_mbps=2000.0, link_bits=(8, 16, 32))
    quick = plan(problem, "latency", asked, time_limit_s=30.0)
    if isinstance(quick, Plan):
        asked = replace(asked, latency_cap_s=1.3 * quick.latency_s)
    fast = plan(problem, "throughput", asked, time_limit_s=30.0)
    if isinstance(fast, Plan):
        asked = replace(asked, throughput_floor_items_s=0.7 * fast.throughput_items_s)
    return asked


if __name__ == "__main__":
    main()
