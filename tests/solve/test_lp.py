"""The facade: what it answers, proven by prices; that it stays warm, and that a change is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from dovetail.core.errors import DovetailError
from dovetail.solve import LinearProgram

Floats = NDArray[np.float64]


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


# --- random programs ---------------------------------------------------------------------------------


@dataclass
class Dense:
    """A program as a table of numbers: optimise cost @ x at lower <= x <= upper, floor <= matrix @ x <= ceiling."""

    maximise: bool
    cost: Floats
    lower: Floats
    upper: Floats
    matrix: Floats
    floor: Floats
    ceiling: Floats

    @classmethod
    def draw(cls, generator: np.random.Generator, *, loose: bool) -> Dense:
        """With `loose`, bounds are often missing, so that there may be no solution or no end."""
        rows, columns = (int(number) for number in generator.integers(1, 7, 2))
        lower, upper = _interval(generator, columns, absent=0.3 if loose else 0.0)
        floor, ceiling = _interval(generator, rows, absent=0.4)
        matrix = np.where(generator.uniform(size=(rows, columns)) < 0.7, generator.uniform(-2, 3, (rows, columns)), 0.0)
        if not loose:  # some point inside the bounds is allowed
            inside = matrix @ generator.uniform(lower, upper)
            floor, ceiling = np.minimum(floor, inside), np.maximum(ceiling, inside)
        cost = generator.uniform(-2, 2, columns)
        return cls(bool(generator.integers(2)), cost, lower, upper, matrix, floor, ceiling)

    def load(self) -> LinearProgram:
        """All at once, into a new solver."""
        lp = LinearProgram(maximise=self.maximise)
        assert lp.add_rows(self.floor, self.ceiling) == 0
        assert self.append_columns(lp, 0) == 0
        assert (lp.rows, lp.columns) == self.matrix.shape
        return lp

    def append_columns(self, lp: LinearProgram, first: int) -> int:
        rows, count = len(self.floor), len(self.cost) - first
        return lp.add_columns(
            cost=self.cost[first:],
            lower=self.lower[first:],
            upper=self.upper[first:],
            starts=np.arange(count) * rows,
            rows=np.tile(np.arange(rows), count),
            values=self.matrix[:, first:].T.ravel(),
        )

    def peer(self) -> tuple[str, float]:
        """The status and the value by scipy, asked twice: it takes some programs without an end for infeasible."""
        sign = -1.0 if self.maximise else 1.0
        above, below = np.isfinite(self.ceiling), np.isfinite(self.floor)
        matrix = np.vstack([self.matrix[above], -self.matrix[below]])
        limits = np.concatenate([self.ceiling[above], -self.floor[below]])
        bounds = np.stack([self.lower, self.upper], axis=1)
        done = linprog(sign * self.cost, matrix, limits, bounds=bounds)
        if done.status == 0:
            return "optimal", sign * done.fun
        feasible = linprog(0 * self.cost, matrix, limits, bounds=bounds).status == 0
        return "unbounded" if feasible else "infeasible", nan


def _interval(generator: np.random.Generator, count: int, absent: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds, some of them equal, some of them missing."""
    lower = generator.uniform(-3, 1, count)
    upper = lower + np.where(generator.uniform(size=count) < 0.2, 0.0, generator.uniform(0, 4, count))
    lower[generator.uniform(size=count) < absent] = -inf
    upper[generator.uniform(size=count) < absent] = inf
    return lower, upper


seeds = st.integers(0, 10**6).map(np.random.default_rng)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_a_program_is_solved_as_by_scipy_or_said_to_have_no_solution_or_no_end(generator: np.random.Generator) -> None:
    dense = Dense.draw(generator, loose=True)
    solution = dense.load().solve()
    status, value = dense.peer()
    assert solution.status == status
    if status == "optimal":
        assert solution.value == pytest.approx(value, abs=1e-7)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_prices_prove_that_a_solution_is_best(generator: np.random.Generator) -> None:
    """Whoever pays the prices for the rows gains nothing by moving any column: complementary slackness."""
    dense = Dense.draw(generator, loose=False)
    lp = dense.load()
    value, x, prices = lp.solve().value, lp.values(), lp.row_prices()
    used = dense.matrix @ x
    near = 1e-7
    assert (dense.lower - near <= x).all()
    assert (x <= dense.upper + near).all()
    assert (dense.floor - near <= used).all()
    assert (used <= dense.ceiling + near).all()
    assert value == pytest.approx(dense.cost @ x, abs=near)
    sense = 1.0 if dense.maximise else -1.0  # a higher ceiling can only help
    assert (sense * prices[used < dense.ceiling - near] <= near).all()
    assert (sense * prices[used > dense.floor + near] >= -near).all()
    gain = sense * (dense.cost - prices @ dense.matrix)  # of one more unit of a column
    assert (gain[x < dense.upper - near] <= near).all()
    assert (gain[x > dense.lower + near] >= -near).all()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
@example(46571)  # primal simplex gives up
def test_warm_answers_are_those_of_a_cold_solver(seed: int) -> None:
    generator = np.random.default_rng(seed)
    dense = Dense.draw(generator, loose=False)
    lp = dense.load()
    lp.solve()
    for _ in range(6):
        _change(dense, lp, generator)
        cold, warm = dense.load().solve(), lp.solve()
        assert warm.status == cold.status
        if cold.status == "optimal":
            assert warm.value == pytest.approx(cold.value, abs=1e-7)
            assert dense.cost @ lp.values() == pytest.approx(cold.value, abs=1e-7)


def _change(dense: Dense, lp: LinearProgram, generator: np.random.Generator) -> None:
    """One change of a random kind, in both."""
    rows, columns = dense.matrix.shape
    row, column = int(generator.integers(rows)), int(generator.integers(columns))
    some = generator.permutation(columns)[: int(generator.integers(1, columns + 1))]
    match generator.integers(6):
        case 0:
            dense.cost[some] = generator.uniform(-2, 2, len(some))
            lp.set_costs(some, dense.cost[some])
        case 1:
            dense.lower[some], dense.upper[some] = _interval(generator, len(some), absent=0.0)
            lp.set_bounds(some, dense.lower[some], dense.upper[some])
        case 2:
            dense.floor[row], dense.ceiling[row] = (bound[0] for bound in _interval(generator, 1, absent=0.3))
            lp.set_row_bounds([row], [dense.floor[row]], [dense.ceiling[row]])
        case 3:
            dense.matrix[row, column] = generator.uniform(-2, 3)
            lp.set_coefficient(row, column, dense.matrix[row, column])
        case 4:
            entries = generator.uniform(-2, 3, (2, columns))
            dense.matrix = np.vstack([dense.matrix, entries])
            dense.floor, dense.ceiling = np.append(dense.floor, [-inf, -inf]), np.append(dense.ceiling, [4.0, 5.0])
            at = lp.add_rows([-inf, -inf], [4.0, 5.0], [0, columns], np.tile(np.arange(columns), 2), entries.ravel())
            assert at == rows
        case _:
            dense.matrix = np.hstack([dense.matrix, generator.uniform(-2, 3, (rows, 2))])
            dense.cost, dense.lower = np.append(dense.cost, [1.0, -1.0]), np.append(dense.lower, [0.0, -1.0])
            dense.upper = np.append(dense.upper, [2.0, 1.0])
            assert dense.append_columns(lp, columns) == columns


def test_a_second_solve_starts_from_the_first() -> None:
    """Work, not time: without a change it takes no step, after a small one few."""
    generator = np.random.default_rng(1)
    cold = again = after = 0
    for _ in range(20):
        dense = Dense.draw(generator, loose=False)
        lp = dense.load()
        cold += lp.solve().steps
        again += lp.solve().steps
        lp.set_row_bounds([0], [-inf], [dense.ceiling[0] * 1.01])
        after += lp.solve().steps
    assert cold > 20
    assert again == 0
    assert after < cold / 3


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_whole_numbers_are_the_best_of_all_whole_numbers(generator: np.random.Generator) -> None:
    columns = int(generator.integers(1, 5))
    weight, worth = generator.uniform(0.5, 3, columns), generator.uniform(-1, 2, columns)
    lp = LinearProgram(maximise=True)
    lp.add_rows([-inf], [6.0])
    ones = np.ones(columns)
    at = np.zeros(columns, dtype=int)
    lp.add_columns(cost=worth, lower=0 * ones, upper=3 * ones, starts=np.arange(columns), rows=at, values=weight)
    lp.set_integer(np.arange(columns))
    choices = (np.array(each) for each in product(range(4), repeat=columns))
    assert lp.solve().value == pytest.approx(max(worth @ each for each in choices if weight @ each <= 6.0))
    assert lp.values() == pytest.approx(lp.values().round())


def test_a_limit_of_steps_is_said() -> None:
    for limit, status in ((1, "limit"), (100, "optimal")):
        lp = LinearProgram(maximise=True, step_limit=limit)
        lp.add_rows([-inf] * 9, np.arange(1.0, 10.0))
        columns = {"cost": np.ones(9), "lower": np.zeros(9), "upper": np.full(9, inf)}
        lp.add_columns(**columns, starts=np.arange(9), rows=np.arange(9), values=np.ones(9))
        assert lp.solve().status == status


def test_a_limit_is_said_and_lifts_nothing() -> None:
    lp = LinearProgram(maximise=True, time_limit_s=0.0)
    lp.add_rows([-inf], [5.0])
    lp.add_columns(cost=[3.0, 2.0], lower=[0, 0], upper=[2, 4], starts=[0, 1], rows=[0, 0], values=[2.0, 1.0])
    assert lp.solve().status == "limit"


def test_it_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    knapsack().solve()
    assert capfd.readouterr() == ("", "")


class Stumbling:
    """A solver that gives up at its first try, and notes with which options it was run."""

    def __init__(self, solver: Any) -> None:
        self._solver, self._tries = solver, 0
        self.presolve: list[str] = []

    def run(self) -> None:
        self._tries += 1
        self.presolve.append(self._solver.getOptionValue("presolve")[1])
        self._solver.run()

    def getModelStatus(self) -> Any:  # noqa: N802
        return None if self._tries == 1 else self._solver.getModelStatus()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._solver, name)


@pytest.mark.parametrize("whole", [False, True])
def test_where_numbers_go_wrong_it_starts_afresh_and_is_warm_again_afterwards(whole: bool) -> None:
    lp = knapsack()
    if whole:
        lp.set_integer([0, 1])
    lp._highs = stumbling = Stumbling(lp._highs)
    assert lp.solve().value == pytest.approx(9.0 if whole else 9.5)
    lp.solve()
    assert stumbling.presolve == (["choose", "choose", "choose"] if whole else ["off", "choose", "off"])


def test_a_solver_that_gives_up_twice_is_an_error() -> None:
    lp = knapsack()
    lp._names = {}
    with pytest.raises(DovetailError, match="stopped without an answer: Optimal"):
        lp.solve()


def test_an_empty_program_is_solved() -> None:
    assert LinearProgram(maximise=True).solve().status == "optimal"
