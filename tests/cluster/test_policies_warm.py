"""Policies that remember their last answer give the same levels as ones that see a problem for the first time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail.cluster.optimise.share_lp import ShareProgram
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Ints, Problem
from dovetail.cluster.policies.max_min_fairness import MaxMinFairnessPerf
from dovetail.cluster.policies.water_filling import WaterFillingPerf
from dovetail.testing.cluster.problems import random_problem

COMINGS_AND_GOINGS = 25


def only(problem: Problem, jobs: Ints) -> Problem:
    """The same cluster with some of the jobs."""
    by_job = ("ids", "kind", "width", "weight", "steps_left", "age_s", "deadline_s")
    return replace(problem, **{name: getattr(problem, name)[jobs] for name in by_job})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("policy", ["max_min_fairness", "max_min_fairness_water_filling"])
def test_levels_do_not_depend_on_what_was_asked_before(policy: str, packed: bool) -> None:
    name = f"{policy}_{'packed' if packed else 'perf'}"
    for seed in range(8):
        tie_break = np.random.default_rng(seed)
        whole = random_problem(
            tie_break, jobs=24, kinds=5, counts=(3, 2, 6), widths=(1, 2), weights=(1.0, 5.0), unfit=0.1, pairs=packed
        )
        warm, here = make(name), tie_break.random(24) < 0.5
        for _ in range(COMINGS_AND_GOINGS):
            here[tie_break.integers(24)] ^= True
            problem = only(whole, np.flatnonzero(here))
            found, expected = warm.allocate(problem), make(name).allocate(problem)
            assert found.value == pytest.approx(expected.value, rel=1e-8, abs=1e-9)
            if policy.endswith("water_filling"):
                assert found.throughput(problem) == pytest.approx(expected.throughput(problem), rel=1e-6, abs=1e-6)


class Counted(ShareProgram):
    """Counts how often a level was looked for."""

    searched = 0

    def level_above(self, *given: object) -> float | None:
        self.searched += 1
        return super().level_above(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "most"), [(MaxMinFairnessPerf(), 0.5), (WaterFillingPerf(), 3.0)])
def test_a_warm_policy_seldom_looks_for_a_level(policy: MaxMinFairnessPerf | WaterFillingPerf, most: float) -> None:
    """Prices of the last level bound the next one; who reaches its top is found together with the others."""
    program = policy._program = Counted()
    tie_break = np.random.default_rng(1)
    whole = random_problem(tie_break, jobs=60, kinds=20, counts=(20, 20, 20))
    here = tie_break.random(60) < 0.7
    for _ in range(40):
        here[tie_break.integers(60)] ^= True
        policy.allocate(only(whole, np.flatnonzero(here)))
    assert program.searched <= most * 40


def test_a_job_that_finds_company_of_its_own_class_is_not_held_to_the_old_prices() -> None:
    """With one job of a class there is nobody to share with; with the second, everybody can have more."""
    tie_break = np.random.default_rng(0)
    whole = random_problem(tie_break, jobs=6, kinds=2, counts=(2,), pairs=True)
    whole = replace(whole, kind=np.array([0, 0, 1, 1, 1, 1]), pair_rates=np.full((2, 2, 1), 0.0))
    assert whole.pair_rates is not None
    whole.pair_rates[0, 0] = 0.9 * whole.rates[0]
    warm = make("max_min_fairness_packed")
    for jobs in ([0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 5], [0, 1, 2, 3]):
        problem = only(whole, np.array(jobs))
        found, expected = warm.allocate(problem), make("max_min_fairness_packed").allocate(problem)
        assert found.value == pytest.approx(expected.value, rel=1e-9)
