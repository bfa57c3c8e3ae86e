"""Which cores: disjoint sets, kept across changes where that is possible."""

from __future__ import annotations

from collections.abc import Sequence


class Cores:
    """The free cores of a machine. Neighbouring numbers are neighbours in the machine.

    >>> cores = Cores(4)
    >>> first = cores.change((), 3)
    >>> second = cores.change((), 1)
    >>> first, second, cores.change(first, 2), cores.change(second, 2)
    ((0, 1, 2), (3,), (0, 1), (2, 3))
    """

    def __init__(self, count: int) -> None:
        self._free = set(range(count))

    def __len__(self) -> int:
        return len(self._free)

    def give_back(self, cores: Sequence[int]) -> None:
        self._free.update(cores)

    def change(self, held: tuple[int, ...], count: int, before: Sequence[int] = ()) -> tuple[int, ...]:
        """So many cores for somebody who holds these: fewer of them, or more beside them; first those had before, then
        those nearest to its own."""
        if count <= len(held):
            self._free.update(held[count:])
            return held[:count]
        own, more = set(held), count - len(held)
        own.update(sorted(self._free.intersection(before))[:more])
        while len(own) < count:
            rest = self._free - own
            own.add(min(rest, key=lambda core: (min((abs(core - other) for other in own), default=0), core)))
        self._free -= own
        return tuple(sorted(own))
