"""Assignments against every assignment, and against scipy's: ties, negative and large numbers, forbidden entries."""

from __future__ import annotations

from itertools import permutations
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dovetail.solve.assignment import assign

Floats = NDArray[np.float64]
TIED = st.integers(0, 4).map(float)
SIGNED = st.integers(-50, 50).map(float)
FRACTIONS = st.integers(-1000, 1000).map(lambda number: number / 64)  # sums of them are exact
LARGE = st.integers(-(2**45), 2**45).map(float)


def solve(cost: Floats) -> list[int]:
    return [int(column) for column in assign(lambda row: cost[row], *cost.shape)]


def total(cost: Floats, columns: list[int]) -> float:
    return sum(float(cost[row, column]) for row, column in enumerate(columns))


@st.composite
def matrices(draw: st.DrawFn, elements: st.SearchStrategy[float], most: int = 5) -> Floats:
    rows = draw(st.integers(1, most))
    columns = draw(st.integers(rows, most + 1))
    found: Floats = draw(arrays(np.float64, (rows, columns), elements=elements))
    return found


@settings(max_examples=300, deadline=None)
@given(st.one_of(matrices(TIED), matrices(SIGNED), matrices(FRACTIONS), matrices(LARGE)))
def test_no_assignment_is_cheaper(cost: Floats) -> None:
    rows, columns = cost.shape
    found = solve(cost)
    assert len(set(found)) == rows
    assert total(cost, found) == min(total(cost, list(way)) for way in permutations(range(columns), rows))


@settings(max_examples=200, deadline=None)
@given(matrices(st.one_of(SIGNED, st.just(inf)), most=4))
def test_a_forbidden_entry_is_never_taken(cost: Floats) -> None:
    rows, columns = cost.shape
    cheapest = min(total(cost, list(way)) for way in permutations(range(columns), rows))
    if cheapest == inf:
        with pytest.raises(ValueError, match="forbidden"):
            solve(cost)
    else:
        assert total(cost, solve(cost)) == cheapest


def random_costs(kind: str, shape: tuple[int, int], generator: np.random.Generator) -> Floats:
    match kind:
        case "uniform":
            return generator.uniform(0, 1, shape)
        case "negative":
            return generator.normal(-5, 3, shape)
        case "tied":
            return generator.integers(-2, 2, shape).astype(float)
        case "skewed":
            return np.exp(generator.uniform(-6, 14, shape))
        case "sparse":
            return np.where(generator.uniform(0, 1, shape) < 0.5, generator.normal(0, 9, shape), 1e9)
        case _:  # rows and columns in one order: every row wants the same columns
            return (np.arange(shape[0]) + 1.0)[:, None] * (np.arange(shape[1]) + 1.0)


@pytest.mark.parametrize("kind", ["uniform", "negative", "tied", "skewed", "sparse", "contested"])
@pytest.mark.parametrize("wide", [0, 1, 30])
def test_large_ones_cost_what_scipys_do(kind: str, wide: int) -> None:
    generator = np.random.default_rng([wide, len(kind)])
    for _ in range(10):
        rows = int(generator.integers(1, 40))
        cost = random_costs(kind, (rows, rows + wide), generator)
        found = solve(cost)
        assert sorted(set(found)) == sorted(found)
        assert total(cost, found) == pytest.approx(cost[linear_sum_assignment(cost)].sum(), rel=1e-12, abs=1e-9)


def test_ties_are_broken_as_in_scipy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows = int(generator.integers(1, 9))
        columns = rows + int(generator.integers(0, 9))
        cost = generator.integers(-1, 2, (rows, columns)).astype(float)
        assert solve(cost) == linear_sum_assignment(cost)[1].tolist()


def test_a_row_is_asked_for_only_when_it_is_needed() -> None:
    cost, asked = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]]), []

    def row(index: int) -> Floats:
        asked.append(index)
        found: Floats = cost[index]
        return found

    assert assign(row, 3, 3).tolist() == [0, 1, 2]
    assert asked == [0, 1, 2]


def test_nothing_to_assign() -> None:
    assert solve(np.zeros((0, 3))) == []


def test_more_rows_than_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows for 2 columns"):
        solve(np.zeros((3, 2)))
