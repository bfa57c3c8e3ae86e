"""Every policy with a program, on random problems, against a plain model over single jobs."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from dovetail.cluster.optimise.shares import isolated_share
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem
from dovetail.testing.cluster.problems import random_problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cp: Any = pytest.importorskip("cvxpy")

CASES = 40


class Plain:
    """All shares of single jobs and pairs, as a polytope `matrix @ x <= bound`, x >= 0; rates are `rate @ x`."""

    def __init__(self, problem: Problem, *, packed: bool) -> None:
        types, jobs = len(problem.counts), problem.jobs
        speed = np.where(problem.width[:, None] > problem.counts, 0.0, problem.speed)
        rows: list[tuple[int, ...]] = [(job,) for job in range(jobs)]
        if packed:
            rows += [pair for pair in combinations(range(jobs), 2) if problem.width[pair[0]] == problem.width[pair[1]]]
        size = len(rows) * types
        self.matrix = np.zeros((types + jobs, size))
        self.bound = np.concatenate([problem.counts, np.ones(jobs)])
        self.rate = np.zeros((jobs, size))
        self.worth = np.zeros(size)
        for row, members in enumerate(rows):
            for on in range(types):
                column = row * types + on
                self.matrix[on, column] = problem.width[members[0]]
                for me in members:
                    self.matrix[types + me, column] = 1.0
                    other = members[1 - members.index(me)] if len(members) == 2 else None
                    rate = speed[me, on]
                    if other is not None:
                        assert problem.pair_rates is not None
                        rate = problem.pair_rates[problem.kind[me], problem.kind[other], on] * (rate > 0)
                    self.rate[me, column] = rate
                    self.worth[column] += rate / problem.prices[on]
        self.normal = speed @ problem.counts / problem.counts.sum()
        self.runs = self.normal > 0

    def best(self, objective: Floats, floors: Floats | None = None, extra: Floats | None = None) -> Any:
        """Maximise objective @ x with rates of at least `floors`; with `extra` a last column z, floors + extra * z."""
        floors = np.zeros(len(self.rate)) if floors is None else floors
        above, below = -self.rate, -floors
        matrix = self.matrix
        if extra is not None:
            above = np.hstack([above, extra[:, None]])
            matrix = np.hstack([matrix, np.zeros((len(matrix), 1))])
        return linprog(-objective, A_ub=np.vstack([matrix, above]), b_ub=np.concatenate([self.bound, below]))

    def least_level(self, scale: Floats) -> float:
        """max min scale * rate, in cvxpy."""
        x, z = cp.Variable(self.rate.shape[1]), cp.Variable()
        rates = (self.rate * scale[:, None])[self.runs]
        model = cp.Problem(cp.Maximize(z), [x >= 0, self.matrix @ x <= self.bound, rates @ x >= z])
        return float(model.solve(solver=cp.CLARABEL))


def check_limits(problem: Problem, allocation: Allocation) -> None:
    share, pairs, pair_share = allocation.share, allocation.pairs, allocation.pair_share
    assert share.shape == (problem.jobs, len(problem.types))
    used, time = problem.width @ share, share.sum(axis=1)
    if len(pairs):
        assert len(np.unique(pairs, axis=0)) == len(pairs)
        assert (pairs[:, 0] < pairs[:, 1]).all()
        assert (problem.width[pairs[:, 0]] == problem.width[pairs[:, 1]]).all()
        used = used + problem.width[pairs[:, 0]] @ pair_share
        assert (pair_share >= 0).all()
        for side in (0, 1):
            np.add.at(time, pairs[:, side], pair_share.sum(axis=1))
    assert (share >= 0).all()
    assert (used <= problem.counts + 1e-9).all()
    assert (time <= 1 + 1e-9).all()
    assert allocation.why


def draw(number: int, *, packed: bool, **more: Any) -> Problem:
    generator = np.random.default_rng(number)
    jobs, kinds = int(generator.integers(1, 11)), int(generator.integers(1, 6))
    types = int(generator.integers(1, 4))
    counts = tuple(generator.integers(0, 6, types).tolist())
    counts = (*counts[:-1], max(counts[-1], 1))
    return random_problem(
        generator,
        jobs=jobs,
        kinds=kinds,
        counts=counts,
        widths=(1, 1, 2),
        weights=(1.0, 1.0, 2.5),
        unfit=0.15,
        pairs=packed,
        **more,
    )


def variants(name: str) -> list[Any]:
    return [pytest.param(f"{name}_{suffix}", suffix == "packed", id=suffix) for suffix in ("perf", "packed")]


@pytest.mark.parametrize(("policy", "packed"), variants("max_min_fairness"))
def test_max_min_fairness(policy: str, packed: bool) -> None:
    for number in range(CASES):
        problem = draw(number, packed=packed)
        plain, found = Plain(problem, packed=packed), make(policy).allocate(problem)
        check_limits(problem, found)
        if not plain.runs.any():
            assert not found.share.any()
            continue
        scale = problem.width / problem.weight / np.where(plain.runs, plain.normal, 1.0)
        want = plain.least_level(scale)
        assert found.value == pytest.approx(want, rel=1e-6, abs=1e-7), number
        assert (found.throughput(problem) * scale)[plain.runs].min() == pytest.approx(want, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("policy", ["max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf"])
def test_max_sum_throughput(policy: str) -> None:
    for number in range(CASES):
        problem = draw(number, packed=False)
        if policy == "max_sum_throughput_perf":
            problem.prices[:] = 1.0
        plain, found = Plain(problem, packed=False), make(policy).allocate(problem)
        check_limits(problem, found)
        x = cp.Variable(len(plain.worth))
        want = cp.Problem(cp.Maximize(plain.worth @ x), [x >= 0, plain.matrix @ x <= plain.bound]).solve(
            solver=cp.CLARABEL
        )
        assert found.value == pytest.approx(want, rel=1e-6, abs=1e-6)
        assert (problem.speed * found.share / problem.prices).sum() == pytest.approx(want, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("policy", "packed"), variants("min_total_duration"))
def test_makespan(policy: str, packed: bool) -> None:
    for number in range(2 * CASES):
        problem = draw(number, packed=packed)
        plain, found = Plain(problem, packed=packed), make(policy).allocate(problem)
        check_limits(problem, found)
        if not plain.runs.any():
            continue
        scale = problem.steps_left.max()  # so that the oracle's numbers are about 1
        want = scale / plain.least_level(scale / problem.steps_left)
        assert found.value == pytest.approx(want, rel=1e-6), number
        last = (problem.steps_left / np.maximum(found.throughput(problem), 1e-300))[plain.runs].max()
        assert last == pytest.approx(want, rel=1e-6), number


@pytest.mark.parametrize(("policy", "packed"), variants("finish_time_fairness"))
def test_finish_time_fairness(policy: str, packed: bool) -> None:
    for number in range(CASES):
        problem = draw(number, packed=packed)
        plain, found = Plain(problem, packed=packed), make(policy).allocate(problem)
        check_limits(problem, found)
        if not plain.runs.any():
            continue
        alone = (isolated_share(problem) * problem.speed).sum(axis=1)
        runs, left, age = plain.runs, problem.steps_left, problem.age_s
        against = (left / np.where(alone > 0, alone, 1.0))[runs]
        x = cp.Variable(plain.rate.shape[1])
        rate = ((plain.rate / left[:, None])[runs] * against[:, None]) @ x  # so that its numbers are about 1
        factor = cp.max(age[runs] / against + cp.inv_pos(rate))
        model = cp.Problem(cp.Minimize(factor), [x >= 0, plain.matrix @ x <= plain.bound])
        want = model.solve(solver=cp.CLARABEL)
        got = ((age + left / np.maximum(found.throughput(problem), 1e-300)) / (left / np.maximum(alone, 1e-300)))[runs]
        # Shares are rounded to nine digits, and here some are small: a job of few steps that is already late.
        assert got.max() == pytest.approx(found.value, rel=1e-5), number
        # The conic solver is the less exact of the two: ours may be better, never worse.
        assert found.value == pytest.approx(want, rel=2e-5), number
        assert found.value <= want * (1 + 1e-6), number


def nobody_can_gain(problem: Problem, plain: Plain, scaled: Floats) -> None:
    """No job's level can rise while those with a level as low or lower keep theirs: the definition of the promise."""
    for job in np.flatnonzero(plain.runs):
        keep = plain.runs & (scaled <= scaled[job] * (1 + 1e-6))
        keep[job] = False
        scale = problem.weight / problem.width * plain.normal
        floors = np.where(keep, scaled * scale * (1 - 1e-9), 0.0)
        best = plain.best(plain.rate[job], floors)
        assert best.status == 0
        assert -best.fun <= scaled[job] * scale[job] * (1 + 1e-5) + 1e-6


@pytest.mark.parametrize(("policy", "packed"), variants("max_min_fairness_water_filling"))
def test_water_filling_is_lexicographic(policy: str, packed: bool) -> None:
    for number in range(CASES):
        problem = draw(number, packed=packed)
        plain, found = Plain(problem, packed=packed), make(policy).allocate(problem)
        check_limits(problem, found)
        if not plain.runs.any():
            continue
        scaled = found.throughput(problem) * problem.width / problem.weight / np.where(plain.runs, plain.normal, 1.0)
        nobody_can_gain(problem, plain, scaled)
        assert found.value == pytest.approx(scaled[plain.runs].min(), rel=1e-7, abs=1e-9)


def filled(problem: Problem, plain: Plain, inner: str) -> Floats:
    """Levels by the book: raise all, test every job on its own for being stuck, freeze, go on."""
    assert problem.entity is not None
    assert problem.entity_weight is not None
    normal = np.where(plain.runs, plain.normal, 1.0)
    level, frozen = np.zeros(problem.jobs), ~plain.runs
    while not frozen.all():
        share = np.zeros(problem.jobs)
        for entity, weight in enumerate(problem.entity_weight):
            mine = np.flatnonzero((problem.entity == entity) & ~frozen)
            if len(mine):
                part = problem.weight[mine] / problem.weight[mine].sum()
                oldest_first = inner == "fifo" or f"entity{entity}=fifo" in inner
                share[mine] = weight * (np.arange(len(mine)) == 0 if oldest_first else part)
        speed = share / problem.width
        objective = np.append(np.zeros(plain.rate.shape[1]), 1.0)
        best = plain.best(objective, level * normal * (1 - 1e-9), speed * normal)
        assert best.status == 0
        level = level + speed * max(-best.fun, 0.0)
        rising = np.flatnonzero(speed > 0)
        tops = [-plain.best(plain.rate[job], level * normal * (1 - 1e-7)).fun for job in rising]
        room = np.array(tops) / normal[rising] - level[rising]
        frozen[rising[room <= max(1e-5, room.min())]] = True
    return level


@pytest.mark.parametrize("inner", ["fairness", "fifo", "entity1=fifo", "entity0=fifo,entity2=fairness"])
@pytest.mark.parametrize(("policy", "packed"), variants("max_min_fairness_water_filling"))
def test_water_filling_over_entities(policy: str, packed: bool, inner: str) -> None:
    for number in range(CASES // 2):
        problem = draw(number, packed=packed, entities=3)
        plain = Plain(problem, packed=packed)
        found = make(policy, {"inner": inner}).allocate(problem)
        check_limits(problem, found)
        want = filled(problem, plain, inner)
        got = found.throughput(problem) / np.where(plain.runs, plain.normal, 1.0)
        assert got == pytest.approx(want, rel=1e-4, abs=1e-4), number


def most_deadlines(plain: Plain, need: Floats, asked: Ints) -> int:
    for size in range(len(asked), -1, -1):
        for kept in combinations(asked.tolist(), size):
            floors = np.zeros(len(need))
            floors[list(kept)] = need[list(kept)] * (1 - 1e-9)
            if plain.best(plain.worth, floors).status == 0:
                return size
    raise AssertionError


@pytest.mark.parametrize(("policy", "packed"), variants("max_sum_throughput_normalized_by_cost"))
def test_deadlines(policy: str, packed: bool) -> None:
    dropped = 0
    for number in range(CASES):
        problem = draw(number, packed=packed, deadlines=0.5)
        plain, found = Plain(problem, packed=packed), make(f"{policy}_SLOs").allocate(problem)
        check_limits(problem, found)
        need = np.where(
            np.isfinite(problem.deadline_s) & (problem.deadline_s > 0), problem.steps_left / problem.deadline_s, 0.0
        )
        asked = np.flatnonzero(need > 0)
        met = asked[found.throughput(problem)[asked] >= need[asked] * (1 - 1e-7)]
        most = most_deadlines(plain, need, asked)
        assert len(met) >= most, number
        floors = np.zeros(problem.jobs)
        floors[met] = need[met] * (1 - 1e-9)
        if len(met) == most:
            assert found.value is not None
            assert found.value <= -plain.best(plain.worth, floors).fun * (1 + 1e-6)
        if most == len(asked):
            assert found.value == pytest.approx(-plain.best(plain.worth, floors).fun, rel=1e-6), number
        dropped += len(asked) - most
    assert dropped > 5


def test_nash_welfare() -> None:
    for number in range(CASES):
        problem = draw(number, packed=False)
        plain, found = Plain(problem, packed=False), make("nash_welfare").allocate(problem)
        check_limits(problem, found)
        if not plain.runs.any():
            continue
        x = cp.Variable(plain.rate.shape[1])
        level = (plain.rate / np.where(plain.runs, plain.normal, 1.0)[:, None])[plain.runs] @ x
        goal = cp.Maximize(problem.weight[plain.runs] @ cp.log(level))
        want = cp.Problem(goal, [x >= 0, plain.matrix @ x <= plain.bound]).solve(solver=cp.CLARABEL)
        assert found.value == pytest.approx(want, rel=1e-6, abs=1e-6), number
        got = (found.throughput(problem) / np.where(plain.runs, plain.normal, 1.0))[plain.runs]
        assert problem.weight[plain.runs] @ np.log(got) == pytest.approx(found.value, rel=1e-6, abs=1e-6)
