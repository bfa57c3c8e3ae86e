"""Jobs in queues of unlike accelerators: how far the sum of completion times is from the least of a matching."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from dovetail.cluster.optimise.queues import Queued, queue
from dovetail.cluster.policies import allox, make
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.testing.cluster.problems import random_problem


def drawn(seed: int) -> tuple[Floats, Ints]:
    """Times of jobs by type (infinite where one does not run), and how many queues each type has."""
    generator = np.random.default_rng(seed)
    types, jobs = int(generator.integers(1, 5)), int(generator.integers(1, 120))
    queues = generator.integers(0, (2, 4, 12, 40)[seed % 4], types)
    queues[-1] = max(queues[-1], 1)
    choices: list[Floats] = [
        np.power(10.0, generator.uniform(0, 1, (jobs, types))),
        np.power(10.0, generator.uniform(3, 6, (jobs, 1))) / generator.uniform(0.2, 1, (jobs, types)),
        generator.integers(1, 6, (jobs, types)).astype(np.float64),  # ties
    ]
    time = choices[seed % 3]
    time[:, :-1][generator.random((jobs, types - 1)) < 0.1] = np.inf
    return time, queues


def total(time: Floats, queues: Ints, found: Queued) -> float:
    """By the definition: who is k-th from the end of its queue delays k jobs."""
    assert sorted(np.concatenate(found.order).tolist()) == list(range(len(time)))
    return sum(
        float(time[job, on]) * int(place // queues[on] + 1)
        for on, jobs in enumerate(found.order)
        for place, job in enumerate(jobs.tolist())
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_sum_is_close_to_that_of_the_best_matching(seed: int) -> None:
    time, queues = drawn(seed)
    found = queue(time, queues)
    place = [(on, k) for on, many in enumerate(queues) for k in range(1, len(time) + 1) for _ in range(many)]
    costs = np.stack([np.minimum(time[:, on], 1e12) * k for on, k in place], axis=1)
    least = costs[linear_sum_assignment(costs)].sum()
    reached = total(time, queues, found)
    assert least * (1 - 1e-9) <= reached <= least * 1.04
    assert reached <= least * (1 + found.above) * (1 + 1e-9)  # what is told of it holds
    assert reached / (1 + found.above) <= least * (1 + 1e-9)
    for on, jobs in enumerate(found.order):
        assert (np.diff(time[jobs, on]) <= 0).all()


def test_nobody_gains_by_moving_alone() -> None:
    for seed in range(12):
        time, queues = drawn(seed)
        time, found = time[:40], queue(time[:40], queues)
        reached = total(time, queues, found)
        for job in range(len(time)):
            for on in np.flatnonzero((queues > 0) & np.isfinite(time[job])).tolist():
                order = [jobs[jobs != job] for jobs in found.order]
                order[on] = np.append(order[on], job)[np.argsort(-time[np.append(order[on], job), on], kind="stable")]
                assert total(time, queues, Queued(order, 0.0)) >= reached * (1 - 1e-9)


def test_allox_of_many_jobs_is_as_good_as_the_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call after call: who stays, who starts, and what the reason tells. Where nobody runs, nobody is placed."""
    for seed in range(6):
        generator = np.random.default_rng(seed)
        problem = random_problem(generator, jobs=130, kinds=20, counts=(5, 0, 9), unfit=0.2)
        many, exact = make("allox"), make("allox")
        for _ in range(3):
            found = many.allocate(problem)
            monkeypatch.setattr(allox, "EXACT", 10**6)
            expected = exact.allocate(problem)
            monkeypatch.setattr(allox, "EXACT", 100)
            assert not found.fault(problem)
            assert not found.share[problem.speed == 0].any()
            assert (found.share.sum(axis=0) == expected.share.sum(axis=0)).all()
            assert found.why.split(", in all")[0] == expected.why
            runs = np.flatnonzero(found.share.any(axis=1))
            stay = np.setdiff1d(np.arange(problem.jobs), runs[:2])
            names = ("ids", "kind", "width", "weight", "steps_left", "age_s", "deadline_s")
            problem = replace(problem, **{name: getattr(problem, name)[stay] for name in names})
            exact._type_of = dict(many._type_of)  # type: ignore[attr-defined]


def test_allox_of_many_jobs_that_run_nowhere() -> None:
    problem = random_problem(np.random.default_rng(0), jobs=130, kinds=2, counts=(4, 4))
    problem.rates[0] = 0.0
    share = make("allox").allocate(problem).share
    assert not share[problem.kind == 0].any()
    assert (share.sum(axis=0) == 4).all()
    problem.rates[:] = 0.0
    assert not make("allox").allocate(problem).share.any()
