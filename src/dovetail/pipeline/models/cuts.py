"""Where to cut a graph of operations into layers: where few tensors are alive, and not around what costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

MOST_ALIVE = 4
_HEAVY = 0.35  # a layer with more of the model than this leaves a planner too little to choose from
_LIGHT = 0.1  # of the layer that an average piece of work is in: not worth a layer of its own


def choose_cuts(alive: Sequence[int | None], work: Sequence[float]) -> list[int]:
    """After which operations to cut: `alive[i]` tensors cross the cut after operation i; None forbids it.

    The narrowest cuts are taken that spread the work; operations that do next to nothing join a neighbour.

    >>> choose_cuts([2, 1, 1, 2, 1, 2, 1], [5, 5, 0, 5, 5, 5, 5])
    [2, 4]
    """
    total = sum(work) or 1.0
    best: list[int] = []
    lightest = 1.0
    for most in range(1, MOST_ALIVE + 1):
        cuts = _merged([i for i, count in enumerate(alive[:-1]) if count is not None and count <= most], work)
        heaviest = max(_sums(cuts, work)) / total
        if heaviest < 0.95 * lightest:
            best, lightest = cuts, heaviest
        if lightest <= _HEAVY:
            break
    return best


def _sums(cuts: Sequence[int], work: Sequence[float]) -> list[float]:
    ends = [*cuts, len(work) - 1]
    return [sum(work[a + 1 : b + 1]) for a, b in zip([-1, *cuts], ends, strict=True)]


def _merged(cuts: list[int], work: Sequence[float]) -> list[int]:
    """A light layer joins the one before it, the first one the one after it."""
    sums = _sums(cuts, work)
    typical = sum(total * total for total in sums) / (sum(sums) or 1.0)
    heavy = [total >= _LIGHT * typical and total > 0 for total in sums]
    kept: list[int] = []
    seen_heavy = False
    for number, is_heavy in enumerate(heavy):
        if is_heavy and seen_heavy:
            kept.append(cuts[number - 1])
        seen_heavy = seen_heavy or is_heavy
    return kept
