"""A linear (or integer) program that is changed a little and solved again, starting from where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core.errors import DovetailError

Status = Literal["optimal", "infeasible", "unbounded", "limit"]
_OTHER_WAYS: tuple[dict[str, object], ...] = (
    {"presolve": "choose"},
    {"simplex_strategy": 1},  # dual
    {"simplex_scale_strategy": 4},
    {"solver": "ipm"},
    {"primal_feasibility_tolerance": 1e-7, "dual_feasibility_tolerance": 1e-7},
)
TOLERANCE = 1e-10  # the least that the solver takes, so that shares can be compared to nine digits


class NoAnswerError(DovetailError):
    """The solver stopped before it knew the answer: numbers of too different size."""


@dataclass(slots=True, frozen=True)
class Solution:
    """What a solve found, and after how many simplex steps; the values of the columns are asked for separately."""

    status: Status
    value: float
    steps: int


class LinearProgram:
    """Rows, columns and an objective. Solving starts from the last basis, so a small change costs little.

    >>> lp = LinearProgram(maximise=True)
    >>> lp.add_rows([-np.inf], [4.0])
    0
    >>> lp.add_columns(cost=[1.0, 2.0], lower=[0, 0], upper=[3, 3], starts=[0, 1], rows=[0, 0], values=[1.0, 2.0])
    0
    >>> lp.solve().value
    4.0
    >>> lp.set_row_bounds([0], [-np.inf], [5.0])
    >>> lp.solve().value
    5.0
    """

    def __init__(
        self,
        *,
        maximise: bool,
        time_limit_s: float = inf,
        gap: float = 0.0,
        node_limit: int | None = None,
        step_limit: int | None = None,
        once: bool = False,
    ) -> None:
        """With integers, stop within `gap` of the best value, or after so many nodes; or after so many simplex steps,
        which the solver can go round in for ever. What is solved `once` is sooner done from the outside: the dual
        method's start is no point that is allowed."""
        import highspy as package  # here, for it takes a third of a second

        highspy: Any = package
        self._names: dict[Any, Status] = {
            highspy.HighsModelStatus.kOptimal: "optimal",
            highspy.HighsModelStatus.kModelEmpty: "optimal",
            highspy.HighsModelStatus.kInfeasible: "infeasible",
            highspy.HighsModelStatus.kUnbounded: "unbounded",
            highspy.HighsModelStatus.kTimeLimit: "limit",
            highspy.HighsModelStatus.kSolutionLimit: "limit",
            highspy.HighsModelStatus.kIterationLimit: "limit",
        }
        self._refused = highspy.HighsStatus.kError
        self._highs: Any = highspy.Highs()
        options: dict[str, object] = {
            "output_flag": False,
            "threads": 1,
            "solver": "simplex",
            "presolve": "off",  # it would throw the basis away
            "simplex_strategy": 1 if once else 4,  # primal: after a change the last point is mostly still allowed
            "simplex_scale_strategy": 0,  # models come with numbers about 1
            "primal_simplex_bound_perturbation_multiplier": 0.0,  # so there is nothing to clean up afterwards
            "random_seed": 0,
            "primal_feasibility_tolerance": TOLERANCE,
            "dual_feasibility_tolerance": TOLERANCE,
            "time_limit": time_limit_s,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": gap,
        }
        if node_limit is not None:
            options["mip_max_nodes"] = node_limit
        if step_limit is not None:
            options["simplex_iteration_limit"] = step_limit
        for name, value in options.items():
            self._change(self._highs.setOptionValue(name, value))
        if maximise:
            self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._integer = False
        self.rows = 0
        self.columns = 0

    def _change(self, status: Any) -> None:
        """HiGHS passes over a change with wrong numbers, and would solve the program as it was."""
        if status == self._refused:
            raise DovetailError("the solver refused a change of its program: an index or a number in it is wrong")

    def add_rows(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        starts: Sequence[int] | NDArray[np.integer] | None = None,
        columns: ArrayLike = (),
        values: ArrayLike = (),
    ) -> int:
        """Append rows, by default without entries; gives the index of the first."""
        lower = np.asarray(lower, dtype=np.float64)
        first, count = self.rows, len(lower)
        begins = np.zeros(count, dtype=np.int32) if starts is None else np.asarray(starts, dtype=np.int32)
        index = np.asarray(columns, dtype=np.int32)
        self._change(
            self._highs.addRows(count, lower, upper, len(index), begins, index, np.asarray(values, dtype=np.float64))
        )
        self.rows += count
        return first

    def add_columns(
        self,
        *,
        cost: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        starts: ArrayLike,
        rows: ArrayLike,
        values: ArrayLike,
    ) -> int:
        """Append columns with their entries, column by column; gives the index of the first."""
        cost = np.asarray(cost, dtype=np.float64)
        first, count = self.columns, len(cost)
        begins, index = np.asarray(starts, dtype=np.int32), np.asarray(rows, dtype=np.int32)
        self._change(
            self._highs.addCols(
                count, cost, lower, upper, len(index), begins, index, np.asarray(values, dtype=np.float64)
            )
        )
        self.columns += count
        return first

    def set_costs(self, columns: ArrayLike, cost: ArrayLike) -> None:
        index = np.asarray(columns, dtype=np.int32)
        self._change(self._highs.changeColsCost(len(index), index, cost))

    def set_bounds(self, columns: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> None:
        index = np.asarray(columns, dtype=np.int32)
        self._change(self._highs.changeColsBounds(len(index), index, lower, upper))

    def set_row_bounds(self, rows: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> None:
        index = np.asarray(rows, dtype=np.int32)
        self._change(self._highs.changeRowsBounds(len(index), index, lower, upper))

    def set_coefficient(self, row: int, column: int, value: float) -> None:
        self._change(self._highs.changeCoeff(row, column, value))

    def set_integer(self, columns: ArrayLike) -> None:
        """Ask for whole numbers in these columns."""
        index = np.asarray(columns, dtype=np.int32)
        self._change(self._highs.changeColsIntegrality(len(index), index, np.ones(len(index), dtype=np.uint8)))
        self._highs.setOptionValue("presolve", "choose")
        self._highs.setOptionValue("solver", "choose")
        self._integer = True

    def solve(self) -> Solution:
        """Solve from the last basis; if numbers go wrong on the way, again from the beginning, and in other ways."""
        highs = self._highs
        highs.run()
        status = self._names.get(highs.getModelStatus())
        for way in _OTHER_WAYS:
            if status is not None:
                break
            before = {name: highs.getOptionValue(name)[1] for name in way}
            highs.clearSolver()
            for name, value in way.items():
                highs.setOptionValue(name, value)
            highs.run()
            for name, value in before.items():
                highs.setOptionValue(name, value)
            status = self._names.get(highs.getModelStatus())
        if status is None:
            told = highs.modelStatusToString(highs.getModelStatus())
            raise NoAnswerError(f"the solver stopped without an answer: {told}")
        return Solution(status, highs.getObjectiveValue(), highs.getInfo().simplex_iteration_count)

    def values(self) -> NDArray[np.float64]:
        """The columns at the last solution."""
        return np.array(self._highs.getSolution().col_value)

    def bound(self) -> float:
        """What no whole-numbered solution can be better than, as far as the last solve proved."""
        return float(self._highs.getInfo().mip_dual_bound)

    def row_prices(self) -> NDArray[np.float64]:
        """How much the objective changes per unit of each row's binding bound, at the last solution."""
        return np.array(self._highs.getSolution().row_dual)
