"""The host level measured in simulation: rules kept over random workloads, policies compared. Prints JSON.

python -m bench.host                           12,000 random workloads under all policies, and the comparison
python -m bench.host --workloads 100000 --jobs 2
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from bench import show
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.parallel import run_all
from dovetail.host.compat import scheduler as compat
from dovetail.host.inputs.requests import Request
from dovetail.host.inputs.workload import Workload
from dovetail.host.options import HostOptions
from dovetail.host.simulate import run
from dovetail.testing.host import ASSIGNS, PLANS, cases, describe, verify

CHUNK = 1000
# Seconds that one program, a ResNet-56 on a 16-core machine, was recorded to take on so many cores.
CURVE = "table:2=785,3=425,4=313,5=248,8=171,16=101"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=12_000, help="random workloads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    rules = random_workloads(arguments.workloads, arguments.seed, arguments.jobs)
    show({"random": rules, "compared": compared()})


def random_workloads(count: int, seed: int, jobs: int) -> dict[str, Any]:
    """Cores, minima, maxima, idle cores, memory, one end each, figures: how many workloads break a rule."""
    began = time.perf_counter()
    chunks = [(seed * 1_000_003 + i, min(CHUNK, count - i)) for i in range(0, count, CHUNK)]
    found = run_all(partial(_chunk), chunks, jobs)
    ends: dict[str, int] = {}
    for part in found:
        for status, number in part["ends"].items():
            ends[status] = ends.get(status, 0) + number
    broken = [case for part in found for case in part["broken"]]
    took = time.perf_counter() - began
    return {
        "workloads": count,
        "policies": len(PLANS) * len(ASSIGNS),
        "programs": sum(ends.values()),
        "ends": ends,
        "broken": len(broken),
        "first_broken": broken[:1],
        "workloads_per_s": round(count / took, 1),
    }


def _chunk(chunk: tuple[int, int]) -> dict[str, Any]:
    seed, count = chunk
    ends: dict[str, int] = {}
    broken = []
    for i, (rng, workload, options) in enumerate(cases(seed, count)):
        outcome, faults = verify(workload, options, SimExecutor(i, failure_rate=rng.choice((0.0, 0.0, 0.2))))
        for row in outcome.rows:
            ends[row.status] = ends.get(row.status, 0) + 1
        if faults:
            broken.append(describe(workload, options) | {"faults": faults})
    return {"ends": ends, "broken": broken}


def sixty_four() -> Workload:
    requests = [Request(i, "execution", str(i), "resnet", 8, 15.0 * i, i % 5) for i in range(64)]
    return Workload.of(requests, 16, curves={"": CURVE})


def compared() -> dict[str, Any]:
    """64 programs that ask for 8 cores each, by a measured curve, one every 15 s: throughput as a ratio to strict."""
    workload = sixty_four()
    rows: dict[str, Any] = {}
    for profile, plans, assigns in (("legacy", compat.PLANS, compat.ASSIGNS), ("clean", PLANS, ASSIGNS)):
        for plan in plans:
            for assign in assigns:
                least = 1 if assign == "strict" or profile == "legacy" else 2
                options = HostOptions(plan=plan, assign=assign, profile=profile, min_cores=least)  # type: ignore[arg-type]
                totals = run(workload, options).totals
                rows[f"{profile} {options.title}"] = {
                    "throughput_per_h": round(totals.throughput_per_h, 2),
                    "mean_turnaround_s": round(totals.mean_turnaround_s, 1),
                    "core_use": round(totals.core_use, 3),
                }
    base = rows["clean fcfs+strict"]["throughput_per_h"]
    for row in rows.values():
        row["ratio_to_strict"] = round(row["throughput_per_h"] / base, 3)
    return rows


if __name__ == "__main__":
    main()
