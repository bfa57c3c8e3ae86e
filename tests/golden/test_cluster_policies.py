"""Every recorded call of every policy of the old system: our objective values and, without a program, our decisions."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.optimise.shares import isolated_share, proportional_rate
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Floats, Problem

TYPES = ("v100", "p100", "k80")
RUNS = ("small_2-2-2", "medium_2-2-2")


def problem_of(call: dict[str, Any]) -> Problem:
    """A recorded call as a problem; a job's kind is its recorded type (with its scale factor)."""
    state, ids = call["state"], sorted(map(int, call["state"]["scale_factors"]))
    name = {i: tuple(call["job_type"][str(i)]) for i in ids}
    kinds = sorted(set(name.values()))
    kind = np.array([kinds.index(name[i]) for i in ids], dtype=np.int64)
    thr = state["throughputs"]
    rates = np.zeros((len(kinds), 3))
    pair_rates = np.zeros((len(kinds), len(kinds), 3))
    for key, values in thr.items():
        if "(" in key:
            a, b = (kind[ids.index(int(part))] for part in key.strip("()").split(","))
            pair_rates[a, b] = [values[t][0] for t in TYPES]
            pair_rates[b, a] = [values[t][1] for t in TYPES]
        else:
            rates[kind[ids.index(int(key))]] = [values[t] for t in TYPES]

    def by_job(field: str) -> Floats:
        return np.array([float(state[field][str(i)]) for i in ids])

    costs = state.get("instance_costs") or dict.fromkeys(TYPES, 1.0)
    return Problem(
        now_s=call["time"],
        types=TYPES,
        counts=np.array([state["cluster_spec"][t] for t in TYPES]),
        prices=np.array([float(costs[t]) for t in TYPES]),
        ids=np.array(ids, dtype=np.int64),
        kind=kind,
        rates=rates,
        width=by_job("scale_factors").astype(np.int64),
        weight=by_job("priority_weights"),
        steps_left=by_job("num_steps_remaining"),
        age_s=by_job("times_since_start"),
        deadline_s=np.full(len(ids), np.inf),
        pair_rates=pair_rates if any("(" in key for key in thr) else None,
    )


def calls(golden: Path, run: str, policy: str) -> Iterator[dict[str, Any]]:
    with gzip.open(golden / f"cluster/policy_calls/dump_{run}_{policy}.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


def references(golden: Path) -> dict[tuple[str, int], float]:
    with (golden / "cluster/objectives.csv").open() as file:
        rows = csv.DictReader(file)
        return {(row["run"], int(row["call"])): float(row["highs_reference"]) for row in rows if row["highs_reference"]}


def check_limits(problem: Problem, allocation: Allocation) -> None:
    share, pairs, pair_share = allocation.share, allocation.pairs, allocation.pair_share
    used, time = problem.width @ share, share.sum(axis=1)
    if len(pairs):
        used = used + problem.width[pairs[:, 0]] @ pair_share
        assert (problem.width[pairs[:, 0]] == problem.width[pairs[:, 1]]).all()
        assert (pairs[:, 0] < pairs[:, 1]).all()
        assert (pair_share >= 0).all()
        for side in (0, 1):
            np.add.at(time, pairs[:, side], pair_share.sum(axis=1))
    assert (share >= 0).all()
    assert (used <= problem.counts + 1e-9).all()
    assert (time <= 1 + 1e-9).all()


def objective(policy: str, problem: Problem, allocation: Allocation, done_s: dict[int, float]) -> float:
    """The value of a policy's objective, from the shares alone."""
    rate = allocation.throughput(problem)
    if policy in ("max_min_fairness", "max_min_fairness_water_filling"):
        time = allocation.share.sum(axis=1)
        return float((problem.width / problem.weight * time).min())
    if policy.startswith("max_min"):
        normal = proportional_rate(problem.speed, problem.counts)
        return float((problem.width / problem.weight * rate / normal).min())
    if policy.startswith("max_sum"):
        return float((problem.speed * allocation.share / problem.prices).sum())
    if policy in ("min_total_duration", "finish_time_fairness"):  # they take every type for the first
        rate = problem.speed[:, 0] * allocation.share.sum(axis=1)
    if policy.startswith("min_total"):
        return float((problem.steps_left / rate).max())
    speed = problem.speed[:, :1] if policy == "finish_time_fairness" else problem.speed
    alone = (isolated_share(problem) * speed).sum(axis=1)
    done = np.array([done_s[i] for i in problem.ids.tolist()])
    return float(((problem.age_s + problem.steps_left / rate) / (done + problem.steps_left / alone)).max())


LINEAR = [
    *[f"max_min_fairness{suffix}" for suffix in ("", "_perf", "_packed")],
    *[f"max_min_fairness_water_filling{suffix}" for suffix in ("", "_perf", "_packed")],
    *[f"finish_time_fairness{suffix}" for suffix in ("", "_perf", "_packed")],
    *[f"min_total_duration{suffix}" for suffix in ("", "_perf", "_packed")],
    "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost_perf",
]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("policy", LINEAR)
def test_objectives_are_those_of_the_reference(golden: Path, policy: str, run: str) -> None:
    expected, ours = references(golden), make(policy)
    done_s: dict[int, float] = defaultdict(float)
    before: dict[int, tuple[float, float]] = {}
    checked = 0
    for number, call in enumerate(calls(golden, run, policy)):
        problem = problem_of(call)
        speed = problem.speed[:, :1] if policy == "finish_time_fairness" else problem.speed
        alone = (isolated_share(problem) * speed).sum(axis=1)
        for i, left, rate in zip(problem.ids.tolist(), problem.steps_left.tolist(), alone.tolist(), strict=True):
            if i in before:
                done_s[i] += (before[i][0] - left) / before[i][1]
            before[i] = left, rate
        allocation = ours.allocate(problem)
        check_limits(problem, allocation)
        if (want := expected.get((f"{run}_{policy}", number))) is None:
            continue
        found = objective(policy, problem, allocation, done_s)
        assert found == pytest.approx(want, rel=1e-6), number
        assert allocation.value == pytest.approx(found, rel=1e-7), number
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("policy", ["fifo_perf", "isolated", "allox"])
def test_decisions_without_a_program_are_the_old_ones(golden: Path, policy: str, run: str) -> None:
    if (run, policy) == ("small_2-2-2", "allox"):
        pytest.skip("the old AlloX refused jobs on two accelerators")
    ours, checked = make(policy), 0
    for number, call in enumerate(calls(golden, run, policy)):
        problem = problem_of(call)
        share = ours.allocate(problem).share
        want = np.array([[call["allocation"][str(i)][t] for t in TYPES] for i in problem.ids.tolist()])
        assert share == pytest.approx(want.reshape(-1, 3), abs=1e-15), number
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("policy", ["fifo", "fifo_packed", "gandiva", "nash_welfare", "tiresias", "shortest_remaining"])
def test_other_policies_keep_the_limits_on_recorded_calls(golden: Path, policy: str, run: str) -> None:
    ours = make(policy)
    for call in calls(golden, run, "max_min_fairness_packed" if make(policy).packs else "max_min_fairness"):
        problem = problem_of(call)
        check_limits(problem, ours.allocate(problem))
