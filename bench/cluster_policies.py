"""Single decisions of the cluster policies measured: CPU time per call, cold and warm. Prints JSON.

    python -m bench.cluster_policies                     every case
    python -m bench.cluster_policies --only paper packed

Between calls one job leaves and another comes, and the steps left shrink. The ratio is to what Gavel's policy took for
a call of that size (cvxpy and ECOS, another machine of the same kind): for orientation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench import show
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Problem
from dovetail.testing.cluster.problems import random_problem

ClusterCase = tuple[str, dict[str, Any], int, float | None]  # policy, problem, calls, recorded seconds of a call
PAPER: dict[str, Any] = {"jobs": 70, "kinds": 26, "counts": (36, 36, 36)}
TRACE: dict[str, Any] = {"jobs": 48, "kinds": 26, "counts": (8, 16, 24), "pairs": True}
CASES: dict[str, list[ClusterCase]] = {
    "paper": [
        ("max_min_fairness", PAPER, 500, None),
        ("max_min_fairness_perf", PAPER, 2000, None),
        ("max_min_fairness_perf", {**PAPER, "jobs": 64, "counts": (16, 16, 16)}, 500, 0.0068),
        ("max_min_fairness_water_filling_perf", PAPER, 300, None),
        ("finish_time_fairness_perf", PAPER, 300, None),
        ("min_total_duration_perf", PAPER, 300, None),
        ("max_sum_throughput_perf", PAPER, 500, None),
        ("nash_welfare", PAPER, 100, None),
        ("allox", PAPER, 300, None),
        ("fifo_perf", PAPER, 500, None),
        ("elastic_throughput", PAPER, 50, None),
    ],
    "packed": [
        ("max_min_fairness_packed", {**TRACE, "jobs": 512, "counts": (128, 128, 128)}, 30, 44.9),
        ("max_min_fairness_packed", {**TRACE, "jobs": 64, "counts": (16, 16, 16)}, 30, 0.134),
        ("max_min_fairness_water_filling_packed", TRACE, 30, None),
        ("finish_time_fairness_packed", TRACE, 30, None),
        ("min_total_duration_packed", TRACE, 30, None),
    ],
    "large": [
        ("max_min_fairness_perf", {"jobs": 10_000, "kinds": 83, "counts": (3000, 3000, 3000)}, 50, None),
        ("max_min_fairness_water_filling_perf", {"jobs": 10_000, "kinds": 83, "counts": (3000,) * 3}, 10, None),
        ("min_total_duration_perf", {"jobs": 10_000, "kinds": 83, "counts": (3000, 3000, 3000)}, 10, None),
        ("max_min_fairness_perf", {"jobs": 100_000, "kinds": 800, "counts": (5000,) * 8}, 20, None),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--calls", type=int, help="of each policy; by default as many as its case says")
    arguments = parser.parse_args()
    make("max_min_fairness_perf").allocate(next(changing(PAPER, 1)))  # the solver's import is not a policy's time
    show(
        {
            group: [measure(policy, shape, arguments.calls or calls, s) for policy, shape, calls, s in CASES[group]]
            for group in arguments.only
        }
    )


def changing(shape: dict[str, Any], calls: int) -> Iterator[Problem]:
    """The same cluster, call after call, while jobs come and go."""
    generator = np.random.default_rng(0)
    problem = random_problem(generator, **shape)
    for _ in range(calls):
        yield problem
        kind = np.append(problem.kind[1:], generator.integers(0, shape["kinds"]))
        left = np.append(problem.steps_left[1:] * 0.99, 10 ** generator.uniform(3, 6))
        ids = np.append(problem.ids[1:], problem.ids[-1] + 1)
        problem = replace(problem, kind=kind, steps_left=left, ids=ids, age_s=np.append(problem.age_s[1:] + 720, 0.0))


def measure(policy: str, shape: dict[str, Any], calls: int, recorded_s: float | None) -> dict[str, Any]:
    ours, spent = make(policy), []
    for problem in changing(shape, calls):
        begin = time.process_time()
        ours.allocate(problem)
        spent.append(time.process_time() - begin)
    warm = statistics.median(spent[1:])
    return {
        "policy": policy,
        "jobs": shape["jobs"],
        "cold_ms": round(spent[0] * 1e3, 3),
        "warm_ms": round(warm * 1e3, 3),
        "largest_warm_ms": round(max(spent[1:]) * 1e3, 3),
        "calls": calls,
        "all_calls_s": round(sum(spent), 3),
        "ratio_to_recorded": None if recorded_s is None else round(recorded_s / warm, 1),
    }


if __name__ == "__main__":
    main()
