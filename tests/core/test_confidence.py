"""Means and their intervals, against another's tables."""

from __future__ import annotations

import pytest
from scipy import stats

from dovetail.core.confidence import Mean, _t95, mean


def test_means_have_intervals() -> None:
    assert mean([5.0]) == Mean(5.0)
    three = mean([1.0, 2.0, 3.0])
    assert three.value == 2.0
    assert three.half == pytest.approx(4.303 / 3**0.5)


def test_the_quantiles_are_students() -> None:
    for freedom in (*range(1, 31), 100, 1000):
        assert _t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-3)
