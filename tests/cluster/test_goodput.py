"""Throughput models, fits and the choice of a batch, against definitions and another solver."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from dovetail.cluster.goodput.batch import CANDIDATES, best_batch, split
from dovetail.cluster.goodput.efficiency import efficiency
from dovetail.cluster.goodput.fitting import FitMemory, Floats, fit, fit_all
from dovetail.cluster.goodput.throughput import LEAST, iteration_s

LOWER, UPPER = np.array([LEAST] * 6 + [1.0]), np.array([np.inf] * 6 + [10.0])


def random_numbers(rng: np.random.Generator) -> Floats:
    alpha_c, alpha_n, alpha_r = 10 ** rng.uniform(-2, 0, 3)
    slopes = np.array([alpha_c, alpha_n, alpha_r]) * 10 ** rng.uniform(-2.5, -0.5, 3)
    return np.array([alpha_c, slopes[0], alpha_n, slopes[1], alpha_r, slopes[2], rng.uniform(1, 4)])


def random_points(rng: np.random.Generator, widest: int, count: int) -> Floats:
    """Points of a job that was never wider, four accelerators in a server, with a little noise."""
    numbers = random_numbers(rng)
    replicas = rng.integers(1, widest + 1, count)
    nodes, local = -(-replicas // 4), rng.integers(4, 64, count)
    compute = (numbers[0] + numbers[1] * local) * np.exp(rng.normal(0, 0.05, count))
    step = np.maximum(iteration_s(numbers, nodes, replicas, local) * np.exp(rng.normal(0, 0.05, count)), compute * 1.01)
    return np.stack([nodes, replicas, local, step, step - compute], axis=1)


def objective(numbers: Floats, points: Floats) -> float:
    nodes, replicas, local, step, sync = points.T
    compute = numbers[0] + numbers[1] * local
    beyond = np.maximum(replicas - 2, 1e-8)
    exchange = np.where(nodes > 1, numbers[2] + numbers[3] * beyond, numbers[4] + numbers[5] * beyond)
    exchange = np.where(replicas == 1, 1e-8, exchange)
    whole = (compute ** numbers[6] + exchange ** numbers[6]) ** (1 / numbers[6])
    errors = np.log(compute / (step - sync)), np.log(whole / step)
    ratios = (numbers[3] / numbers[2]) ** 2 + (numbers[5] / numbers[4]) ** 2
    return float(sum(np.sqrt(np.mean(e**2)) for e in errors) + 0.001 * (numbers[6] - 1) ** 2 + 0.01 * ratios)


def held(points: Floats) -> tuple[Floats, Floats]:
    """Bounds of the numbers, with what no point tells held fixed: the rules, written again."""
    nodes, replicas, local, step, sync = points.T
    low, high = LOWER.copy(), UPPER.copy()
    if len(set(local)) == 1:
        low[0] = high[0] = np.mean(step - sync) / 2
    if not ((nodes > 1) & (replicas > 1)).any():
        high[2:4] = low[2:4]
    if not ((nodes == 1) & (replicas > 1)).any():
        high[4:6] = low[4:6]
    if not (replicas > 2).any():
        high[[3, 5]] = low[[3, 5]]
    return low, high


@pytest.mark.parametrize("seed", range(24))
def test_no_other_solver_finds_a_better_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = random_points(rng, int(rng.choice([1, 2, 4, 16])), int(rng.integers(1, 30)))
    found = fit(points)
    low, high = held(points)
    started = np.clip([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001], low, high)
    other = scipy.optimize.minimize(objective, started, (points,), "L-BFGS-B", bounds=list(zip(low, high, strict=True)))
    assert found.objective <= other.fun + 1e-6
    raised = found.numbers.copy()
    if not (points[:, 0] > 1).any():  # these were raised after the fit, to no less than inside a server
        assert (raised[2:4] >= 1.1 * raised[4:6] - 1e-15).all()
        raised[2:4] = LEAST
    assert found.objective == pytest.approx(objective(raised, points), abs=1e-7)


def test_jobs_are_fitted_together_as_each_alone() -> None:
    rng = np.random.default_rng(1)
    points = [random_points(rng, widest, count) for widest, count in ((1, 1), (2, 3), (16, 20), (4, 9))]
    _, together = fit_all(points)
    assert together == pytest.approx([fit(of_job).objective for of_job in points], abs=1e-8)


def test_remembered_fits_do_not_depend_on_who_else_was_asked_for() -> None:
    rng = np.random.default_rng(2)
    points = [random_points(rng, widest, count) for widest, count in ((1, 1), (2, 9), (16, 20), (4, 9), (8, 20))]
    memory, together = FitMemory(most=3), FitMemory().numbers([*points, points[1]])
    for _ in range(2):
        for of_job, expected in zip(points, together, strict=False):
            assert memory.numbers([of_job])[0].tolist() == expected.tolist()
            assert len(memory) <= 3
    assert together[5].tolist() == together[1].tolist()


def test_one_point_is_met_exactly_and_growth_looks_good() -> None:
    numbers = fit([[1, 1, 32, 0.5, 0.0]]).numbers
    assert iteration_s(numbers, 1, 1, 32) == pytest.approx(0.5, rel=1e-6)
    assert numbers[0] == pytest.approx(0.25)  # half of the time does not grow with the batch
    assert iteration_s(numbers, 1, 4, 32) == pytest.approx(0.5, rel=1e-6)
    assert iteration_s(numbers, 2, 8, 32) == pytest.approx(0.5, rel=1e-6)


def slow_best(numbers: Floats, phi: float, nodes: int, replicas: int, limits: dict[str, int]) -> tuple[float, int, int]:
    """One candidate after the other, as the specification has it."""
    first = max(limits["initial"], limits["least_local"] * replicas)
    best = (0.0, 0, 0)
    for total in np.geomspace(first, limits["most"], CANDIDATES):
        local = total / replicas
        steps = int(np.ceil(local / limits["most_local"] - 1e-8)) - 1
        if replicas == 1 and local > limits["initial"] + 1e-8:
            steps = max(steps, 1)
        whole = int(np.ceil(local / (steps + 1) - 1e-8))
        if limits["least_local"] <= whole <= limits["most_local"]:
            batch = whole * replicas * (steps + 1)
            seconds = float(iteration_s(numbers, nodes, replicas, whole, steps))
            good = batch / seconds * (phi + 1) / (phi + batch / limits["initial"])
            best = max(best, (good, whole, steps), key=lambda found: found[0])
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_best_batch_is_the_best_candidate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    least = int(rng.integers(1, 8))
    limits = {"initial": int(rng.integers(8, 200)), "least_local": least, "most_local": least + int(rng.integers(90))}
    limits["most"] = int(limits["initial"] * rng.integers(1, 40))
    numbers, replicas = random_numbers(rng), int(rng.integers(1, 20))
    nodes, phi = -(-replicas // 4), float(10 ** rng.uniform(-2, 3))
    found = best_batch(numbers, 1.0, phi, nodes, replicas, **limits)
    goodput, local, steps = slow_best(numbers, phi, nodes, replicas, limits)
    assert (int(found.local), int(found.steps)) == (local, steps)
    assert float(found.goodput) == pytest.approx(goodput, rel=1e-12)
    assert float(found.goodput) == pytest.approx(float(found.throughput * found.efficiency), rel=1e-12)


def test_many_jobs_and_placements_at_once() -> None:
    rng = np.random.default_rng(0)
    numbers = np.stack([random_numbers(rng) for _ in range(5)])
    phi, most_local = rng.uniform(0.1, 10, 5), rng.integers(20, 60, 5)
    nodes, replicas = np.array([1, 1, 1, 2]), np.array([1, 2, 4, 8])
    limits = {"initial": 32, "most": 1024, "least_local": 4}
    table = best_batch(numbers[:, None], 1.0, phi[:, None], nodes, replicas, most_local=most_local[:, None], **limits)
    assert table.goodput.shape == (5, 4)
    for job in range(5):
        for at in range(4):
            single = best_batch(
                numbers[job], 1.0, phi[job], nodes[at], replicas[at], most_local=most_local[job], **limits
            )
            assert [float(column[job, at]) for column in table] == [float(column) for column in single]


def test_no_batch_is_allowed() -> None:
    found = best_batch(
        random_numbers(np.random.default_rng(0)), 1.0, 1.0, 1, 1, initial=128, most=4096, least_local=32, most_local=8
    )
    assert [float(column) for column in found] == [0.0] * 5


def test_a_lone_accelerator_accumulates_beyond_the_initial_batch() -> None:
    local, steps = split([64, 65, 64], [1, 1, 2], 64, 1000)
    assert local.tolist() == [64, 33, 32]
    assert steps.tolist() == [0, 1, 0]


def test_efficiency_is_one_at_the_initial_batch_and_falls() -> None:
    noise = efficiency(1.0, np.array([0.0, 1.0, 100.0])[:, None], np.array([1.0, 2.0, 8.0]))
    assert noise[:, 0].tolist() == [1.0, 1.0, 1.0]
    assert (np.diff(noise, axis=1) < 0).all()
    assert (np.diff(noise[:, 1:], axis=0) > 0).all()
    assert noise[0].tolist() == pytest.approx([1, 1 / 2, 1 / 8])
