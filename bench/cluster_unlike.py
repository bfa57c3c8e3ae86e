"""One decision of every cluster policy where every job has its own rates, cold and warm. Prints JSON.

    python -m bench.cluster_unlike                               100 to 10,000 jobs; 10,000 of 26 kinds
    python -m bench.cluster_unlike --jobs 10000 --policies nash_welfare max_min_fairness_perf
    python -m bench.cluster_unlike --kinds 26 --types 8

CPU milliseconds. Three accelerators for every four jobs (or `--room`), on types that are unlike. Between two calls one
job in two thousand (at least one) leaves and another comes, with rates of its own; the others go on. Where all pairs of
jobs have rates, fewer unlike jobs are asked for: see FEWER. Jobs have no profiles.
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
from dovetail.core.registry import names
from dovetail.testing.cluster.problems import random_problem

SIZES = (100, 1000, 2000, 10_000)
FEW = 26  # kinds of jobs in the older system's traces
CALLS = 6
ROOM = 0.75
FEWER = {  # the most unlike jobs that a policy is asked for: all pairs of them have rates
    "fifo_packed": 1000,
    "finish_time_fairness_packed": 2000,
    "gandiva": 1000,
    "max_min_fairness_packed": 2000,
    "max_min_fairness_water_filling_packed": 100,
    "max_sum_throughput_normalized_by_cost_packed_SLOs": 1000,
    "min_total_duration_packed": 2000,
}
POLICIES = names("cluster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--kinds", type=int, help="that jobs are drawn from; by default both: a kind per job, and few")
    parser.add_argument("--types", type=int, default=3)
    parser.add_argument("--room", type=float, default=ROOM, help="accelerators for each job")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--calls", type=int, default=CALLS)
    arguments = parser.parse_args()
    make("max_min_fairness_perf").allocate(next(changing(1, 9, 9, arguments.types)))  # the solver's import
    cases = [(jobs, arguments.kinds or jobs) for jobs in arguments.jobs]
    if arguments.kinds is None:
        cases.append((max(arguments.jobs), FEW))
    result: dict[str, dict[str, Any]] = {}
    for jobs, kinds in cases:
        for policy in arguments.policies:
            packs = make(policy).packs
            if min(jobs, kinds) > FEWER.get(policy, kinds):
                continue
            found = measure(policy, arguments.calls, jobs, kinds, arguments.types, packs, arguments.room)
            result.setdefault(f"{jobs} jobs of {kinds} kinds", {})[policy] = found
    largest = {"all unlike": cases[-2 if arguments.kinds is None else -1], "few kinds": cases[-1]}
    for name, (jobs, kinds) in largest.items():
        measured = result[f"{jobs} jobs of {kinds} kinds"].values()
        slowest = {each: max(one[each] for one in measured) for each in ("cold_ms", "warm_ms")}
        result.setdefault("slowest", {})[name] = slowest
    show(result)


def changing(
    calls: int, jobs: int, kinds: int, types: int, packs: bool = False, wide: bool = True, room: float = ROOM
) -> Iterator[Problem]:
    """The same cluster, call after call, while a few jobs come and go."""
    generator = np.random.default_rng(0)
    shape: dict[str, Any] = {"counts": (int(room * jobs / types),) * types, "pairs": packs, "deadlines": 0.1}
    if wide:
        shape |= {"widths": (1, 1, 1, 2), "weights": (1.0, 1.0, 5.0)}
    problem = random_problem(generator, jobs=jobs, kinds=kinds, **shape)
    problem.deadline_s *= 100.0  # they can be kept
    few = max(jobs // 2000, 1)
    own = len(np.unique(problem.kind)) > FEW  # rates of their own
    if own:  # random_problem draws kinds: some of none, some of several jobs
        shape = {**shape, "counts": tuple(problem.counts.tolist())}
        kind = np.arange(jobs) % kinds
        width = np.ones(kinds, dtype=np.int64)
        width[problem.kind] = problem.width
        problem = replace(problem, kind=kind, width=width[kind])
    for _ in range(calls):
        yield problem
        rates, left = (
            problem.rates.copy(),
            np.append(problem.steps_left[few:] * 0.99, 10 ** generator.uniform(3, 6, few)),
        )
        come = problem.kind[:few]
        if own:
            rates[come] *= generator.uniform(0.5, 2.0, (few, types))
        problem = replace(
            problem,
            rates=rates,
            kind=np.append(problem.kind[few:], come),
            width=np.append(problem.width[few:], problem.width[:few]),
            weight=np.append(problem.weight[few:], problem.weight[:few]),
            ids=np.append(problem.ids[few:], problem.ids[-1] + 1 + np.arange(few)),
            age_s=np.append(problem.age_s[few:] + 720, np.zeros(few)),
            deadline_s=np.append(problem.deadline_s[few:] - 720, np.full(few, np.inf)),
            steps_left=left,
        )


def measure(policy: str, calls: int, jobs: int, kinds: int, types: int, packs: bool, room: float) -> dict[str, Any]:
    ours, spent = make(policy), []
    for problem in changing(calls, jobs, kinds, types, packs, not getattr(ours, "narrow", False), room):
        begin = time.process_time()
        ours.allocate(problem)
        spent.append(time.process_time() - begin)
    return {
        "cold_ms": round(spent[0] * 1e3, 1),
        "warm_ms": round(statistics.median(spent[1:]) * 1e3, 1),
        "largest_warm_ms": round(max(spent[1:]) * 1e3, 1),
    }


if __name__ == "__main__":
    main()
