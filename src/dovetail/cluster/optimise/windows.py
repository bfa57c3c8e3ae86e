"""A class's time divided among jobs that want unequal rates: each takes a window of the options sorted by speed."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Floats


def raised(want: Floats, total: float) -> Floats:
    """Demands raised from below to one level until they add up to the total.

    >>> raised(np.array([3.0, 1.0, 0.0]), 7.0).tolist()
    [3.0, 2.0, 2.0]
    """
    rest = total - want.sum()
    if rest <= 0:
        return want
    rising = np.sort(want)
    # With k jobs at the level, the level is where their sum is the total less what the others want.
    below = np.cumsum(rising)
    count = np.arange(1, len(want) + 1)
    level = (total - (below[-1] - below)) / count
    upper = np.append(rising[1:], np.inf)
    at = int(np.argmax(level <= upper))
    higher: Floats = np.maximum(want, level[at])
    return higher


def divide(rate: Floats, time: Floats, want: Floats) -> Floats:
    """Time by job and option: a unit of time per job at the rate it wants, or more where there is more.

    `rate` and `time` are a class's options, fastest first, with no more time than there are jobs. What they give must
    suffice (see `demands`). The job that wants most takes a window of one unit from the row of options whose mean rate
    is what it wants; what remains suffices for the others.

    >>> divide(np.array([4.0, 1.0]), np.array([1.0, 1.0]), np.array([2.0, 3.0])).round(9).tolist()
    [[0.333333333, 0.666666667], [0.666666667, 0.333333333]]
    """
    jobs = len(want)
    given = np.zeros((jobs, len(rate)))
    if not len(rate):
        return given
    if want.max() - want.min() <= 1e-12 * want.max():
        given[:] = time / jobs
        return given
    rates = [*rate.tolist(), 0.0]
    left = [*time.tolist(), max(jobs - float(time.sum()), 0.0)]  # idle time is the slowest option
    target = raised(want, float(rate @ time))
    for job in np.argsort(-target, kind="stable").tolist():
        for option, amount in _window(rates, left, float(target[job])):
            left[option] -= amount
            if option < len(rate):
                given[job, option] = amount
    return given


def _window(rates: list[float], left: list[float], target: float) -> list[tuple[int, float]]:
    """The unit of time, in a row of options, whose mean rate is the target; the fastest or slowest if none has it."""
    total = sum(left)
    starts, upto = [], 0.0
    for amount in left:
        starts.append(upto)
        upto += amount
    low, high = 0.0, max(total - 1.0, 0.0)  # the window's start: the later, the slower
    edges = sorted({low, high, *(e for s in starts for e in (s, s - 1.0) if low < e < high)})
    mean = [_mean(rates, left, starts, edge) for edge in edges]
    start = edges[-1]
    for i in range(len(edges)):
        if mean[i] <= target:
            if i == 0:
                start = edges[0]
            else:  # between two edges the mean falls linearly
                fall = mean[i - 1] - mean[i]
                part = (mean[i - 1] - target) / fall if fall > 0 else 0.0
                start = edges[i - 1] + part * (edges[i] - edges[i - 1])
            break
    return [
        (option, overlap)
        for option, (begin, amount) in enumerate(zip(starts, left, strict=True))
        if (overlap := min(begin + amount, start + 1.0) - max(begin, start)) > 0
    ]


def _mean(rates: list[float], left: list[float], starts: list[float], start: float) -> float:
    return sum(
        rate * max(min(begin + amount, start + 1.0) - max(begin, start), 0.0)
        for rate, amount, begin in zip(rates, left, starts, strict=True)
    )
