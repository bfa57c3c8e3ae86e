"""Worked examples of goodput, fits of the same profiles, and the recorded calls of Sia's integer program."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bench import cluster_goodput
from dovetail.cluster.goodput.batch import best_batch
from dovetail.cluster.goodput.efficiency import gain
from dovetail.cluster.goodput.fitting import Floats, fit
from dovetail.cluster.goodput.throughput import NUMBERS, compute_s, exchange_s, overlapped_s
from dovetail.cluster.optimise.configurations import choose
from dovetail.cluster.policies.sia import values


def test_worked_examples(golden: Path) -> None:
    examples = json.loads((golden / "cluster/sia/examples.json").read_text())
    assert len(examples) == 10
    columns = {name: np.array([example[name] for example in examples]) for name in examples[0] if name != "placement"}
    numbers = np.array([[example["params"][name] for name in NUMBERS] for example in examples])
    limits = {
        "initial": columns["init_batch"],
        "most": columns["max_batch"],
        "least_local": columns["min_local_batch"],
        "most_local": columns["max_local_batch"],
    }
    seen = (columns["grad_sqr"], columns["grad_var"])
    found = best_batch(numbers, *seen, columns["nodes"], columns["gpus"], **limits)
    for at, example in enumerate(examples):
        best = example["best"]
        assert (found.local[at], found.steps[at]) == (best["local_batch"], best["accumulation_steps"])
        assert found.throughput[at] == pytest.approx(best["throughput_samples_per_s"], rel=1e-9)
        assert found.efficiency[at] == pytest.approx(best["efficiency"], rel=1e-9)
        assert found.goodput[at] == pytest.approx(best["goodput_samples_per_s"], rel=1e-9)
        true = example["simulated"]
        scale = best["batch"] / example["init_batch"]
        assert gain(true["grad_sqr"], true["grad_var"], scale) == pytest.approx(true["gain"], rel=1e-9)


def measured(profile: Path) -> Floats:
    """Nodes, replicas, local batch, seconds of a step and of exchange; of rows for the same three, the last."""
    rows: dict[tuple[int, int, int], tuple[float, float]] = {}
    for kind in ("placements", "scalability"):
        with (profile / f"{kind}-aws.csv").open() as file:
            for row in csv.DictReader(file):
                text = row.get("placement", "")
                nodes = len(text) or int(row["num_nodes"])
                replicas = sum(map(int, text)) or int(row["num_replicas"])
                rows[nodes, replicas, int(row["local_bsz"])] = float(row["step_time"]), float(row["sync_time"])
    return np.array([(*key, *times) for key, times in rows.items()])


def objective(numbers: Floats, points: Floats) -> float:
    """What a fit minimises, from its definition."""
    nodes, replicas, local, step, sync = points.T
    compute = compute_s(numbers, local)
    whole = overlapped_s(numbers[6], compute, exchange_s(numbers, nodes, replicas))
    errors = [np.log(compute) - np.log(step - sync), np.log(whole) - np.log(step)]
    penalty = 0.001 * (numbers[6] - 1) ** 2 + 0.01 * ((numbers[3] / numbers[2]) ** 2 + (numbers[5] / numbers[4]) ** 2)
    return float(sum(np.sqrt((error**2).mean()) for error in errors) + penalty)


# What can be reached where the older fit stops early.
BETTER = {"cifar10": 0.1722, "imagenet": 0.1525, "ncf": 0.2246}


def test_fits_are_never_worse_than_the_older_ones(golden: Path, traces: Path) -> None:
    with (golden / "cluster/sia/throughput_params.csv").open() as file:
        older = [row for row in csv.DictReader(file) if row["profile"] == "aws"]
    assert len(older) == 6
    for row in older:
        points = measured(traces / "sia/profiles" / row["application"])
        assert len(points) == int(row["points"])
        theirs = np.array([float(row[name]) for name in NUMBERS])
        assert objective(theirs, points) == pytest.approx(float(row["fit_objective"]), abs=1e-6)
        found = fit(points)
        assert found.objective == pytest.approx(objective(found.numbers, points), rel=1e-9)
        assert found.objective <= min(float(row["fit_objective"]), BETTER.get(row["application"], 1.0))


@pytest.mark.parametrize("run", ["mixed64", "t4x64"])
def test_recorded_programs_have_the_recorded_value(golden: Path, run: str) -> None:
    path = golden / f"cluster/sia/policy_calls/{run}_philly-tiny-1_sia.jsonl.gz"
    with gzip.open(path, "rt") as file:
        calls = [json.loads(line) for line in file]
    assert len(calls) >= 40
    for call in calls:
        types = sorted(call["gpus"])
        on = np.array([types.index(name) for name, _, _ in call["configurations"]])
        width = np.array([gpus for _, _, gpus in call["configurations"]])
        now = np.array([-1 if at is None else at for at in call["current"]])
        factor = np.where(now < 0, 1.0, np.array(call["restart_factor"]))
        value = values(np.array(call["normalised_goodput"]), factor, now, call["p"], rounds=True)
        assert value == pytest.approx(np.array(call["value"]), abs=1e-9)
        assert not call["keep"]
        plan = choose(call["lambda_n"] - value, on, width, np.array([call["gpus"][name] for name in types]))
        assert call["lambda_n"] * len(value) - plan.saved == pytest.approx(call["objective"], abs=1e-6)


@pytest.mark.parametrize("policy", ["sia", "gavel", "pollux"])
def test_whole_runs_on_t4_come_out_as_recorded_or_better(policy: str) -> None:
    wanted = ("t4x64", "philly-tiny", policy)
    [row] = [row for row in cluster_goodput.recorded() if (row["cluster"], row["set"], row["policy"]) == wanted]
    assert cluster_goodput.compare(row, seeds=1)["verdict"] in ("within", "better")
