"""Assignments against every assignment, and against scipy's, ties included."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from dovetail.solve.assignment import assign


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_assignment_is_cheaper(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 5))
    columns = data.draw(st.integers(rows, 6))
    cost = data.draw(arrays(np.float64, (rows, columns), elements=st.integers(0, 4).map(float)))
    found = assign(lambda row: cost[row], rows, columns)
    assert len(set(found.tolist())) == rows
    cheapest = min(sum(cost[row, at] for row, at in enumerate(way)) for way in permutations(range(columns), rows))
    assert cost[np.arange(rows), found].sum() == cheapest


def test_ties_are_broken_as_in_scipy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows = int(generator.integers(1, 9))
        columns = rows + int(generator.integers(0, 9))
        cost = generator.integers(0, 3, (rows, columns)).astype(float)
        assert assign(lambda row, c=cost: c[row], rows, columns).tolist() == linear_sum_assignment(cost)[1].tolist()  # type: ignore[misc]
