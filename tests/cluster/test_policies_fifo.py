"""First come, first served: who runs where, who moves, and who waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.scenario import load
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Ints, Problem
from dovetail.cluster.policies.fifo_moving import fastest_first
from dovetail.cluster.simulate import run
from dovetail.testing.cluster.problems import random_problem

BY_JOB = ("ids", "kind", "width", "weight", "steps_left", "age_s", "deadline_s")


def part(problem: Problem, jobs: Ints) -> Problem:
    return replace(problem, **{name: getattr(problem, name)[jobs] for name in BY_JOB})


def test_the_head_moves_to_the_faster_type_that_is_left_and_the_queue_follows() -> None:
    drawn = random_problem(np.random.default_rng(0), jobs=4, kinds=1, counts=(1, 1))
    problem = replace(drawn, rates=np.array([[1.0, 5.0]]))
    policy = make("fifo_moving")
    assert policy.allocate(problem).share.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]
    assert policy.allocate(part(problem, np.arange(1, 4))).share.tolist() == [[0, 1], [1, 0], [0, 0]]
    stays = make("fifo")
    first = stays.allocate(problem).share
    gone = int(first[:, 1].argmax())
    left = np.delete(np.arange(4), gone)
    assert (stays.allocate(part(problem, left)).share[:1] == first[left][:1]).all()


def test_which_type_is_faster_is_the_same_for_all_jobs() -> None:
    drawn = random_problem(np.random.default_rng(0), jobs=1, kinds=3, counts=(1, 1))
    rates = np.array([[1.0, 4.0], [10.0, 40.0], [1.0, 0.9]])
    problem = replace(drawn, rates=rates, kind=np.array([2]))
    assert make("fifo_moving").allocate(problem).share.tolist() == [[0, 1]]  # though it is slower there
    assert make("fifo_perf").allocate(problem).share.tolist() == [[1, 0]]
    nowhere = replace(problem, rates=np.zeros((3, 2)))
    assert fastest_first(nowhere) == [0, 1]
    assert make("fifo_moving").allocate(nowhere).share.tolist() == [[0, 0]]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 14), types=st.integers(1, 4))
def test_nobody_is_overtaken_or_moves_to_a_slower_type_and_all_that_could_move_have(
    seed: int, jobs: int, types: int
) -> None:
    generator = np.random.default_rng(seed)
    counts = tuple(generator.integers(1, 6, types).tolist())
    everybody = random_problem(generator, jobs=jobs, kinds=4, counts=counts, widths=(1, 2, 4), unfit=0.2)
    place = {on: at for at, on in enumerate(fastest_first(everybody))}
    policy, before = make("fifo_moving"), dict[int, int]()
    present, coming = np.arange(0), 0
    for _ in range(12):
        coming = min(jobs, coming + int(generator.integers(0, 4)))
        stay = present[generator.random(len(present)) < 0.8]
        present = np.append(stay, np.arange(present.max(initial=-1) + 1, coming)) if coming else stay
        problem = part(everybody, present)
        share = policy.allocate(problem).share
        on = {int(present[row]): int(share[row].argmax()) for row in np.flatnonzero(share.sum(axis=1))}
        free = problem.counts - problem.width @ share
        for job, now in on.items():
            assert place[now] <= place[before.get(job, now)]
            better = [j for j in range(types) if place[j] < place[now] and everybody.rates[everybody.kind[job], j] > 0]
            assert not any(free[j] >= everybody.width[job] for j in better)
        able = ((problem.speed > 0) & (problem.width[:, None] <= problem.counts)).any(axis=1)
        waiting = [int(job) for job in present[able] if int(job) not in on]
        assert not waiting or max(on, default=-1) < waiting[0]
        before = on


@pytest.mark.parametrize("seed", range(3))
def test_moving_jobs_shortens_the_makespan_of_fifo(seed: int) -> None:
    """What is compared with the FIFO that never moves jobs alone is flattered."""
    loaded = load(cluster="v100=4,k80=8", jobs=40, seed=seed)
    makespan_s = {
        name: run(loaded.setup, loaded.policy(name)).figures.makespan_s for name in ("fifo", "fifo_moving", "fifo_perf")
    }
    assert makespan_s["fifo_moving"] < makespan_s["fifo"]
    assert makespan_s["fifo_perf"] < makespan_s["fifo"]
