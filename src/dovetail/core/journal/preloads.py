"""Loads ahead of need, and which of them a start finds: for all who read a journal."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from dovetail.core.events import Prepare, PrepareEnded, Start

_T = TypeVar("_T")


class FoundPreload(NamedTuple, Generic[_T]):
    """What was kept of it; `under_way` if the task goes on with it; `used` if it is of use to the task."""

    kept: _T
    under_way: bool
    used: bool


class Preloads(Generic[_T]):
    """A start finds the load of its kind on these same devices that no start has found before, under way or over; one
    that is over is of use to it unless it sets up all the same. Something may be kept of each.

    >>> known = Preloads()
    >>> known.begin(Prepare(1, "llm", (0, 1), 4.0, "soon"), "kept")
    >>> known.find(Start("q", "a", "llm", (0, 1), 0.0, 9.0, "ready", 2.0))
    FoundPreload(kept='kept', under_way=True, used=True)
    >>> known.end(PrepareEnded(1)), known.end(PrepareEnded(1))
    (('kept', True), None)
    """

    def __init__(self) -> None:
        self._begun: dict[int, tuple[Prepare, _T]] = {}
        self._ahead: dict[tuple[tuple[int, ...], str], tuple[int, _T]] = {}  # those that nobody has found

    def __len__(self) -> int:
        """How many may still be found."""
        return len(self._ahead)

    @property
    def begun(self) -> list[int]:
        """Numbers of those that are not over."""
        return list(self._begun)

    @property
    def under_way(self) -> list[_T]:
        """What was kept of those that are not over, and that no task goes on with."""
        return [kept for id, kept in self._ahead.values() if id in self._begun]

    def begin(self, order: Prepare, kept: _T) -> None:
        self._begun[order.id] = (order, kept)
        self._ahead[order.devices, order.kind] = (order.id, kept)

    def find(self, start: Start) -> FoundPreload[_T] | None:
        found = self._ahead.pop((start.devices, start.kind), None)
        if found is None:
            return None
        under_way = found[0] in self._begun
        return FoundPreload(found[1], under_way, under_way or not start.setup_s)

    def end(self, event: PrepareEnded) -> tuple[_T, bool] | None:
        """What was kept of it, and whether a task went on with it before; None if there is no such load."""
        if event.id not in self._begun:
            return None
        order, kept = self._begun.pop(event.id)
        key = (order.devices, order.kind)
        waits = key in self._ahead and self._ahead[key][0] == event.id
        if waits and event.why:
            del self._ahead[key]  # it is not there after all
        return kept, not waits
