"""The market over a horizon against a plain convex program, and what the policy makes of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.cluster.optimise.market import POINTS, Market, worth
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import PhasedJobs
from dovetail.core.errors import InputError
from dovetail.testing.cluster.problems import random_problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cp: Any = pytest.importorskip("cvxpy")


def drawn(seed: int) -> Market:
    generator = np.random.default_rng(seed)
    jobs, types = int(generator.integers(1, 9)), int(generator.integers(1, 4))
    gain = generator.uniform(0.01, 0.6, (jobs, types)) * (generator.random((jobs, types)) > 0.15)
    left_s = generator.uniform(10.0, 9000.0, jobs)
    return Market(
        width=generator.choice([1, 1, 2, 4], jobs),
        counts=generator.integers(0, 5, types),
        weight=generator.choice([1.0, 2.0], jobs),
        progress=generator.choice([0.0, 0.001, 0.3, 0.95], jobs),
        gain=gain,
        left_s=left_s,
        saves_s=2400.0 * generator.uniform(0.3, 1.5, (jobs, types)) * (gain > 0),
        must_save_s=left_s * generator.choice([0.0, 0.5, 1.0], jobs),
        late_costs=generator.uniform(1e-4, 1e-2, jobs),
        longest_costs=float(generator.choice([1e-5, 0.02])),
    )


def best_value(market: Market) -> float:
    """By the definition: logarithms in straight lines, late seconds, the longest job."""
    jobs, types = market.gain.shape
    share = cp.Variable((jobs, types), nonneg=True)
    able = (market.gain > 0) & (market.width[:, None] <= market.counts)
    limits = [market.width @ share <= market.counts, cp.sum(share, axis=1) <= 1, share <= able]
    progress = market.progress + cp.sum(cp.multiply(market.gain, share), axis=1)
    saved = cp.sum(cp.multiply(market.saves_s, share), axis=1)
    lines = []
    values = worth(POINTS)
    for at, to in zip(range(len(POINTS)), range(1, len(POINTS)), strict=False):
        slope = (values[to] - values[at]) / (POINTS[to] - POINTS[at])
        lines.append(values[at] + slope * (progress - POINTS[at]))
    logarithm = cp.minimum(*lines)
    late = cp.pos(market.must_save_s - saved)
    objective = (
        market.weight @ (logarithm - worth(market.progress)) / jobs
        - market.late_costs @ late
        - market.longest_costs * cp.max(cp.pos(market.left_s - saved))
    )
    return float(cp.Problem(cp.Maximize(objective), [*limits, progress <= 1]).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("longer", [1.0, 30.0])
def test_the_market_finds_the_best_shares(seed: int, longer: float) -> None:
    """Of jobs with so many times as many steps, hardly any comes to a bend of its logarithm within the horizon."""
    market = drawn(seed)
    market.gain /= longer
    share, value, missing_s = market.solve()
    assert value == pytest.approx(best_value(market), rel=1e-5, abs=1e-5)
    assert (market.width @ share <= market.counts + 1e-7).all()
    assert (share.sum(axis=1) <= 1 + 1e-7).all()
    saved = (market.saves_s * share).sum(axis=1)
    assert missing_s == pytest.approx(np.maximum(market.must_save_s - saved, 0.0), abs=1e-3)


def test_the_longest_job_runs_all_the_time_and_the_short_ones_take_turns() -> None:
    problem = random_problem(np.random.default_rng(0), jobs=6, kinds=1, counts=(2,), weights=(1.0,))
    problem.steps_left[:] = problem.rates[0, 0] * np.array([600.0, 600.0, 90000.0, 600.0, 600.0, 600.0])
    policy, ran = make("shockwave"), []
    for _ in range(5):
        share = policy.allocate(problem).share[:, 0]
        assert share[2] == 1.0
        (short,) = set(np.flatnonzero(share)) - {2}
        ran.append(short)
        problem.now_s += 300.0
        problem.age_s += 300.0
        problem.steps_left -= share * problem.rates[0, 0] * 300.0
    assert len(set(ran)) >= 2


def test_who_was_promised_an_end_comes_before_who_has_time() -> None:
    """Two jobs of one size; the first has waited as long as it would have needed with its part."""
    problem = random_problem(np.random.default_rng(0), jobs=2, kinds=1, counts=(1,), weights=(1.0,))
    problem.steps_left[:] = problem.rates[0, 0] * 1000.0
    problem.age_s[:] = [1900.0, 0.0]
    assert make("shockwave").allocate(problem).share[:, 0].tolist() == [1.0, 0.0]
    problem.age_s[:] = [0.0, 1900.0]
    assert make("shockwave").allocate(problem).share[:, 0].tolist() == [0.0, 1.0]


def test_a_job_that_is_nearly_done_is_not_forgotten() -> None:
    problem = random_problem(np.random.default_rng(0), jobs=2, kinds=1, counts=(1,), weights=(1.0,))
    policy = make("shockwave", {"longest_costs": 1e-9})
    policy.allocate(problem)
    problem.age_s += 1e6
    problem.now_s += 1e6
    problem.steps_left[0] *= 1e-12
    assert policy.allocate(problem).share[0, 0] == 1.0


def test_a_job_that_will_be_faster_is_not_the_longest() -> None:
    """Two jobs, as long as each other at the present rate; the first will have a batch that is ten times as fast."""
    problem = random_problem(np.random.default_rng(0), jobs=2, kinds=3, counts=(1,), weights=(1.0,))
    problem.rates[:] = [[1.0], [10.0], [1.0]]
    problem.kind[:], problem.width[:] = [0, 2], 1
    problem.steps_left[:] = 1e6
    alike = make("shockwave").allocate(problem).share[:, 0]
    modes = np.array([[0, 1], [2, -1]])
    ahead = replace(problem, phased=PhasedJobs(modes=modes, done=np.zeros((2, 2))))
    assert alike.tolist() == [1.0, 0.0]
    assert make("shockwave").allocate(ahead).share[:, 0].tolist() == [0.0, 1.0]
    fast = replace(ahead, kind=np.array([1, 2]))  # it is there: its first batch does not come back
    fast.steps_left[0] = 1e7
    assert make("shockwave").allocate(fast).share[:, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("option", ["horizon_s", "late_costs", "longest_costs"])
def test_wrong_options_are_named(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} is 0"):
        make("shockwave", {option: 0.0})


@pytest.mark.parametrize("option", ["horizon_s", "late_costs", "longest_costs"])
@pytest.mark.parametrize("value", ["0", "-1", "1e30"])
def test_options_that_no_solver_copes_with_are_refused(option: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"{option} is .*, expected more than 0, at most 1e\+06"):
        make("shockwave", {option: value})
