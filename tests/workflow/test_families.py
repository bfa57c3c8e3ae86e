"""Families of workloads ask for what they say; the simple rules that policies are compared with are valid."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.workflow_policies import FAMILIES, judge, measure, ratios, summary, table
from dovetail.testing.workflow.families import WorkloadFamily, draw, load_family, read_families
from dovetail.testing.workflow.random_workloads import random_case, read_case
from dovetail.testing.workflow.simple_rules import RULES
from dovetail.workflow.simulate import run

FAMILY = read_families(FAMILIES)


def test_there_are_many_families_each_with_a_name_of_its_own() -> None:
    assert len({family.name for family in FAMILY}) == len(FAMILY) >= 25


@pytest.mark.parametrize("family", FAMILY, ids=lambda family: family.name)
def test_a_family_can_be_read_and_asks_for_its_load(family: WorkloadFamily) -> None:
    problem = load_family(family, 7)
    assert len(problem.requests) == family.requests
    assert not problem.requests.skipped_count
    arrivals = [t for t, _ in problem.requests.arrivals()]
    speed = sum(problem.pool.speeds)
    if family.mode == "offline":
        assert set(arrivals) == {0.0}
        return
    asked = sum(problem.requests.forecast.values()) / (arrivals[-1] * speed)
    assert family.load * 0.65 < asked < family.load * 1.5, "few draws of wide spread"


def test_a_draw_depends_on_its_seed_alone() -> None:
    family = replace(FAMILY[0], requests=20)
    assert draw(family, 3) == draw(family, 3) != draw(family, 4)


def test_drifting_popularity_moves_from_model_to_model() -> None:
    family = WorkloadFamily(name="d", gpus="4", load=0.7, requests=400, models=5, popularity=4.0, drift_s=200.0)
    _, rows = draw(family, 1)
    early = [row["workflow_id"] for row in rows if row["timestamp"] < 200]
    later = [row["workflow_id"] for row in rows if 200 <= row["timestamp"] < 400]
    assert max(set(early), key=early.count) == "g0"
    assert max(set(later), key=later.count) == "g1"


def test_only_the_large_gpu_takes_the_large_models() -> None:
    family = next(f for f in FAMILY if f.large)
    view = load_family(family, 1).new_view()
    assert [len(view.roomy_windows(model)) for model in view.models] == [1, 1] + [4] * (family.models - 2)


@pytest.mark.parametrize("name", RULES)
def test_a_simple_rule_completes_what_it_is_given(name: str, tmp_path: Path) -> None:
    for seed in range(25):
        case = random_case(seed)
        given = read_case(case, tmp_path)
        figures = run(given, RULES[name], failure_rate=case.failure_rate, retries=9, journal=False).figures
        assert figures.completed + figures.rejected == figures.arrived


def test_ratios_are_to_the_best_of_a_draw() -> None:
    rows = [
        {"family": "f", "seed": seed, "policy": policy, "mean": mean}
        for seed, policy, mean in ((1, "a", 10.0), (1, "b", 20.0), (2, "a", 9.0), (2, "b", 3.0))
    ]
    assert ratios(rows, "mean") == {("f", "a"): [1.0, 3.0], ("f", "b"): [2.0, 1.0]}
    assert summary(rows)["b"]["mean"] == {"ratio": 1.414, "worst": 2.0, "within_5_percent": 1, "of": 2}
    assert judge(rows, "b")["mean"] == {"f": 1.414}
    assert table(rows)[2:] == ["| f | mean | 1.73 | **1.41** |"]


def test_a_run_is_measured_with_the_options_after_the_name() -> None:
    family = replace(next(f for f in FAMILY if f.due), requests=40)
    plain, hasty = (measure((family, 1, policy)) for policy in ("srpt", "srpt,hysteresis=0"))
    assert plain["switches"] < hasty["switches"]
    assert 0 < plain["late"] <= 41 / 40
