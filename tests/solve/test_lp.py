"""The facade: what it answers, that it stays warm, and that a change is seen."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from dovetail.core.errors import DovetailError
from dovetail.solve import LinearProgram


def knapsack(*, maximise: bool = True) -> LinearProgram:
    """3 x + 2 y at 2 x + y <= 5."""
    lp = LinearProgram(maximise=maximise)
    lp.add_rows([-inf], [5.0])
    lp.add_columns(cost=[3.0, 2.0], lower=[0, 0], upper=[2, 4], starts=[0, 1], rows=[0, 0], values=[2.0, 1.0])
    return lp


def test_a_solution_its_columns_and_prices() -> None:
    lp = knapsack()
    assert lp.solve().status == "optimal"
    assert lp.solve().value == pytest.approx(9.5)
    assert lp.values() == pytest.approx([0.5, 4.0])
    assert lp.row_prices() == pytest.approx([1.5])


def test_whole_numbers() -> None:
    lp = knapsack()
    lp.set_integer([0, 1])
    assert lp.solve().value == 9.0
    assert lp.values() == pytest.approx([1.0, 3.0])


def test_every_change_is_seen() -> None:
    lp = knapsack()
    lp.solve()
    lp.set_costs([1], [0.0])
    assert lp.solve().value == 6.0
    lp.set_bounds([0], [0.0], [1.0])
    assert lp.solve().value == 3.0
    lp.set_coefficient(0, 0, 10.0)
    assert lp.solve().value == 1.5
    lp.set_row_bounds([0], [-inf], [4.0])
    assert lp.solve().value == pytest.approx(1.2)
    lp.add_rows([-inf], [0.1], [0], [0], [1.0])
    assert lp.solve().value == pytest.approx(0.3)
    lp.add_columns(cost=[1.0], lower=[0.0], upper=[7.0], starts=[0], rows=[], values=[])
    assert lp.solve().value == pytest.approx(7.3)


@pytest.mark.parametrize(
    "change",
    [
        lambda lp: lp.add_columns(cost=[1.0], lower=[0.0], upper=[1.0], starts=[0], rows=[7], values=[1.0]),
        lambda lp: lp.add_rows([0.0], [1.0], [0], [7], [1.0]),
        lambda lp: lp.set_costs([7], [1.0]),
        lambda lp: lp.set_bounds([0], [2.0], [np.nan]),
        lambda lp: lp.set_row_bounds([7], [0.0], [1.0]),
        lambda lp: lp.set_coefficient(0, 7, 1.0),
        lambda lp: lp.set_integer([7]),
    ],
)
def test_a_change_that_cannot_be_made_is_an_error(change: Callable[[LinearProgram], object]) -> None:
    lp = knapsack()
    with pytest.raises(DovetailError, match="refused"):
        change(lp)
    assert (lp.rows, lp.columns) == (1, 2)
    assert lp.solve().value == pytest.approx(9.5)


def test_no_solution_and_no_end() -> None:
    lp = knapsack()
    lp.set_row_bounds([0], [-inf], [-1.0])
    assert lp.solve().status == "infeasible"
    lp.set_row_bounds([0], [-inf], [inf])
    lp.set_bounds([0], [0.0], [inf])
    assert lp.solve().status == "unbounded"
    lp.set_row_bounds([0], [-inf], [5.0])
    assert lp.solve().value == pytest.approx(9.5)


def test_least_cost() -> None:
    lp = knapsack(maximise=False)
    lp.set_row_bounds([0], [3.0], [inf])
    assert lp.solve().value == pytest.approx(4.5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_warm_answers_are_those_of_a_cold_solver(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(1, 6, 2)
    matrix = generator.uniform(0, 1, (rows, columns))
    bound, cost = generator.uniform(0, 3, rows), generator.uniform(-1, 2, columns)
    lp = LinearProgram(maximise=True)
    lp.add_rows(np.full(rows, -inf), bound)
    at = np.tile(np.arange(rows), columns)
    starts = np.arange(0, rows * columns, rows)
    ones = np.ones(columns)
    lp.add_columns(cost=cost, lower=0 * ones, upper=ones, starts=starts, rows=at, values=matrix.T.ravel())
    for _ in range(4):
        want = -linprog(-cost, A_ub=matrix, b_ub=bound, bounds=(0, 1)).fun
        assert lp.solve().value == pytest.approx(want, abs=1e-8)
        row, column = int(generator.integers(rows)), int(generator.integers(columns))
        matrix[row, column], bound[row], cost[column] = generator.uniform(0, 2, 3)
        lp.set_coefficient(row, column, matrix[row, column])
        lp.set_row_bounds([row], [-inf], [bound[row]])
        lp.set_costs([column], [cost[column]])
