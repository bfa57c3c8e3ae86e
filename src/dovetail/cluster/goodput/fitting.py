"""Fits the seven numbers of the throughput model to measured points.

A point is (nodes, replicas, local batch, seconds of a step, seconds of it that were exchange). The fit minimises

    rms(log compute) + rms(log step) + 0.001 (gamma - 1)^2 + 0.01 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

where the first two are errors against what was measured. What no point tells is held fixed, so that it looks good:
widths that were never tried should be tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.cluster.goodput.throughput import LEAST, MOST_OVERLAP

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_GAMMA, _SLOPE = np.sqrt(0.001), 0.1  # square roots of what the penalties weigh
_LOW = np.array([np.log(LEAST)] * 6 + [0.0])  # logarithms, and gamma - 1
_HIGH = np.array([np.log(1e6)] * 6 + [MOST_OVERLAP - 1.0])
_SMOOTH = 1e-20  # under the root of a mean square, which has no slope at 0
_ROUNDS = 200
_ENOUGH = 1e-10  # of the objective, in three steps
_STARTS = ((0.001, 0.1), (1.0, 0.01), (0.25, 0.03), (4.0, 0.1))  # gamma - 1, slope over constant


class Fit(NamedTuple):
    """The seven numbers, and the value of what was minimised."""

    numbers: Floats
    objective: float


class _Points(NamedTuple):
    """Measured points of several jobs, filled up to the same length: `weight` is one over their number, or 0."""

    alone: Bools
    across: Bools
    local: Floats
    beyond_two: Floats
    compute: Floats  # logarithms
    step: Floats
    weight: Floats

    def rows(self, at: NDArray[np.generic]) -> _Points:
        return _Points(*(column[at] for column in self))


def fit(points: ArrayLike, start: Floats | None = None) -> Fit:
    """The numbers that fit best; `start` is where to look first, beside a few usual places."""
    numbers, objective = fit_all([np.asarray(points, dtype=np.float64)], None if start is None else start[None])
    return Fit(numbers[0], float(objective[0]))


class FitMemory:
    """Fits that are remembered: jobs of one application that grow alike see the same points."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._fits: dict[bytes, Floats] = {}  # by points, who was asked for last at the end

    def __len__(self) -> int:
        return len(self._fits)

    def numbers(self, points: Sequence[Floats]) -> list[Floats]:
        """The seven numbers of every job. They do not depend on who else is asked for: sums over as many points are
        rounded alike."""
        keys, fits = [of_job.tobytes() for of_job in points], self._fits
        new = {key: of_job for key, of_job in zip(keys, points, strict=True) if key not in fits}
        for length in sorted(set(map(len, new))):
            alike = [key for key in new if len(key) == length]
            fits |= dict(zip(alike, fit_all([new[key] for key in alike])[0], strict=True))
        for key in keys:
            fits[key] = fits.pop(key)
        found = [fits[key] for key in keys]
        for key in list(fits)[: max(len(fits) - self._most, 0)]:
            del fits[key]
        return found


def fit_all(points: Sequence[Floats], start: Floats | None = None) -> tuple[Floats, Floats]:
    """The same for several jobs at once: numbers by job, and objectives."""
    jobs, longest = len(points), max(len(of_job) for of_job in points)
    padded = np.ones((jobs, longest, 5))
    padded[..., 4] = 0.0
    weight = np.zeros((jobs, longest))
    for job, of_job in enumerate(points):
        padded[job, : len(of_job)] = of_job
        weight[job, : len(of_job)] = 1 / len(of_job)
    nodes, replicas, local, step, sync = np.moveaxis(padded, -1, 0)
    seen = _Points(
        alone=replicas <= 1,
        across=nodes > 1,
        local=local,
        beyond_two=np.maximum(replicas - 2, LEAST),
        compute=np.log(np.maximum(step - sync, LEAST)),
        step=np.log(step),
        weight=weight,
    )
    free, fixed = _unknown(seen, replicas)
    starts = _starts(seen, fixed, free, start)
    each = starts.shape[1]
    job_of = np.repeat(np.arange(jobs), each)
    found, value = _descend(starts.reshape(-1, 7), free[job_of], seen.rows(job_of))
    found, value = found.reshape(jobs, each, 7), value.reshape(jobs, each)
    best = value.argmin(axis=1)
    numbers = np.exp(found[np.arange(jobs), best])
    numbers[:, 6] = 1.0 + found[np.arange(jobs), best, 6]
    nearby = ~((weight > 0) & seen.across).any(axis=1)
    numbers[nearby, 2:4] = np.maximum(numbers[nearby, 2:4], 1.1 * numbers[nearby, 4:6])
    return numbers, value[np.arange(jobs), best]


def _unknown(seen: _Points, replicas: Floats) -> tuple[Bools, Floats]:
    """Which numbers the points tell, and what the others are held at."""
    real = seen.weight > 0
    many = real & ~seen.alone
    free = np.ones((len(real), 7), dtype=np.bool_)
    fixed = np.tile(_LOW, (len(real), 1))
    first = seen.local[:, :1]
    one_batch = (np.where(real, seen.local, first) == first).all(axis=1)
    free[one_batch, 0] = False
    fixed[one_batch, 0] = np.log((np.exp(seen.compute) * seen.weight).sum(axis=1) / 2)[one_batch]
    free[~(many & seen.across).any(axis=1), 2:4] = False
    free[~(many & ~seen.across).any(axis=1), 4:6] = False
    free[:, 3:6:2] &= (real & (replicas > 2)).any(axis=1, keepdims=True)
    return free, fixed


def _starts(seen: _Points, fixed: Floats, free: Bools, given: Floats | None) -> Floats:
    """Where to begin: by job and start, numbers as they are searched in."""
    compute, step = np.exp(seen.compute), np.exp(seen.step)
    mean = (compute * seen.weight).sum(axis=1)
    per_sample = mean / (seen.local * seen.weight).sum(axis=1)
    exchange = np.maximum(((step - compute) * seen.weight).sum(axis=1), 1e-6)
    alpha = np.log(exchange)
    begins = []
    for gamma, slope in _STARTS:
        both = [alpha, alpha + np.log(slope)]
        columns = [np.log(mean / 2), np.log(per_sample / 2), *both, *both, np.full(len(mean), gamma)]
        begins.append(np.stack(columns, axis=1))
    if given is not None:
        known = np.concatenate([np.log(np.maximum(given[:, :6], LEAST)), given[:, 6:] - 1.0], axis=1)
        begins.insert(0, known)
    starts = np.stack(begins, axis=1)
    return np.clip(np.where(free[:, None, :], starts, fixed[:, None, :]), _LOW, _HIGH)


def _descend(at: Floats, free: Bools, seen: _Points) -> tuple[Floats, Floats]:
    """Levenberg and Marquardt's steps, each mean square weighted by one over its root; all starts side by side."""
    found, result = at.copy(), np.full(len(at), np.inf)
    rows = np.arange(len(at))
    value, slope, curve = _model(at, free, seen)
    damping, slow = np.full(len(at), 1e-2), np.zeros(len(at), dtype=np.int64)
    for _ in range(_ROUNDS):
        held = ~free | ((at <= _LOW) & (slope > 0)) | ((at >= _HIGH) & (slope < 0))
        matrix = np.where(held[:, :, None] | held[:, None, :], 0.0, curve)
        diagonal = np.einsum("bii->bi", matrix)
        diagonal += np.where(held, 1.0, damping[:, None] * (diagonal + 1e-6))
        move = -np.linalg.solve(matrix, np.where(held, 0.0, slope)[..., None])[..., 0]
        trial = np.clip(at + np.clip(move, -3.0, 3.0), _LOW, _HIGH)
        new_value, new_slope, new_curve = _model(trial, free, seen)
        better = new_value < value
        slow = np.where(better & (value - new_value > _ENOUGH * value), 0, slow + 1)
        damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-9, 1e9)
        at = np.where(better[:, None], trial, at)
        slope = np.where(better[:, None], new_slope, slope)
        curve = np.where(better[:, None, None], new_curve, curve)
        value = np.where(better, new_value, value)
        done = slow >= 8
        if done.any():
            found[rows[done]], result[rows[done]] = at[done], value[done]
            go = ~done
            rows, at, free, value, slope, curve = rows[go], at[go], free[go], value[go], slope[go], curve[go]
            damping, slow, seen = damping[go], slow[go], seen.rows(go)
            if not len(rows):
                break
    found[rows], result[rows] = at, value
    return found, result


def _model(at: Floats, free: Bools, seen: _Points) -> tuple[Floats, Floats, Floats]:
    """The objective, its slope, and the curvature of a quadratic above it."""
    a_c, b_c, a_n, b_n, a_r, b_r = np.exp(at[:, :6, None]).transpose(1, 0, 2)
    gamma = 1.0 + at[:, 6:]
    compute = a_c + b_c * seen.local
    alpha, beta = np.where(seen.across, a_n, a_r), np.where(seen.across, b_n, b_r) * seen.beyond_two
    exchange = np.where(seen.alone, LEAST, alpha + beta)
    log_compute, log_exchange = np.log(compute), np.log(exchange)
    larger, apart = np.maximum(log_compute, log_exchange), -np.abs(log_compute - log_exchange)
    log_step = larger + np.log1p(np.exp(gamma * apart)) / gamma
    mine = 1 / (1 + np.exp(np.clip(gamma * (log_exchange - log_compute), -700, 700)))
    wrong_compute, wrong_step = log_compute - seen.compute, log_step - seen.step
    constant, per_sample = a_c / compute, b_c * seen.local / compute
    theirs = np.where(seen.alone, 0.0, 1 - mine) / exchange
    zero = np.zeros_like(theirs)
    of_compute = np.stack([constant, per_sample] + [zero] * 5, axis=1)
    of_step = np.stack(
        [
            mine * constant,
            mine * per_sample,
            np.where(seen.across, theirs * alpha, zero),
            np.where(seen.across, theirs * beta, zero),
            np.where(seen.across, zero, theirs * alpha),
            np.where(seen.across, zero, theirs * beta),
            (mine * log_compute + (1 - mine) * log_exchange - log_step) / gamma,
        ],
        axis=1,
    )
    value, slope, curve = np.zeros(len(at)), np.zeros((len(at), 7)), np.zeros((len(at), 7, 7))
    for wrong, by in ((wrong_compute, of_compute), (wrong_step, of_step)):
        rms = np.sqrt((seen.weight * wrong**2).sum(axis=1) + _SMOOTH)
        weighted = by * (seen.weight / rms[:, None])[:, None, :]
        value += rms
        slope += np.einsum("bin,bn->bi", weighted, wrong)
        curve += weighted @ by.transpose(0, 2, 1)
    over = at[:, 6] * _GAMMA
    value += over**2
    slope[:, 6] += 2 * over * _GAMMA
    curve[:, 6, 6] += 2 * _GAMMA**2
    for constant_at, slope_at in ((2, 3), (4, 5)):
        ratio = _SLOPE * np.exp(at[:, slope_at] - at[:, constant_at])
        value += ratio**2
        slope[:, slope_at] += 2 * ratio**2
        slope[:, constant_at] -= 2 * ratio**2
        for i, j, sign in (
            (slope_at, slope_at, 1),
            (constant_at, constant_at, 1),
            (slope_at, constant_at, -1),
            (constant_at, slope_at, -1),
        ):
            curve[:, i, j] += sign * 2 * ratio**2
    return value, slope, curve
