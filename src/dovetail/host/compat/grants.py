"""The grants of the older scheduler, by its formulas: 1 inter-op thread and the rest intra-op, `available` of the free
cores, None for a refusal."""

from __future__ import annotations

Threads = tuple[int, int]


def strict(asked: Threads, available: int) -> Threads | None:
    """All or nothing; to give back is always allowed.

    >>> strict((1, 11), 12), strict((1, 11), 11)
    ((1, 11), None)
    """
    return asked if sum(asked) <= available else None


def always_attend(asked: Threads, available: int) -> Threads | None:
    """A share of both kinds of threads where not all are available. Halves are rounded to even, so a core can be lost.

    >>> always_attend((1, 11), 4), always_attend((1, 5), 3), always_attend((1, 3), 1)
    ((1, 3), (1, 1), None)
    """
    need = sum(asked)
    if available < 2:
        return None
    if need <= available:
        return asked
    inter, intra = (round(available * threads / need) for threads in asked)
    if not inter:
        inter, intra = 1, intra - 1
    if not intra:
        inter, intra = inter - 1, 1
    return min(inter, 1), intra


def max_prop(asked: Threads, available: int, factor: float, most: int) -> Threads | None:
    """In proportion to what everybody waiting asked for: a factor below 1 gives more than was asked.

    >>> max_prop((1, 7), 16, 0.5, 16), max_prop((1, 7), 16, 1.5, 16), max_prop((1, 0), 2, 1.0, 16)
    ((1, 14), (1, 4), (1, 1))
    """
    if available < 2:
        return None
    if available == 2:
        return 1, 1
    return 1, min(max(min(most, int(asked[1] / factor)), 1), available - 1)
