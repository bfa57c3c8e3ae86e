"""Speed-up curves: forms, fits, sweet spots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.host.curves import curve, fit, predicted_s

MEASURED = [(2, 785.0), (3, 425.0), (4, 313.0), (5, 248.0), (8, 171.0), (16, 101.0)]  # one program, on 16 cores


def test_a_linear_program_is_as_fast_as_it_has_cores() -> None:
    assert [curve("linear").speed(n) for n in (1, 2, 16)] == [1.0, 2.0, 16.0]


def test_amdahls_law_has_a_limit() -> None:
    assert curve("amdahl:0.9").speed(10_000) == pytest.approx(10, rel=1e-2)
    assert curve("amdahl:1").speed(8) == pytest.approx(8)
    assert curve("amdahl:0").speed(8) == 1


def test_a_table_is_exact_at_its_points_and_flat_beyond() -> None:
    found = curve("table:" + ",".join(f"{n}={s}" for n, s in MEASURED))
    assert found.base_s is not None
    for n, seconds in MEASURED:
        assert found.base_s / found.speed(n) == pytest.approx(seconds)
    assert found.speed(100) == found.speed(16)
    assert found.speed(1) == pytest.approx(found.speed(2) / 2)


def test_a_fit_agrees_with_least_squares_by_another_way() -> None:
    """Where the best coefficients are positive, they are those of the normal equations."""
    n = np.array([x for x, _ in MEASURED], float)
    t = np.array([y for _, y in MEASURED])
    rows = np.stack([1 / t, 1 / n / t], axis=1)
    expected = np.linalg.solve(rows.T @ rows, rows.T @ np.ones_like(t))
    found = fit(MEASURED)
    assert (expected >= 0).all(), "expected points whose best coefficients need no bound"
    assert found == pytest.approx(tuple(expected))
    errors = [abs(predicted_s(found, x) / y - 1) for x, y in MEASURED]
    assert max(errors) < 0.2


@given(st.floats(0, 100), st.floats(0.1, 1000), st.floats(0, 10))
def test_a_fit_finds_what_the_points_were_made_of(a: float, b: float, c: float) -> None:
    points = [(n, a + b / n + c * n) for n in (1, 2, 3, 4, 8, 16)]
    found = fit(points, linear=True)
    assert all(x >= 0 for x in found)
    for n, seconds in points:
        assert predicted_s(found, n) == pytest.approx(seconds, rel=1e-5)


def test_the_sweet_spot_is_not_beyond_the_fastest() -> None:
    slow_at_last = curve("table:1=100,2=55,4=40,8=50")
    assert slow_at_last.sweet(16, 0.1) == 4
    assert slow_at_last.sweet(2, 0.1) == 2
    assert curve("amdahl:0").sweet(16, 0.5) == 1


def test_a_gain_looks_beyond_a_dent() -> None:
    """The second core adds nothing here, but two more do: on the way there each is worth the half."""
    dented = curve("table:1=100,2=100,3=40")
    assert dented.gain(1, 3) == pytest.approx((2.5 - 1) / 2)
    assert dented.gain(1, 2) == pytest.approx(0.0)
    assert dented.gain(3, 3) == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "amdahl", "amdahl:x", "amdahl:1.1", "table:", "table:1", "table:0=5", "table:1=5,1=6", "fit:1=-5", "power:2"],
)
def test_a_bad_curve_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="curve"):
        curve(text)
