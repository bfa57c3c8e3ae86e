"""Plans of configurations against enumeration and against branch and bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail.cluster.optimise.configurations import ConfigurationPlan, choose
from dovetail.cluster.optimise.goodputs import configurations
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.solve import LinearProgram


def random_case(rng: np.random.Generator, jobs: int, servers: int) -> tuple[Floats, Ints, Ints, Ints]:
    """Savings as goodput gives them, some rounded so that many plans are equal, some in places where nobody may go."""
    types = int(rng.integers(1, 4))
    per_server = rng.choice([1, 2, 4, 8], types)
    counts = per_server * rng.integers(1, servers + 1, types)
    ways = configurations(counts, per_server)
    speed = rng.uniform(1, 7, (jobs, types))[:, ways.on] * ways.width ** rng.uniform(0.3, 1, (jobs, 1))
    value = (speed / speed.min(axis=1, keepdims=True)) ** -0.5
    if rng.random() < 0.5:
        value = value.round(2)
    saving = np.where(ways.width <= 2 ** rng.integers(0, 5, (jobs, 1)), 1.1 - value, -1.0)
    return saving, ways.on, ways.width, counts


def used(plan: ConfigurationPlan, on: Ints, width: Ints, types: int) -> Ints:
    runs = plan.choice[plan.choice >= 0]
    return np.bincount(np.repeat(on[runs], width[runs]), minlength=types)


def enumerated(saving: Floats, on: Ints, width: Ints, counts: Ints) -> float:
    best = 0.0
    for choice in product(range(-1, len(on)), repeat=len(saving)):
        runs = [(job, at) for job, at in enumerate(choice) if at >= 0]
        need = np.zeros(len(counts))
        for _, at in runs:
            need[on[at]] += width[at]
        if (need <= counts).all():
            best = max(best, float(sum(saving[job, at] for job, at in runs)))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    saving, on, width, counts = random_case(rng, int(rng.integers(1, 4)), 2)
    plan = choose(saving, on, width, counts)
    assert plan.saved == pytest.approx(enumerated(saving, on, width, counts), abs=1e-9)
    assert plan.bound == pytest.approx(plan.saved, abs=1e-9)
    assert (used(plan, on, width, len(counts)) <= counts).all()


def test_what_nobody_may_have_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many jobs, such configurations are left out: plans are worth what they are with them."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        saving, on, width, counts = random_case(rng, 12, 3)
        saving[:, rng.random(len(on)) < 0.4] = -1.0
        monkeypatch.setattr("dovetail.cluster.optimise.configurations._MANY", 10**9)
        expected = choose(saving, on, width, counts)
        monkeypatch.setattr("dovetail.cluster.optimise.configurations._MANY", 0)
        plan = choose(saving, on, width, counts)
        assert plan.saved == pytest.approx(expected.saved, abs=1e-9)
        runs = np.flatnonzero(plan.choice >= 0)
        assert plan.saved == pytest.approx(saving[runs, plan.choice[runs]].sum())
        assert (used(plan, on, width, len(counts)) <= counts).all()


def branch_and_bound(saving: Floats, on: Ints, width: Ints, counts: Ints) -> float:
    lp = LinearProgram(maximise=True)
    lp.add_rows(np.full(len(counts) + len(saving), -np.inf), np.concatenate([counts, np.ones(len(saving))]))
    job, at = np.nonzero(saving > 0)
    for cost, i, j in zip(saving[job, at], job, at, strict=True):
        entries = {"starts": [0], "rows": [on[j], len(counts) + i], "values": [float(width[j]), 1.0]}
        lp.add_columns(cost=[cost], lower=[0.0], upper=[1.0], **entries)
    lp.set_integer(np.arange(len(at)))
    return lp.solve().value if len(at) else 0.0


@pytest.mark.parametrize("seed", range(15))
def test_larger_plans_are_the_best_too(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    saving, on, width, counts = random_case(rng, int(rng.integers(5, 30)), 4)
    plan = choose(saving, on, width, counts)
    assert plan.saved == pytest.approx(branch_and_bound(saving, on, width, counts), abs=1e-7)
    assert plan.bound <= plan.saved + 1e-7
    assert (used(plan, on, width, len(counts)) <= counts).all()


@pytest.mark.parametrize("rounded", [True, False])
def test_many_jobs_are_planned_within_a_proven_gap(rounded: bool) -> None:
    rng = np.random.default_rng(7)
    counts, per_server = np.array([800, 800, 400]), np.array([4, 8, 8])
    ways = configurations(counts, per_server)
    speed = rng.uniform(1, 7, (400, 3))[:, ways.on] * ways.width ** rng.uniform(0.3, 1, (400, 1))
    value = (speed / speed.min(axis=1, keepdims=True)) ** -0.5
    plan = choose(1.1 - (value.round(2) if rounded else value), ways.on, ways.width, counts, gap=1e-3)
    assert (used(plan, ways.on, ways.width, 3) <= counts).all()
    assert plan.saved <= plan.bound <= plan.saved * 1.005


def test_prices_of_the_last_time_do_not_change_the_answer() -> None:
    rng = np.random.default_rng(3)
    prices = np.zeros(3)
    for _ in range(5):
        saving = rng.uniform(-0.2, 1, (12, 9))
        on, width, counts = np.repeat([0, 1, 2], 3), np.tile([1, 2, 4], 3), np.array([6, 5, 4])
        warm, cold = choose(saving, on, width, counts, prices=prices), choose(saving, on, width, counts)
        assert warm.saved == pytest.approx(cold.saved, abs=1e-9)
    assert prices.any()


@pytest.mark.parametrize("seed", [25, 195, 231, 296])
def test_where_prices_leave_nothing_open_large_types_need_no_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    on, width = np.repeat(np.arange(6), 4), np.tile([1, 250, 500, 1000], 6)
    saving = rng.random((3, 24)) * (rng.random((3, 24)) < 0.3)
    best = branch_and_bound(saving, on, width, np.full(6, 1000))
    assert choose(saving, on, width, np.full(6, 1000)).saved == pytest.approx(best, abs=1e-7)


def test_nobody_saves_anything() -> None:
    plan = choose(np.full((2, 1), -1.0), np.array([0]), np.array([1]), np.array([4]))
    assert plan.choice.tolist() == [-1, -1]
    assert len(choose(np.zeros((0, 1)), np.array([0]), np.array([1]), np.array([4])).choice) == 0


def test_configurations_of_a_mixed_cluster() -> None:
    ways = configurations(np.array([24, 24, 16]), np.array([4, 8, 8]))
    assert np.bincount(ways.on).tolist() == [8, 6, 5]
    assert ways.width[ways.on == 1].tolist() == [1, 2, 4, 8, 16, 24]
    assert ways.nodes[ways.on == 0].tolist() == [1, 1, 1, 2, 3, 4, 5, 6]
    odd = configurations(np.array([7, 100]), np.array([6, 64]))
    assert odd.width[odd.on == 0].tolist() == [1, 2, 4, 6]
    assert odd.width[odd.on == 1].max() == 64
