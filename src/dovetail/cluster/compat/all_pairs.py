"""Every pair of jobs of one width, whether it was allotted a share or not: the older scheduler kept account of all."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.cluster.rounding.pairing import Pairs


class AllPairs(Pairs):
    """A pair is there from the arrival of its second job on, having had nothing, and fills what others leave."""

    only_allotted = False
    _jobs = 0

    def arrive(self, width: Ints) -> None:
        known, total = self._jobs, len(width)
        self._jobs = total
        second = np.arange(known, total)
        b = np.repeat(second, second)
        a = np.concatenate([np.arange(k) for k in second]) if len(second) else b
        same = width[a] == width[b]
        new = int(same.sum())
        self.a, self.b = np.concatenate((self.a, a[same])), np.concatenate((self.b, b[same]))
        for name in ("share", "owed", "received"):
            old: Floats = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros((new, old.shape[1])))))

    def allot(self, pairs: Ints, share: Floats) -> None:
        self.share[:] = 0.0
        if len(pairs):
            self.share[self.find(pairs[:, 0], pairs[:, 1])] = share

    def keep(self, position: Ints) -> None:
        super().keep(position)
        self._jobs = int((position >= 0).sum())
