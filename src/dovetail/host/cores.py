"""Which cores: disjoint sets, kept across changes where that is possible."""

from __future__ import annotations

from collections.abc import Sequence


def choose(free: set[int], held: tuple[int, ...], count: int, before: Sequence[int] = ()) -> tuple[int, ...]:
    """So many cores for somebody who holds these: fewer of them, or more beside them, first those had before, then
    those nearest to its own. `free` is brought up to date. Neighbouring numbers are neighbours in the machine.

    >>> free = {0, 1, 2, 3}
    >>> first = choose(free, (), 3)
    >>> second = choose(free, (), 1)
    >>> first, second, choose(free, first, 2), choose(free, second, 2), free
    ((0, 1, 2), (3,), (0, 1), (2, 3), set())
    """
    if count <= len(held):
        free.update(held[count:])
        return held[:count]
    own, more = set(held), count - len(held)
    own.update(sorted(free.intersection(before))[:more])
    while len(own) < count:
        rest = free - own
        own.add(min(rest, key=lambda core: (min((abs(core - other) for other in own), default=0), core)))
    free -= own
    return tuple(sorted(own))
