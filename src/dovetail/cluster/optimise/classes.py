"""Jobs that are alike as one class with a count, so that a program's size does not depend on the number of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Ints

_FEW, _SPARSE = 100_000, 16  # codes, and codes for each job: more are sorted, not counted


@dataclass(slots=True)
class Classes:
    """Which class every job belongs to. `key` is what makes a class; it means the same in every call."""

    of: Ints  # by job
    first: Ints  # by class: the oldest of its jobs
    count: Ints  # by class
    key: list[tuple[Any, ...]]  # by class

    def members(self) -> list[Ints]:
        """The jobs of every class, oldest first."""
        return np.split(np.argsort(self.of, kind="stable"), np.cumsum(self.count)[:-1])


def group(kind: Ints, *traits: NDArray[Any], keys: bool = True) -> Classes:
    """Group jobs (at least one) of one kind that are equal in every trait; without `keys`, `key` is left empty.

    >>> classes = group(np.array([4, 2, 4, 4]), np.array([1.0, 1.0, 1.0, 5.0]))
    >>> classes.key, classes.of.tolist(), classes.count.tolist(), classes.first.tolist()
    ([(2, 1.0), (4, 1.0), (4, 5.0)], [1, 0, 1, 2], [1, 2, 1], [1, 0, 3])
    """
    of, count = _compact(kind, 0)
    for trait in traits:
        if len(count) < len(kind) and np.count_nonzero(trait != trait[0]):
            values, inverse = np.unique(trait, return_inverse=True)
            of, count = _compact(of * len(values) + inverse, len(count) * len(values))
    first = np.empty(len(count), dtype=np.int64)
    first[of[::-1]] = np.arange(len(kind) - 1, -1, -1)
    key = zip(kind[first].tolist(), *[trait[first].tolist() for trait in traits], strict=True) if keys else ()
    return Classes(of, first, count, list(key))


def apart(jobs: int) -> Classes:
    """Every job a class of its own."""
    each = np.arange(jobs)
    return Classes(each, each, np.ones(jobs, dtype=np.int64), [])


def _compact(code: Ints, codes: int) -> tuple[Ints, Ints]:
    """The same groups, numbered without gaps in the order of their codes (so many), and their sizes."""
    if codes > max(_FEW, _SPARSE * len(code)):
        _, of, many = np.unique(code, return_inverse=True, return_counts=True)
        return of, many
    count = np.bincount(code)
    present = count > 0
    return (present.cumsum() - 1)[code], count[present]
