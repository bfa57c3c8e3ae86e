"""What no schedule can beat, and how many envy others."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.cluster.bounds import fastest, least_makespan_s
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Allocation, Problem
from dovetail.cluster.rounding.envy import envy
from dovetail.testing.cluster.problems import random_problem
from tests.cluster.conftest import Make, Table

RIGID = Table({})


def test_a_job_that_can_never_run_needs_no_time(make_setup: Make) -> None:
    """The 4-wide job fits nowhere; nothing is asked of the others because of it."""
    jobs = [Job(id=0, model="B", width=4, steps=1e9), Job(id=1, model="A", steps=400)]
    assert least_makespan_s(make_setup(jobs), RIGID) == 100.0


def test_a_rate_over_several_servers_may_be_the_best(make_setup: Make) -> None:
    """Measured rates are not always lower there: a schedule may use them, so a bound must."""
    kinds, alone, spread = [("A", 2)], np.array([[2.0, 1.0]]), np.array([[4.0, 1.0]])
    known = Throughputs(("fast", "slow"), kinds, alone, spread)
    setup = make_setup([Job(id=0, model="A", width=2, steps=400)], throughputs=known)
    assert least_makespan_s(setup, RIGID) == 100.0


def test_a_job_wider_than_a_server_runs_at_the_rate_over_several(make_setup: Make) -> None:
    setup = make_setup([Job(id=0, model="A", width=2, steps=600)], per_server=(1, 1))
    assert least_makespan_s(setup, RIGID) == 100.0


def test_an_elastic_job_may_have_the_best_of_its_widths(make_setup: Make) -> None:
    setup = make_setup([Job(id=0, model="A", steps=800)])
    assert fastest(setup, RIGID)[0][0] == 4.0
    assert fastest(setup, make("elastic_throughput"))[0][0] == 8.0
    assert least_makespan_s(setup, make("elastic_throughput")) == 100.0


def test_a_bound_counts_from_the_first_arrival(make_setup: Make) -> None:
    """Three jobs of 100 s on two accelerators; the last alone ends 110 s after the first arrival at the earliest."""
    jobs = [Job(id=i, model="A", steps=400, arrival_s=5000.0 + 10 * (i == 2)) for i in range(3)]
    setup = make_setup(jobs, counts=(2, 0))
    assert least_makespan_s(setup, RIGID) == 150.0
    assert least_makespan_s(setup, RIGID, anywhere=True) == 5110.0  # by the older rules


def _envious(problem: Problem, share: np.ndarray) -> float:
    """Pair by pair."""
    found, n = 0, problem.jobs
    for one in range(n):
        for other in range(n):
            part = share[other] * problem.width[other] / problem.weight[other]
            mine = part * problem.weight[one] / problem.width[one]
            mine = mine / max(mine.sum(), 1.0)
            has = (problem.speed[one] * share[one]).sum()
            found += one != other and (problem.speed[one] * mine).sum() > has * (1 + 1e-6)
    return found / (n * (n - 1))


@pytest.mark.parametrize("seed", range(20))
def test_envy_is_counted_pair_by_pair(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = random_problem(
        generator, jobs=12, kinds=4, counts=(3, 2, 4), widths=(1, 2), weights=(1.0, 5.0), unfit=0.2
    )
    share = generator.uniform(0, 0.3, (12, 3))
    assert envy(problem, Allocation(share=share)) == pytest.approx(_envious(problem, share))


def test_equal_parts_are_not_envied_and_one_job_envies_nobody() -> None:
    problem = random_problem(np.random.default_rng(0), jobs=200, kinds=5, counts=(3, 2, 4))
    assert envy(problem, make("isolated").allocate(problem)) == 0.0
    alone = random_problem(np.random.default_rng(0), jobs=1, kinds=1, counts=(1,))
    assert envy(alone, make("isolated").allocate(alone)) is None
