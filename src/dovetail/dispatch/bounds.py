"""What no run can beat: the items of a batch over the sum of the devices' peak rates."""

from __future__ import annotations

from dovetail.dispatch.inputs.curves import Curve


def peak_rate(curve: Curve, items: int) -> float:
    """Items per second that no call over at most so many items exceeds.

    >>> peak_rate(Curve([(1000, 0.004), (5000, 0.020), (9000, 0.060)]), 100_000)
    250000.0
    """
    sizes = [size for size in curve.sizes if size <= items] + [items]
    return max(size / curve.seconds(size) for size in sizes)
