"""How many GPUs of a pool are there, over time: data of a problem, as a file or the configuration gives it."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from msgspec import Struct

from dovetail.core.files.document import Document
from dovetail.core.resources import Pool

MOST_STEPS = 10_000
_MOST_S = 1e12


class CapacityChange(NamedTuple):
    """At one instant GPUs come, empty, and others go: when each of those will be back (inf: never)."""

    at_s: float
    opened: tuple[int, ...]
    closed: dict[int, float]


class GpusOverTime(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`steps` are instants and how many GPUs are wanted from then on: the first so many of the pool. Those that are
    added can be used `scale_up_s` later, empty; those that are let go finish what they run.

    >>> GpusOverTime(((0, 1), (60, 2), (300, 1)), scale_up_s=30).changes(2)
    [CapacityChange(at_s=0.0, opened=(), closed={1: 90}), CapacityChange(at_s=90, opened=(1,), closed={}), \
CapacityChange(at_s=300, opened=(), closed={1: inf})]
    """

    steps: tuple[tuple[float, int], ...]
    scale_up_s: float = 0.0

    def problem(self, size: int | None = None) -> tuple[tuple[str | int, ...], str] | None:
        """What is wrong with it (for a pool of this size), and where; None if nothing is."""
        if not 0 <= self.scale_up_s <= _MOST_S:
            return ("scale_up_s",), f"expected seconds, 0 or more, found {self.scale_up_s}"
        if not 0 < len(self.steps) <= MOST_STEPS:
            return ("steps",), f"expected 1 to {MOST_STEPS} pairs of seconds and GPUs, found {len(self.steps)}"
        before = -inf
        for i, (at_s, gpus) in enumerate(self.steps):
            if i == 0 and at_s != 0:
                return ("steps", 0), f"expected the first at 0 s, found {at_s}"
            if not before < at_s <= _MOST_S:
                return ("steps", i), f"expected a time after {before} s, found {at_s}"
            if gpus < 1 or (size is not None and gpus > size):
                return ("steps", i), f"expected 1 to {size or 'all'} GPUs of the pool, found {gpus}"
            before = at_s
        return None

    def smallest(self, pool: Pool) -> Pool:
        """The GPUs that are always there."""
        return Pool(pool.devices[: min(gpus for _, gpus in self.steps)], pool.types, pool.within_hosts)

    def wanted(self, gpu: int) -> list[tuple[float, float]]:
        """From when to when a GPU is wanted, and paid for."""
        found: list[tuple[float, float]] = []
        since: float | None = None
        for at_s, gpus in (*self.steps, (inf, 0)):
            if gpu < gpus and since is None:
                since = at_s
            elif gpu >= gpus and since is not None:
                found.append((since, at_s))
                since = None
        return found

    def changes(self, size: int) -> list[CapacityChange]:
        """What happens when, in order; what is not there at the beginning goes at 0 s."""
        opened: dict[float, list[int]] = {}
        closed: dict[float, dict[int, float]] = {}
        for gpu in range(size):
            usable = [(a + self.scale_up_s if a else a, b) for a, b in self.wanted(gpu)]
            usable = [(a, b) for a, b in usable if a < b]
            for (_, gone), (back, _) in zip([(0.0, 0.0), *usable], [*usable, (inf, inf)], strict=True):
                if back > 0 and gone < inf:
                    closed.setdefault(gone, {})[gpu] = back
                    if back < inf:
                        opened.setdefault(back, []).append(gpu)
        times = sorted({*opened, *closed})
        return [CapacityChange(t, tuple(opened.get(t, ())), closed.get(t, {})) for t in times]

    def off_at(self, t: float, size: int) -> set[int]:
        """The GPUs that take nothing at an instant."""
        off: set[int] = set()
        for change in self.changes(size):
            if change.at_s <= t:
                off = (off - {*change.opened}) | {*change.closed}
        return off


def read_gpus_over_time(given: Any, name: str = "gpus_over_time") -> GpusOverTime:
    """From a file, or what stands in its place."""
    if isinstance(given, GpusOverTime):
        return given
    doc = Document.of(given, name)
    data = doc.data.get(name, doc.data) if isinstance(doc.data, dict) else doc.data
    found = doc.convert(data, GpusOverTime)
    if (wrong := found.problem()) is not None:
        raise doc.error(*wrong)
    return found
