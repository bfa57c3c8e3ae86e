"""Pair rates that nobody measured, estimated from a few: what a scheduler knows before jobs have shared accelerators.

Some models are references, whose pairs are all measured. Another one is profiled beside some of them, on some types.
Its row of slowdowns is completed by factoring the matrix of all references' slowdowns and its own, and it is then
treated as the reference whose slowdowns are nearest to its own. Rates alone are taken as known.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError

_RANK = 10
_PENALTY = 1e-2
_ROUNDS = 100
_TOLERANCE = 1e-4
Mask = NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class PairEstimate:
    """Throughputs with estimated pairs, the models that were references, and which of them each model was taken for."""

    throughputs: Throughputs
    references: list[str]
    taken_for: dict[str, str]


def estimate(
    true: Throughputs, *, profiled: float = 1.0, references: int | None = None, seed: int = 0, width: int = 1
) -> PairEstimate:
    """What would be believed about the pairs of one-accelerator jobs after profiling a share of them.

    `profiled` is the probability that a model was measured beside a reference on a type; `references` is how many
    models are references, all of them if None.
    """
    if true.pairs is None:
        raise InputError("throughputs: expected pair rates to estimate from, found none")
    if not 0 <= profiled <= 1:
        raise InputError(f"profiled share: expected 0 to 1, found {profiled}")
    kinds = [k for k, (_, w) in enumerate(true.kinds) if w == width]
    known = len(kinds) if references is None else references
    if not 1 <= known <= len(kinds):
        raise InputError(f"references: expected 1 to {len(kinds)} models, found {known}")
    rng = Random(seed + 4)
    chosen = sorted(rng.sample(range(len(kinds)), known))
    slowdown = _slowdown(true, kinds)
    among = slowdown[np.ix_(chosen, chosen)].reshape(known, -1)
    nearest = []
    for k in range(len(kinds)):
        row = slowdown[k, chosen].reshape(-1)
        seen = np.array([rng.random() < profiled for _ in row], dtype=bool)
        nearest.append(chosen[_nearest(among, row, seen, rng)])
    believed = true.pairs.copy()
    alone = true.alone[kinds]
    guess = slowdown[np.ix_(nearest, nearest)] * alone[:, None, :] * (alone > 0)[None, :, :]
    believed[np.ix_(kinds, kinds)] = guess
    names = [true.kinds[k][0] for k in kinds]
    return PairEstimate(
        throughputs=Throughputs(true.types, true.kinds, true.alone, true.spread, believed, "estimated"),
        references=[names[i] for i in chosen],
        taken_for={names[i]: names[reference] for i, reference in enumerate(nearest)},
    )


def _slowdown(true: Throughputs, kinds: list[int]) -> Floats:
    """What is left of each model's own rate beside each other one: models x models x types; 0 if they do not fit."""
    assert true.pairs is not None
    alone = true.alone[kinds][:, None, :]
    shared = true.pairs[np.ix_(kinds, kinds)]
    return np.divide(shared, alone, out=np.zeros_like(shared), where=alone > 0)


def _nearest(among: Floats, row: Floats, seen: Mask, rng: Random) -> int:
    """The reference whose slowdowns point in the direction nearest to the completed row's."""
    full = row if seen.all() else _completed(among, row, seen)
    lengths = np.linalg.norm(among, axis=1) * np.linalg.norm(full)
    if not seen.any() or not np.linalg.norm(full):
        return rng.randrange(len(among))  # nothing is known of it
    cosine = np.divide(among @ full, lengths, out=np.zeros(len(among)), where=lengths > 0)
    # Of references in the same direction, the one at the smallest distance: a model then always matches itself.
    close = np.flatnonzero(cosine >= cosine.max() - 1e-9)
    return int(close[np.argmin(np.linalg.norm(among[close] - full, axis=1))])


def _completed(among: Floats, row: Floats, seen: Mask) -> Floats:
    """The row with what was not seen filled in, by alternating least squares over all references and itself."""
    matrix = np.vstack([among, np.where(seen, row, 0.0)])
    mask = np.vstack([np.ones_like(among, dtype=bool), seen])
    filled = complete(matrix, mask)[-1]
    return np.where(seen, row, np.clip(filled, 0.0, 1.0))


def complete(matrix: Floats, seen: Mask, rank: int = _RANK) -> Floats:
    """A matrix of low rank that agrees with what was seen of another one, as well as a small penalty lets it.

    It starts from the best factors of the matrix with its columns' means in the gaps, so no rng is in it.

    >>> whole = np.outer([1.0, 2.0, 3.0], [1.0, 0.5, 2.0])
    >>> seen = np.array([[True, True, True], [True, True, True], [True, False, False]])
    >>> complete(whole * seen, seen, rank=1)[2].round(1).tolist()
    [3.0, 1.5, 5.9]
    """
    rank = min(rank, *matrix.shape)
    means = (matrix * seen).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    _, sizes, columns = np.linalg.svd(np.where(seen, matrix, means), full_matrices=False)
    right = columns[:rank].T * np.sqrt(sizes[:rank])
    last = np.inf
    for _ in range(_ROUNDS):
        left = _regress(matrix, seen, right)
        right = _regress(matrix.T, seen.T, left)
        error = float(np.sqrt(np.mean((matrix - left @ right.T)[seen] ** 2)))
        if abs(last - error) < _TOLERANCE * max(error, 1e-12):
            break
        last = error
    found: Floats = left @ right.T
    return found


def _regress(matrix: Floats, seen: Mask, factors: Floats) -> Floats:
    """The other side's factors that fit best, each row by what was seen of it."""
    weights = seen.astype(np.float64)
    squares = np.einsum("rc,ci,cj->rij", weights, factors, factors) + _PENALTY * np.eye(factors.shape[1])
    targets = (matrix * weights) @ factors
    found: Floats = np.linalg.solve(squares, targets[..., None])[..., 0]
    return found
