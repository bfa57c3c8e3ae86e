"""Jobs that are alike are decided about together: the decision is worth what it is worth where each is looked at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail.cluster.optimise.configurations import choose
from dovetail.cluster.optimise.placement import Placement
from dovetail.cluster.optimise.turns import in_turn
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Ints, Problem
from dovetail.testing.cluster.problems import random_problem
from tests.cluster.test_configurations import random_case, used
from tests.cluster.test_sia import NUMBERS, problem

SEEDS = st.integers(0, 2**32)


def rigid(generator: np.random.Generator, *, wide: bool = True) -> Problem:
    """Jobs of few kinds, many of them equal, on fewer accelerators than jobs or more, of up to four types."""
    jobs = int(generator.integers(1, 60))
    counts = tuple(generator.integers(0, max(int(jobs * generator.choice([0.1, 0.3, 0.6])), 1) + 2, 4).tolist())
    found = random_problem(
        generator,
        jobs=jobs,
        kinds=int(generator.integers(1, 6)),
        counts=counts[: int(generator.integers(1, 5))],
        widths=(1, 1, 2, 4) if wide else (1,),
        weights=(1.0, 1.0, 5.0),
        unfit=float(generator.choice([0.0, 0.3])),
    )
    if generator.random() < 0.5:
        found.steps_left[:] = generator.choice([1e4, 1e5], jobs)
        found.age_s[:] = np.round(found.age_s, -4)
    if generator.random() < 0.3:
        found.rates[:] = found.rates.round(-1)
    return found


def mixed(generator: np.random.Generator) -> Problem:
    """Rigid jobs of any width beside some with profiles, which run or wait, were wide or not, or are restarting."""
    jobs = int(generator.integers(1, 25))
    on = np.where(generator.random(jobs) < 0.5, generator.integers(0, 2, jobs), -1)
    knows = np.where((generator.random(jobs) < 0.7)[:, None, None], NUMBERS, np.nan)
    found = problem(
        jobs,
        adaptive=int(generator.integers(0, jobs + 1)),
        numbers=np.where(np.arange(2)[:, None] == 0, knows, np.nan),
        width=2 ** generator.integers(0, 3, jobs),
        age_s=generator.choice([100.0, 1e4, 3e4], jobs),
        on=on,
        widest=np.stack([generator.choice([1, 2, 4], jobs), np.zeros(jobs, dtype=np.int64)], axis=1),
        pause_s=np.where((on >= 0) & (generator.random(jobs) < 0.1), 20.0, 0.0),
    )
    found.steps_left[:] = generator.choice([100.0, 500.0, 1e5], jobs)
    found.rates *= generator.uniform(0.5, 1, found.rates.shape)
    return found


def apart(problem: Problem) -> Problem:
    """The same, where every job is of kinds of its own, which are as those that it was of."""
    own = np.arange(problem.jobs) * len(problem.rates)
    scaled = problem.scaled
    if scaled is not None:
        scaled = np.concatenate([np.where(scaled >= 0, scaled + first, -1) for first in own.tolist()])
    return replace(
        problem,
        kind=own + problem.kind,
        rates=np.tile(problem.rates, (problem.jobs, 1)),
        scaled=scaled,
        kind_width=None if problem.kind_width is None else np.tile(problem.kind_width, problem.jobs),
    )


def later(problem: Problem) -> Problem:
    """An hour later, when nobody came or went."""
    return replace(problem, now_s=3600.0, age_s=problem.age_s + 3600, steps_left=problem.steps_left * 0.9)


@pytest.mark.parametrize("name", ["sia", "goodput_lookahead", "elastic_throughput"])
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, profiles=st.booleans())
def test_a_plan_of_alike_jobs_is_worth_that_of_single_ones(name: str, seed: int, profiles: bool) -> None:
    generator = np.random.default_rng(seed)
    asked = mixed(generator) if profiles else rigid(generator)
    together, single = make(name), make(name)
    for now in (asked, later(asked)):
        found, expected = together.allocate(now), single.allocate(apart(now))
        assert not found.fault(now)
        if not profiles:  # which change their widths
            assert (now.width @ (found.share > 0) <= now.counts).all()
        assert found.value == pytest.approx(expected.value, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["allox", "optimus", "shockwave"])
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_alike_jobs_get_what_single_ones_get(name: str, seed: int) -> None:
    asked = rigid(np.random.default_rng(seed), wide=name != "allox")
    together, single = make(name), make(name)
    for now in (asked, later(asked)):
        found, expected = together.allocate(now), single.allocate(apart(now))
        assert found.share == pytest.approx(expected.share)
        assert found.why == expected.why


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 8), many=st.sampled_from([1, 5, 40, 300]), gap=st.sampled_from([0.0, 1e-3]))
def test_rows_of_alike_jobs_save_what_the_jobs_do(seed: int, rows: int, many: int, gap: float) -> None:
    rng = np.random.default_rng(seed)
    saving, on, width, counts = random_case(rng, rows, int(rng.integers(1, 30)))
    of = rng.integers(0, rows, many)  # of some rows there may be nobody
    plan, single = (choose(each, on, width, counts, of=by, gap=gap) for each, by in ((saving, of), (saving[of], None)))
    assert (used(plan, on, width, len(counts)) <= counts).all()
    runs = np.flatnonzero(plan.choice >= 0)
    assert plan.saved == pytest.approx(saving[of[runs], plan.choice[runs]].sum())
    assert max(plan.saved, single.saved) <= min(plan.bound, single.bound) * (1 + 1e-7) + 1e-9


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, jobs=st.integers(0, 80), types=st.integers(1, 4), narrow=st.booleans())
def test_many_at_once_take_what_one_after_the_other_takes(seed: int, jobs: int, types: int, narrow: bool) -> None:
    rng = np.random.default_rng(seed)
    on, width = np.arange(types).repeat(3), np.tile([1, 1, 1] if narrow else [1, 3, 8], types)
    likes, counts = rng.random((jobs, 3 * types)).round(1), rng.integers(0, 2 * jobs + 2, types)
    likes[rng.random(likes.shape) < 0.3] = -1.0
    free = counts.copy()

    def best(jobs: Ints, room: NDArray[np.bool_]) -> Ints:
        may = np.where(room, likes[jobs], -1.0)
        return np.where(may.max(axis=1, initial=-1.0) < 0, -1, may.argmax(axis=1))

    found = in_turn(best(np.arange(jobs), np.full(len(on), True)), on, width, free, best)
    expected = []
    for job in range(jobs):
        expected.append(int(best(np.array([job]), width <= counts[on])[0]))
        if expected[-1] >= 0:
            counts[on[expected[-1]]] -= width[expected[-1]]
    assert found.tolist() == expected
    assert free.tolist() == counts.tolist()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_jobs_are_placed_together_as_one_after_the_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = rigid(rng)
    together, single = Placement(asked), Placement(asked)
    jobs, on = rng.permutation(asked.jobs), rng.integers(0, len(asked.counts), asked.jobs)
    together.put_in_turn(jobs, on)
    for job, at in zip(jobs.tolist(), on.tolist(), strict=True):
        if single.has_room(job, at):
            single.put(job, at)
    assert together.type_of == single.type_of
    assert together.free == single.free
