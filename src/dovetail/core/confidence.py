"""A mean over runs, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

# Student's t for a two-sided 95 % interval, by degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z95 = 1.959964


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


def _t95(freedom: int) -> float:
    """Beyond the table by the first terms of its expansion about the normal distribution: right to 0.001.

    >>> round(_t95(16), 3), round(_t95(60), 3)
    (2.119, 2.0)
    """
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
