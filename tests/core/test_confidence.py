"""Means, paired differences and their intervals, against another's tables."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from dovetail.core.results.confidence import Mean, _t95, mean, paired


def test_means_have_intervals() -> None:
    assert mean([5.0]) == Mean(5.0)
    three = mean([1.0, 2.0, 3.0])
    assert three.value == 2.0
    assert three.half == pytest.approx(4.303 / 3**0.5)


def test_the_quantiles_are_students() -> None:
    for freedom in (*range(1, 31), 100, 1000):
        assert _t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-3)


@pytest.mark.parametrize("seed", range(25))
def test_pairs_are_compared_as_a_paired_t_test_does(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 40)
    one = {key: rng.uniform(1, 1000) for key in range(count)}
    two = {key: value * rng.uniform(0.8, 1.1) + rng.uniform(0, 5) for key, value in one.items()}
    found = paired(one, two)
    assert found is not None
    test = stats.ttest_rel(list(two.values()), list(one.values()))
    low, high = test.confidence_interval(0.95)
    assert found.difference - found.plus_minus == pytest.approx(low, rel=2e-3, abs=0.02 * found.plus_minus)
    assert found.difference + found.plus_minus == pytest.approx(high, rel=2e-3, abs=0.02 * found.plus_minus)
    logs = [math.log(two[key] / one[key]) for key in one]
    by_ratio = stats.ttest_1samp(logs, 0.0).pvalue
    if abs(by_ratio - 0.05) > 1e-3:
        assert found.sure == (by_ratio < 0.05) == (not (found.least or 0.0) <= 1 <= (found.most or 0.0))
    assert found.ratio == pytest.approx(math.exp(math.fsum(logs) / count))
    assert found.ratio is not None
    assert found.least is not None
    assert found.most is not None
    assert found.least <= found.ratio <= found.most
    assert found.smaller_in == sum(two[key] < one[key] for key in one)


def test_pairs_tell_apart_what_bands_do_not() -> None:
    """Seeds differ by far more than policies; the second is always a tenth smaller."""
    one = {0: 10.0, 1: 200.0, 2: 50.0, 3: 900.0}
    two = {key: 0.9 * value for key, value in one.items()}
    first, second = mean(list(one.values())), mean(list(two.values()))
    assert first.value - first.half < second.value + second.half  # the bands overlap
    found = paired(one, two)
    assert found is not None
    assert (found.smaller_in, found.ratio, found.least, found.most) == (4, *[pytest.approx(0.9)] * 3)


def test_only_common_pairs_count_and_one_is_never_sure() -> None:
    found = paired({"a": 1.0, "b": 5.0}, {"b": 4.0, "c": 9.0})
    assert found is not None
    assert (found.pairs, found.difference, found.ratio, found.least, found.sure) == (1, -1.0, 0.8, None, False)
    assert paired({0: 1.0}, {1: 1.0}) is None
    same = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert same is not None
    assert (same.difference, same.sure, same.ratio) == (0.0, False, 1.0)
    zero = paired({0: 0.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert zero is not None
    assert (zero.ratio, zero.least, zero.difference) == (None, None, 0.5)
    without = paired(dict.fromkeys(range(4), 0.0), {0: 1.0, 1: 1.1, 2: 1.0, 3: 1.1})
    assert without is not None
    assert (without.ratio, without.sure) == (None, True)  # by the difference


def test_a_verdict_is_that_of_the_ratio_which_is_shown() -> None:
    """The second is a sixth smaller with every seed, of means that are far apart: the difference's interval has 0."""
    one, two = {0: 70.0, 1: 20.0, 2: 8.0}, {0: 57.0, 1: 16.0, 2: 6.9}
    found = paired(one, two)
    assert found is not None
    assert found.most is not None
    assert abs(found.difference) < found.plus_minus
    assert found.most < 1
    assert found.sure
