"""Jobs that take one after the other what they wish, many at once as long as nothing that they could wish runs out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Ints

_BLOCK = 2048  # jobs that are looked at together


def in_turn(
    wish: Ints, on: Ints, width: Ints, free: Ints, instead: Callable[[Ints, NDArray[np.bool_]], Ints] | None = None
) -> Ints:
    """What each job takes of the choices (so many accelerators of a type), or -1; takes it from what is `free`.

    It is what it wishes, and where that has no room any more what it wishes `instead` of those that have room, if
    anything.

    >>> free = np.array([3, 1])
    >>> in_turn(np.array([1, 1, 0, 0, 2]), np.array([0, 0, 1]), np.array([1, 2, 1]), free).tolist(), free.tolist()
    ([1, -1, 0, -1, 2], [0, 0])
    """
    wish, taken = wish.copy(), np.full(len(wish), -1)
    rest, types = np.flatnonzero(wish >= 0), np.arange(len(free))[:, None]
    while len(rest) and (room := width <= free[on]).any():
        now = rest[:_BLOCK]
        if len(late := now[~room[wish[now]]]):
            wish[late] = -1 if instead is None else instead(late, room)
            now = now[wish[now] >= 0]
        at = wish[now]
        used = np.cumsum(np.where(on[at] == types, width[at], 0), axis=1)
        widest = np.zeros(len(free), dtype=np.int64)
        np.maximum.at(widest, on[room], width[room])
        short = (free[:, None] - used < widest[:, None]).any(axis=0)
        end = int(short.argmax()) + 1 if short.any() else len(now)
        taken[now[:end]] = at[:end]
        free -= used[:, end - 1] if end else 0
        rest = np.concatenate([now[end:], rest[_BLOCK:]])
    return taken
