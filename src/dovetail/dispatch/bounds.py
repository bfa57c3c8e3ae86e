"""What no run can beat: the items of a batch over the sum of the rates that its devices were ever seen to keep.

A simulated device has a peak rate by its curve. Of a real one nobody knows it: the best that was ever measured stands
for it, before the run (the peak of its measured curve) or in it, as the items that it did over the time during which it
was at them. So chance, or a curve that was measured low, cannot make a valid run beat its bound: one that does claims
more items in less time than its own devices had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.dispatch.inputs.curves import Curve


def peak_rate(curve: Curve, items: int) -> float:
    """Items per second that no call over at most so many items exceeds, by the curve.

    >>> peak_rate(Curve([(1000, 0.004), (5000, 0.020), (9000, 0.060)]), 100_000)
    250000.0
    """
    sizes = [size for size in curve.sizes if size <= items] + [items]
    return max(size / curve.seconds(size) for size in sizes)


def measured_peak(curve: Curve | None) -> float | None:
    """The best rate of the calls that a curve was made of; None if there is none.

    >>> measured_peak(Curve([(1000, 0.004), (5000, 0.010)])), measured_peak(None)
    (500000.0, None)
    """
    return None if curve is None else max((size / s for size, s in curve.points if s > 0), default=None)


def kept_rate(items: int, spans: Iterable[tuple[float, float]]) -> float:
    """Items per second of the time during which at least one of these spans lasted.

    >>> kept_rate(30, [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    7.5
    """
    busy_s = busy_time_s(spans)
    return items / busy_s if busy_s else 0.0


def busy_time_s(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of these spans lasted."""
    busy_s, end_s = 0.0, float("-inf")
    for from_s, to_s in sorted(spans):
        if to_s > end_s:
            busy_s += to_s - max(from_s, end_s)
            end_s = to_s
    return busy_s


def bound_makespan_s(items: int, peaks: Sequence[float]) -> float:
    """Seconds for so many items, if every device kept its peak rate from the beginning to the end."""
    return items / sum(peaks) if sum(peaks) else 0.0
