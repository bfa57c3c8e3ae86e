"""A class's time divided among jobs that want unequal rates: each takes a window of the options sorted by speed."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Floats, Ints


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
    order, at = np.argsort(-target, kind="stable"), 0
    wanted = target[order]
    while at < jobs:
        if wanted[at] - wanted[-1] <= 1e-12 * wanted[at]:  # the rest are raised to one level
            given[order[at:]] = np.maximum(left[:-1], 0.0) / (jobs - at)
            break
        at = _between_two(rates, left, order, wanted, at, given)
        if at < jobs:
            for option, amount in _window(rates, left, float(wanted[at])):
                left[option] -= amount
                if option < len(rate):
                    given[order[at], option] = amount
            at += 1
    return given


def _between_two(rates: list[float], left: list[float], order: Ints, wanted: Floats, at: int, given: Floats) -> int:
    """Serve jobs from this one on, as long as the same two options (or the fastest) suffice for each: all at once."""
    there = [option for option, amount in enumerate(left) if amount > 0]
    slower = next((option for option in there if rates[option] <= wanted[at]), -1)
    if slower < 0:
        return at
    faster = max((option for option in there if option < slower), default=-1)
    mean = wanted[at : at + int(np.searchsorted(-wanted[at:], -rates[slower], side="right"))]
    part = np.zeros(len(mean))
    enough = np.cumsum(1 - part) <= left[slower]
    if faster >= 0:
        part = (mean - rates[slower]) / (rates[faster] - rates[slower])
        enough = (np.cumsum(part) <= left[faster]) & (np.cumsum(1 - part) <= left[slower])
    served = len(enough) if enough.all() else int(enough.argmin())
    for option, amount in ((faster, part[:served]), (slower, 1 - part[:served])):
        if option >= 0:
            left[option] -= float(amount.sum())
        if 0 <= option < given.shape[1]:
            given[order[at : at + served], option] = amount
    return at + served


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
