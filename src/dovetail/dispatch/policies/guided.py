"""Guided sizes: a share of what is left, by rate, so that chunks shrink towards the end."""

from __future__ import annotations

from math import ceil, inf

from dovetail.core.registry import policy
from dovetail.dispatch.policies.base import DECLINE, View, probe, pull_rates


@policy("guided", level="dispatch")
class Guided:
    """Takes rate share / k of what is left, at least `smallest` items and at most the device's best size."""

    def __init__(self, *, k: float = 2.0, smallest: int = 1) -> None:
        if k < 1 or smallest < 1:
            raise ValueError(f"expected k >= 1 and smallest >= 1, found {k} and {smallest}")
        self.k = k
        self.smallest = smallest

    def next(self, device: int, view: View) -> int:
        state = view.devices[device]
        if not state.settled and (size := probe(device, view)) != DECLINE:
            return size
        most = state.best if state.curve or state.size else inf
        if view.remaining == inf:
            return state.best
        rates = pull_rates(view)
        share = ceil(view.remaining * rates[device] / (sum(rates) or 1.0) / self.k)
        return int(max(1, min(max(share, self.smallest), most, state.limit)))
