"""A mean over runs, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

# Student's t for a two-sided 95 % interval, by degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z95 = 1.959964


_Key = TypeVar("_Key", bound=Hashable)


class Mean(Struct, frozen=True):
    """A mean, and the half width of its 95 % confidence interval; of one run there is none, and 0 stands for it."""

    value: float
    half: float = 0.0


def mean(values: Sequence[float]) -> Mean:
    """
    >>> mean([1.0]), mean([1.0, 3.0]).half
    (Mean(value=1.0, half=0.0), 12.706)
    """
    middle = math.fsum(values) / len(values)
    if len(values) == 1:
        return Mean(middle)
    freedom = len(values) - 1
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / freedom)
    return Mean(middle, _t95(freedom) * spread / math.sqrt(len(values)))


class Paired(Struct, frozen=True, kw_only=True):
    """By how much the second of two is larger, pair by pair: what makes pairs differ, which both share, is not in it.

    `ratio` is the geometric mean of the pairs' ratios and `least` to `most` its 95 % confidence interval; None where a
    value is not above 0. `sure` says whether the ratio's interval leaves 1 out, as times are larger by some part rather
    than by some seconds; where there is no ratio, whether the difference's leaves 0 out. One pair is never sure.
    """

    pairs: int
    difference: float
    plus_minus: float
    ratio: float | None
    least: float | None
    most: float | None
    smaller_in: int  # pairs in which the second is smaller
    sure: bool


def paired(one: Mapping[_Key, float], two: Mapping[_Key, float]) -> Paired | None:
    """The values of two, by what makes a pair (a seed), in all pairs that both have; None if there is none.

    >>> found = paired({0: 10.0, 1: 20.0, 2: 40.0}, {0: 9.0, 1: 18.5, 2: 38.0, 3: 1.0})
    >>> found.pairs, found.difference, found.smaller_in, found.sure, round(found.ratio, 3)
    (3, -1.5, 3, True, 0.925)
    """
    common = [key for key in one if key in two]
    if not common:
        return None
    apart = mean([two[key] - one[key] for key in common])
    ratio = least = most = None
    sure = len(common) > 1 and abs(apart.value) > apart.half
    if all(one[key] > 0 and two[key] > 0 for key in common):
        logs = mean([math.log(two[key] / one[key]) for key in common])
        ratio = math.exp(logs.value)
        if len(common) > 1:
            least, most = math.exp(logs.value - min(logs.half, 700.0)), math.exp(min(logs.value + logs.half, 700.0))
            sure = abs(logs.value) > logs.half
    return Paired(
        pairs=len(common),
        difference=apart.value,
        plus_minus=apart.half,
        ratio=ratio,
        least=least,
        most=most,
        smaller_in=sum(two[key] < one[key] for key in common),
        sure=sure,
    )


def _t95(freedom: int) -> float:
    """Beyond the table by the first terms of its expansion about the normal distribution: right to 0.001.

    >>> round(_t95(16), 3), round(_t95(60), 3)
    (2.119, 2.0)
    """
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
