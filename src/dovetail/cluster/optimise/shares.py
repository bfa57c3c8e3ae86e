"""Shares that need no program: reference allocations, sharing evenly over types, and keeping within the limits."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Allocation, Floats, Ints, Problem

DIGITS = 9  # of a share


def proportional_rate(rates: Floats, counts: Ints) -> Floats:
    """Steps per second of somebody who spends its time on every type in proportion to its accelerators.

    >>> proportional_rate(np.array([[4.0, 1.0]]), np.array([1, 3])).tolist()
    [1.75]
    """
    rate: Floats = rates @ (counts / max(counts.sum(), 1))
    return rate


def isolated_share(problem: Problem) -> Floats:
    """The share of every job if each had an equal part of every type to itself, at most all of its time."""
    share: Floats = (problem.counts / max(problem.jobs, 1)) / problem.width[:, None]
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    return share


def spread(problem: Problem, time: Floats) -> Floats:
    """Give every job this much time, over the types in proportion to their accelerators."""
    share: Floats = time[:, None] * (problem.counts / max(problem.counts.sum(), 1))
    return share


def water_level(width: Ints, weight: Floats, capacity: float) -> tuple[Floats, float]:
    """Time per job proportional to weight / width, at most 1, using all capacity; and the level of the poorest.

    >>> time, level = water_level(np.array([1, 1, 2]), np.array([1.0, 5.0, 1.0]), 3.0)
    >>> time.tolist(), level
    ([1.0, 1.0, 0.5], 0.2)
    """
    full = width / weight  # the level at which a job has all of its time
    order = np.argsort(full, kind="stable")
    used = np.cumsum(width[order]) - width[order]  # by those that are full before
    open_weight = np.cumsum(weight[order][::-1])[::-1]
    short = used + open_weight * full[order] > capacity
    level = np.inf
    if short.any():
        at = int(short.argmax())
        level = max((capacity - used[at]) / open_weight[at], 0.0)
    time = np.minimum(1.0, level * weight / width)
    return time, float((time * full).min()) if len(time) else 0.0


def rounded(share: Floats) -> Floats:
    """The first digits of every share, so that they do not depend on the way a solver took; less than that is nothing.

    >>> rounded(np.array([1 / 3, 2e-4 / 3, 1e-10, -1e-12])).tolist()
    [0.333333333, 6.66666667e-05, 0.0, 0.0]
    """
    found, some = np.zeros_like(share), share >= 10.0**-DIGITS
    kept = share[some]
    least = 10.0 ** (np.floor(np.log10(kept)) + 1 - DIGITS)
    found[some] = np.round(np.round(kept / least) * least, 2 * DIGITS)
    return found


def within_limits(
    problem: Problem, share: Floats, pairs: Ints | None = None, pair_share: Floats | None = None
) -> tuple[Floats, Floats]:
    """The shares rounded, and scaled down where rounding went beyond a job's time or a type's accelerators."""
    share = rounded(share)
    if pairs is None or pair_share is None or not len(pairs):
        share = share / np.maximum(share.sum(axis=1), 1.0)[:, None]
        used = problem.width @ share
        return share * _scale(used, problem.counts), np.zeros((0, len(problem.counts)))
    pair_share = rounded(pair_share)
    time = share.sum(axis=1)
    for side in (0, 1):
        time = time + np.bincount(pairs[:, side], weights=pair_share.sum(axis=1), minlength=len(share))
    factor = 1.0 / np.maximum(time, 1.0)
    share = share * factor[:, None]
    pair_share = pair_share * np.minimum(factor[pairs[:, 0]], factor[pairs[:, 1]])[:, None]
    used = problem.width @ share + problem.width[pairs[:, 0]] @ pair_share
    scale = _scale(used, problem.counts)
    return share * scale, pair_share * scale


def _scale(used: Floats, counts: Ints) -> Floats:
    return np.where(used > counts, counts / np.maximum(used, 1e-300), 1.0)


def nothing(problem: Problem, why: str) -> Allocation:
    """No share for anybody."""
    return Allocation(share=np.zeros((problem.jobs, len(problem.types))), why=why)
