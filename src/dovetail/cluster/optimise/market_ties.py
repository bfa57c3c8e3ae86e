"""Jobs of a market that would do as well on another type: as many of them move as the types' accelerators ask for.

Jobs of one kind are tied at the same prices, and there can be thousands of them. What they take of a type can be
swapped for another one's at a ratio that is the same for a group of them.
"""

from __future__ import annotations

import numpy as np

from dovetail.cluster.optimise.market import Swaps
from dovetail.cluster.optimise.market_choices import Bidders, MarketChoices
from dovetail.cluster.policies.base import Floats, Ints

DIGITS = 9  # of a rate, in which jobs of a group agree
_MIXER = np.random.default_rng(0).integers(2**62, size=1024) * 2 + 1


class Ties:
    """Those who are tied, but for those who are undecided anyhow."""

    def __init__(self, bidders: Bidders, chosen: MarketChoices, undecided: Ints) -> None:
        decided = np.ones(len(chosen.part), dtype=bool)
        decided[undecided] = False
        self._job = job = np.flatnonzero(decided & chosen.tied.any(axis=0))
        gain, tied, first, second = bidders.gain.T[job], chosen.tied.T[job], chosen.first[job], chosen.second[job]
        self._part = chosen.part[job]
        self._size = bidders.market.width[job] * self._part
        likeness = np.round(gain / gain.max(axis=1, initial=1e-300)[:, None] * 10.0**DIGITS).astype(np.int64)
        traits = np.column_stack([likeness, tied, first, second])
        _, head, self._group = np.unique(traits @ _MIXER[: traits.shape[1]], return_index=True, return_inverse=True)
        group, target = np.nonzero(tied[head])
        one = head[group]
        low = gain[one, first[one]]
        self.swaps = Swaps(
            source=second[one],
            target=target,
            ratio=(gain[one, second[one]] - low) / (gain[one, target] - low),
            rest=first[one],
            group=group,
            room=np.bincount(self._group, self._size, len(head)).astype(np.float64),
        )

    def swap(self, share: Floats, amount: Floats) -> None:
        """Change shares, one job of a group after the other, until so much is swapped."""
        swaps = self.swaps
        for group in np.unique(swaps.group[amount > 0]).tolist():
            member = np.flatnonzero(self._group == group)
            size, until = self._size[member], np.cumsum(self._size[member])
            done = 0.0
            for swap in np.flatnonzero(swaps.group == group).tolist():
                swapped = np.minimum(until, done + amount[swap]) - np.maximum(until - size, done)
                time = np.clip(swapped / size, 0.0, 1.0) * self._part[member]
                done += float(amount[swap])
                ratio = float(swaps.ratio[swap])
                for on, factor in ((swaps.source, -1.0), (swaps.target, ratio), (swaps.rest, 1 - ratio)):
                    if on[swap] > 0:
                        share[self._job[member], on[swap] - 1] += factor * time
