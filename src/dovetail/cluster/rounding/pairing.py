"""The pairs of jobs that a policy lets share accelerators, with what each pair is owed and has received."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Floats, Ints


class Pairs:
    """Columns over pairs. `a` and `b` are positions in the table of active jobs, and follow when that is compacted.
    `start_s` is what a new pair, like a new job, counts as having had."""

    only_allotted = True  # a pair without a share of a type never runs there

    def __init__(self, types: int, start_s: float) -> None:
        self._start_s = start_s
        self.a: Ints = np.zeros(0, dtype=np.int64)
        self.b: Ints = np.zeros(0, dtype=np.int64)
        self.share: Floats = np.zeros((0, types))
        self.owed: Floats = np.zeros((0, types))
        self.received: Floats = np.zeros((0, types))

    def __len__(self) -> int:
        return len(self.a)

    def find(self, a: Ints, b: Ints) -> Ints:
        """The rows of these pairs, or -1."""
        if not len(self.a) or not len(a):
            return np.full(len(a), -1, dtype=np.int64)
        width = int(max(self.b.max(), b.max())) + 1
        known = self.a * width + self.b
        order = np.argsort(known)
        wanted = a * width + b
        at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
        return np.where(known[order][at] == wanted, order[at], -1)

    def arrive(self, width: Ints) -> None:
        """Jobs have come; these are the widths of all."""

    def allot(self, pairs: Ints, share: Floats) -> None:
        """Take over a new allocation; what a pair is owed stays if the pair stays."""
        a, b = pairs[:, 0], pairs[:, 1]
        before = self.find(a, b)
        known = before >= 0
        for name, start in (("owed", 0.0), ("received", self._start_s)):
            new = np.full_like(share, start)
            new[known] = getattr(self, name)[before[known]]
            setattr(self, name, new)
        self.a, self.b, self.share = a.copy(), b.copy(), share.copy()

    def keep(self, position: Ints) -> None:
        """Follow a compaction: `position` is the new place of every job, or -1 if it is gone."""
        a, b = position[self.a], position[self.b]
        alive = (a >= 0) & (b >= 0)
        self.a, self.b = a[alive], b[alive]
        self.share, self.owed, self.received = self.share[alive], self.owed[alive], self.received[alive]
