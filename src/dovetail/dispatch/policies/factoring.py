"""Factoring: rounds that hand out half of what is left, each device its share by rate."""

from __future__ import annotations

from math import ceil, inf

from dovetail.core.registry import policy
from dovetail.dispatch.policies.base import DECLINE, View, probe, pull_rates


@policy("factoring", level="dispatch")
class Factoring:
    """Weighted factoring: in each round, half of what is left is shared by rate; at least `smallest` items a chunk."""

    def __init__(self, *, smallest: int = 1) -> None:
        if smallest < 1:
            raise ValueError(f"expected smallest >= 1, found {smallest}")
        self.smallest = smallest

    def next(self, device: int, view: View) -> int:
        state = view.devices[device]
        if not state.settled and (size := probe(device, view)) != DECLINE:
            return size
        if view.remaining == inf:
            return state.best
        # A round hands out half: with R left now, the round began when 2**k times as much was left.
        start = float(view.total if view.total < inf else view.remaining)
        while start > 2 * view.remaining:
            start /= 2
        rates = pull_rates(view)
        share = ceil(start / 2 * rates[device] / (sum(rates) or 1.0))
        most = state.best if state.curve or state.size else inf
        return int(max(1, min(max(share, self.smallest), most, state.limit)))
