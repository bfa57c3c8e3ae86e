"""Policies that keep deadlines, in rounds and with restarts: beside simpler rules, and where shares are exact."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail import cluster

SLOS = "max_sum_throughput_normalized_by_cost_perf_SLOs"
PACKED = "max_sum_throughput_normalized_by_cost_packed_SLOs"


def drawn(seed: int) -> dict[str, Any]:
    """Two fast and two cheap accelerators, twenty jobs, a third of them with next to no time to lose."""
    rng = random.Random(seed)
    rates = {(m, t): least * rng.choice([1, 2]) for m in "mno" for t, least in (("a", 3), ("b", 1))}
    jobs, arrival_s = [], 0.0
    for _ in range(20):
        best_s, model = 10 ** rng.uniform(3, 4.3), rng.choice("mno")
        steps, due_s = best_s * max(rates[model, t] for t in "ab"), best_s * rng.choice([1.2, 2, 10])
        jobs.append({"arrival_s": arrival_s, "model": model, "steps": steps, "due_s": due_s})
        arrival_s += rng.expovariate(1 / 4000)
    prices = {"a": 3.0, "b": 1.0}
    return {
        "cluster": {"types": {t: {"count": 2, "price_per_hour": price} for t, price in prices.items()}},
        "throughputs": [{"model": m, "type": t, "steps_per_s": rate} for (m, t), rate in rates.items()],
        "trace": jobs,
    }


@pytest.mark.parametrize("policy", [SLOS, PACKED])
def test_a_deadline_that_can_be_kept_is_kept_in_rounds_with_restarts(policy: str) -> None:
    problem = cluster.load(
        cluster={"types": {"a": {"count": 1}}},
        throughputs=[{"model": m, "type": "a", "steps_per_s": rate} for m, rate in (("m", 1), ("k", 10))],
        trace=[
            {"arrival_s": 0, "model": "m", "steps": 3600, "due_s": 10_000},
            {"arrival_s": 0, "model": "k", "steps": 360_000},
        ],
    )
    assert cluster.simulate(problem, policy).metrics["slo_violations"] == 0


def test_fewer_deadlines_are_missed_than_by_simpler_rules_and_for_less_money() -> None:
    missed, cost = dict.fromkeys((SLOS, "shortest_remaining", "fifo_perf"), 0), dict.fromkeys((SLOS, "fifo_perf"), 0.0)
    for seed in range(12):
        problem = cluster.load(**drawn(seed))
        for policy in missed:
            figures = cluster.simulate(problem, policy).metrics
            missed[policy] += figures["slo_violations"]
            if policy in cost:
                cost[policy] += figures["total_cost"]
    assert missed[SLOS] < 0.6 * missed["shortest_remaining"] < missed["fifo_perf"]
    assert cost[SLOS] < 0.96 * cost["fifo_perf"]
