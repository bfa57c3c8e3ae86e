"""The older system's recorded allocations, call by call, through our clock by its rules: its figures to the digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster_replay import SHOWN, recorded_calls, replay

RUNS = ("small_2-2-2", "medium_2-2-2")
LINEAR = ("max_min_fairness", "max_min_fairness_water_filling", "finish_time_fairness", "min_total_duration")
POLICIES = [
    *[f"{name}{suffix}" for name in (*LINEAR, "fifo") for suffix in ("", "_perf", "_packed")],
    "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost_perf",
    "allox",
    "gandiva",
    "isolated",
]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_shares_give_the_recorded_figures(golden: Path, traces: Path, policy: str, name: str) -> None:
    """Makespan, average JCT, use, cost, rounds and how often the policy was asked."""
    if (name, policy) == ("small_2-2-2", "allox"):
        pytest.skip("the old AlloX refused jobs on two accelerators")
    found = replay(f"{name}_{policy}", golden / "cluster")
    assert list(found) == list(SHOWN)
    assert {figure: ours for figure, (_, ours) in found.items()} == {figure: old for figure, (old, _) in found.items()}


def test_every_recorded_run_is_replayed(golden: Path) -> None:
    assert recorded_calls(golden / "cluster") == sorted(
        f"{name}_{policy}" for name in RUNS for policy in POLICIES if (name, policy) != ("small_2-2-2", "allox")
    )
