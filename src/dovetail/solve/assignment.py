"""Rows to columns, each at most once, at the least total cost: shortest augmenting paths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def assign(cost: Callable[[int], Floats], rows: int, columns: int) -> Ints:
    """The column of every row; `cost` gives a row of the matrix, with infinity where a row may not go.

    There must be at least as many columns as rows. Rows are added one by one. Among equally short paths one that ends
    at once, in a free column, is taken.

    >>> matrix = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]])
    >>> assign(lambda row: matrix[row], 2, 3).tolist()
    [1, 0]
    """
    if rows > columns:
        raise ValueError(f"{rows} rows for {columns} columns")
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    column_of, row_of = np.full(rows, -1), np.full(columns, -1)
    for row in range(rows):
        path, distance, visited, sink, shortest = _shortest(cost, row, row_price, column_price, row_of)
        row_price[row] += shortest
        for other in visited:
            if other != row:
                row_price[other] += shortest - distance[column_of[other]]
        scanned = distance < shortest
        column_price[scanned] -= shortest - distance[scanned]
        while True:
            other = int(path[sink])
            row_of[sink] = other
            column_of[other], sink = sink, int(column_of[other])
            if other == row:
                break
    return column_of


def _shortest(
    cost: Callable[[int], Floats], row: int, row_price: Floats, column_price: Floats, row_of: Ints
) -> tuple[Ints, Floats, list[int], int, float]:
    """The cheapest way from a row to a free column by reduced costs (Dijkstra), and who was visited."""
    columns = len(column_price)
    distance, path = np.full(columns, np.inf), np.full(columns, -1)
    open_columns = np.arange(columns - 1, -1, -1)
    visited, shortest = [row], 0.0
    while True:
        through = shortest + (cost(row) - row_price[row] - column_price)[open_columns]
        better = through < distance[open_columns]
        distance[open_columns[better]] = through[better]
        path[open_columns[better]] = row
        now = distance[open_columns]
        shortest = float(now.min())
        if shortest == np.inf:
            raise ValueError("every assignment has a forbidden entry")
        nearest = np.flatnonzero(now == shortest)
        free = nearest[row_of[open_columns[nearest]] < 0]
        at = int(free[-1]) if len(free) else int(nearest[0])
        column = int(open_columns[at])
        if row_of[column] < 0:
            return path, distance, visited, column, shortest
        open_columns[at] = open_columns[-1]
        open_columns = open_columns[:-1]
        row = int(row_of[column])
        visited.append(row)
