"""What the policies are made of: classes, shares without a program, divisions among the jobs of a class."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.optimise.classes import group
from dovetail.cluster.optimise.equal_shares import pair_up
from dovetail.cluster.optimise.shares import water_level
from dovetail.cluster.optimise.windows import divide, raised
from dovetail.cluster.policies.tiresias import gittins

numbers = st.floats(0.05, 5.0)


def test_jobs_alike_are_one_class_and_keys_do_not_depend_on_who_is_there() -> None:
    everyone = group(np.array([3, 1, 3, 1]), np.array([1.0, 2.0, 1.0, 1.0]), np.array([0, 0, 0, 0]))
    assert everyone.key == [(1, 1.0, 0), (1, 2.0, 0), (3, 1.0, 0)]
    assert [jobs.tolist() for jobs in everyone.members()] == [[3], [1], [0, 2]]
    fewer = group(np.array([3, 1]), np.array([1.0, 1.0]), np.array([0, 0]))
    assert set(fewer.key) < set(everyone.key)


def test_unlike_jobs_with_unlike_traits_are_grouped_in_little_memory() -> None:
    jobs = 3000
    tracemalloc.start()
    try:
        classes = group(np.arange(jobs) // 2, np.arange(jobs) // 3 * 1.0, np.arange(jobs) % 7 * 1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # of a number for each pair of a kind and a trait, 12 MB
    assert [classes.key[each] for each in classes.of.tolist()] == [
        (each // 2, each // 3 * 1.0, each % 7 * 1.0) for each in range(jobs)
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1.0, 2.0, 5.0])), min_size=1), st.integers(1, 30)
)
def test_water_level_uses_everything_and_lifts_nobody_above_another(jobs: list[tuple[int, float]], room: int) -> None:
    width, weight = np.array([w for w, _ in jobs]), np.array([v for _, v in jobs])
    time, level = water_level(width, weight, float(room))
    assert width @ time == pytest.approx(min(room, width.sum()))
    height = time * width / weight
    below_full = time < 1 - 1e-12
    assert height[below_full] == pytest.approx(height[below_full].max(initial=0.0))
    assert (height[~below_full] <= height[below_full].max(initial=np.inf) + 1e-9).all()
    assert level == pytest.approx(height.min())


@settings(max_examples=150, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=7), st.lists(st.tuples(numbers, st.floats(0, 1)), min_size=1, max_size=5))
def test_whoever_can_be_served_is_served(want: list[float], options: list[tuple[float, float]]) -> None:
    """Divide what is majorised by the options: everybody gets its rate within its time, and nothing is made up."""
    rate = np.array(sorted((r for r, _ in options), reverse=True))
    time = np.array([t for _, t in options]) * len(want) / len(options)
    asked = np.array(want)
    beyond = [(np.maximum(asked - r, 0).sum(), time @ np.maximum(rate - r, 0)) for r in [0.0, *rate]]
    asked *= min([1.0, *[0.999 * given / need for need, given in beyond[:1] if need > 0]])
    for _ in range(60):  # until for every rate no more is wanted beyond it than there is
        if all(np.maximum(asked - r, 0).sum() <= time @ np.maximum(rate - r, 0) for r in [0.0, *rate]):
            break
        asked = asked * 0.8
    else:
        return
    given = divide(rate, time, asked)
    assert (given >= 0).all()
    assert (given.sum(axis=1) <= 1 + 1e-9).all()
    assert (given.sum(axis=0) <= time + 1e-9).all()
    assert (given @ rate >= asked - 1e-9).all()
    assert (given @ rate).sum() == pytest.approx(rate @ time, rel=1e-6)  # and nothing is left lying


def test_raising_starts_with_the_poorest() -> None:
    assert raised(np.array([5.0, 1.0, 2.0]), 9.0).tolist() == [5.0, 2.0, 2.0]
    assert raised(np.array([5.0, 1.0, 2.0]), 8.0).tolist() == [5.0, 1.0, 2.0]
    assert raised(np.array([1.0, 1.0]), 10.0).tolist() == [5.0, 5.0]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9))
def test_pairs_give_equal_parts_and_are_few(left: int, right: int) -> None:
    a, b = np.arange(left), left + np.arange(right)
    pairs, share = pair_up([(a, b, np.array([1.0, 2.0]))])
    got = np.zeros((left + right, 2))
    for side in (0, 1):
        np.add.at(got, pairs[:, side], share)
    assert got[:left] == pytest.approx(np.tile([1.0, 2.0], (left, 1)) / left)
    assert got[left:] == pytest.approx(np.tile([1.0, 2.0], (right, 1)) / right)
    assert len(pairs) <= left + right - 1


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_class_beside_itself(count: int) -> None:
    jobs = np.arange(count)
    pairs, share = pair_up([(jobs, jobs, np.array([1.0]))])
    assert (pairs[:, 0] < pairs[:, 1]).all()
    got = np.zeros(count)
    for side in (0, 1):
        np.add.at(got, pairs[:, side], share[:, 0])
    assert got == pytest.approx(np.full(count, 2 / count))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 30, 200]))
def test_the_gittins_index_of_many_jobs_is_that_of_its_definition(seed: int, many: int) -> None:
    """All jobs at once, by the hull of the sizes: what each further size would give, one after another."""
    generator = np.random.default_rng(seed)
    sizes = np.sort(10 ** generator.uniform(0, 5, many) if seed % 2 else generator.integers(1, 9, many) * 1.0)
    service = np.concatenate([[0.0], sizes, generator.uniform(0, 1.1 * sizes[-1], 50)])
    for had, index in zip(service, gittins(sizes, service), strict=True):
        left = sizes[sizes > had] - had
        ended = [(left <= more).sum() / np.minimum(left, more).sum() for more in left]
        assert index == pytest.approx(max(ended, default=0.0))
