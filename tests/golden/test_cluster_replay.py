"""The older system's recorded allocations, call by call, through our clock by its rules: its figures to the digit."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.compat import GAVEL
from dovetail.cluster.inputs.scenario import Scenario, load
from dovetail.cluster.policies.base import Allocation, Floats, Policy, Problem
from dovetail.cluster.simulate import run

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


class Recorded:
    """Gives the recorded shares, at the recorded instants only."""

    def __init__(self, like: Policy, calls: Iterator[dict[str, Any]]) -> None:
        self.agnostic, self.packs, self.strict = like.agnostic, like.packs, like.strict
        self.calls = calls

    def allocate(self, problem: Problem) -> Allocation:
        call = next(self.calls)
        assert call["time"] == problem.now_s
        at = {job: row for row, job in enumerate(problem.ids.tolist())}
        share: Floats = np.zeros((problem.jobs, len(problem.types)))
        pairs, pair_share = [], []
        for key, by_type in call["allocation"].items():
            values = [by_type[name] for name in problem.types]
            if "(" in key:
                pairs.append(sorted(at[int(part)] for part in key.strip("()").split(",")))
                pair_share.append(values)
            else:
                share[at[int(key)]] = values
        if not pairs:
            return Allocation(share=share)
        return Allocation(share=share, pairs=np.array(pairs, dtype=np.int64), pair_share=np.array(pair_share))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_shares_give_the_recorded_figures(golden: Path, traces: Path, policy: str, name: str) -> None:
    if (name, policy) == ("small_2-2-2", "allox"):
        pytest.skip("the old AlloX refused jobs on two accelerators")
    with (golden / "cluster/runs.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["name"] == f"{name}_{policy}")
    words = shlex.split(row["command"])
    trace = next((traces / "gavel").rglob(Path(words[words.index("-t") + 1]).name))
    throughputs = traces / "gavel/simulation_throughputs.json"
    loaded = load(Scenario(cluster=words[words.index("-c") + 1], throughputs=throughputs, trace=trace))
    with gzip.open(golden / f"cluster/policy_calls/dump_{name}_{policy}.jsonl.gz", "rt") as lines:
        calls = map(json.loads, lines)
        recorded = Recorded(loaded.policy(policy), calls)
        figures = run(loaded.setup, recorded, GAVEL, compat=True).figures
        assert not any(call["state"]["scale_factors"] for call in calls)  # it asked once more when all was done
    assert round(figures.makespan_s, 3) == float(row["makespan_s"])
    assert round(figures.avg_jct_s, 3) == float(row["avg_jct_s"])
