"""The least time in which so many microbatches can come through stages and links."""

from __future__ import annotations

from collections.abc import Sequence


def makespan_s(seconds: Sequence[float], devices: Sequence[int], microbatches: int) -> float:
    """The latency of one, and what the others add at least; a simulation reaches it, whatever the buffers.

    A station adds its `seconds` for every round of its `devices`; of several stations, the mix that adds most counts.
    Without replicas that is the bottleneck for each further microbatch.

    >>> makespan_s([1.0, 4.0, 2.0], [1, 1, 1], 10), makespan_s([1.0, 4.0, 2.0], [1, 2, 1], 10)
    (43.0, 25.0)
    """
    slowest = {n: max(s for s, d in zip(seconds, devices, strict=True) if d == n) for n in set(devices)}
    if set(devices) == {1}:
        return sum(seconds) + (microbatches - 1) * slowest[1]
    added_s = [0.0]
    for n in range(1, microbatches):
        added_s.append(max([added_s[-1], *(added_s[n - r] + s for r, s in slowest.items() if r <= n)]))
    return sum(seconds) + added_s[-1]
