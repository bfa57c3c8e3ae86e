"""One chunk per device, as large as its rate: best when the rates are right, bad when they are not."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.dispatch.policies.base import DECLINE, View, probe, pull_rates


@policy("proportional", level="dispatch")
class ProportionalChunks:
    """Every device gets one share of the whole batch in proportion to its rate; what comes back is shared again."""

    def next(self, device: int, view: View) -> int:
        if not view.devices[device].settled and (size := probe(device, view)) != DECLINE:
            return size
        rates = pull_rates(view)
        total = sum(rates)
        waiting = sum(rate for rate, state in zip(rates, view.devices, strict=True) if not state.chunks)
        if rates[device] <= 0 or total <= 0:
            return DECLINE
        whole = view.total if view.total < float("inf") else view.remaining
        if whole == float("inf"):
            return view.devices[device].best
        share = whole * rates[device] / total
        if waiting <= rates[device] * 1.0000001:  # the last one to ask takes what rounding left
            share = view.remaining
        return max(1, int(min(share, view.devices[device].limit)))
