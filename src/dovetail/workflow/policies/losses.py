"""What a switch loses, in request-seconds of waiting summed over everybody: fluid queues, M/M/c where they are calm."""

from __future__ import annotations

from math import exp, sqrt

_LEAST_SLACK = 0.2  # of a model's windows: a queue drains at least so fast, else one estimate would decide everything


def mmc_wait_s(windows: float, needed: float, size_s: float) -> float:
    """Mean wait in an M/M/c queue (Sakasegawa's approximation); `needed` windows of `windows` are busy.

    >>> mmc_wait_s(1, 0.5, 10.0)
    10.0
    """
    busy = needed / windows
    return float(size_s * busy ** (sqrt(2 * (windows + 1)) - 1) / (windows * (1 - busy)))


def drain_rate(windows: float, needed: float) -> float:
    """Windows that are left for a queue while `needed` of them serve what arrives."""
    return max(windows - needed, _LEAST_SLACK * windows)


def away_loss(
    waiting: int, per_s: float, size_s: float, needed: float, windows: float, kept: float, away_s: float
) -> float:
    """What a model loses while all but `kept` of its windows are away for `away_s`.

    If it can spare them, what it waits longer in the mean. Else its queue grows, and must be drained afterwards: the
    square is why one must not evict the only copy of a busy model.
    """
    if kept > needed:
        calm = per_s * away_s * (mmc_wait_s(kept, needed, size_s) - mmc_wait_s(windows, needed, size_s))
        slower = waiting**2 * size_s / 2 * (1 / drain_rate(kept, needed) - 1 / drain_rate(windows, needed))
        return calm + min(slower, waiting * away_s)
    growth = max(per_s - kept / size_s, 0.0) if size_s else 0.0
    queue = waiting + growth * away_s
    return waiting * away_s + growth * away_s**2 / 2 + queue**2 * size_s / (2 * drain_rate(windows, needed))


def elsewhere_loss(
    waiting: int, per_s: float, size_s: float, needed: float, windows: float, back_s: float, horizon_s: float
) -> float:
    """What it loses if it can be loaded again elsewhere, once it is asked for within the horizon."""
    queue = per_s * back_s
    asked = 1.0 - exp(-per_s * horizon_s)
    once = back_s + queue * back_s / 2 + queue**2 * size_s / (2 * drain_rate(windows, needed))
    return waiting * back_s + asked * once


def copy_gain(
    waiting: int, size_s: float, needed: float, windows: float, free_s: float, setup_s: float, speed: float
) -> float:
    """What the queue of a model that is loaded elsewhere saves if a copy is loaded here for its head. Where all of it
    would be done elsewhere before that, it is less than nothing: by how much the load ends later.

    >>> copy_gain(1, size_s=1.0, needed=0.0, windows=1.0, free_s=1.0, setup_s=10.0, speed=1.0)
    -8.0
    """
    net = drain_rate(windows, needed)
    behind_s, gone_s = max(0.0, setup_s - free_s), waiting * size_s / net
    if behind_s >= gone_s:
        return gone_s - behind_s
    left = waiting - behind_s * net / size_s
    wait = waiting * free_s + waiting**2 * size_s / (2 * net)
    copy = waiting * min(free_s, setup_s) + (waiting + left) / 2 * behind_s + left**2 * size_s / (2 * (net + speed))
    return wait - copy
