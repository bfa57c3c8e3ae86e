"""The least time in which so many microbatches can come through a route."""

from __future__ import annotations

from dovetail.pipeline.route import Route


def makespan_s(route: Route, microbatches: int) -> float:
    """The latency of one, and what the others add at least; a simulation reaches it, whatever the buffers.

    A station adds its seconds for every round of its devices; of several stations, the mix that adds most counts.
    Without replicas that is the bottleneck for each further microbatch.
    """
    latency_s = sum(route.seconds)
    rounds = {len(station.devices) for station in route.stations}
    slowest = {n: max(station.seconds for station in route.stations if len(station.devices) == n) for n in rounds}
    if rounds == {1}:
        return latency_s + (microbatches - 1) * slowest[1]
    added_s = [0.0]
    for n in range(1, microbatches):
        added_s.append(max([added_s[-1], *(added_s[n - r] + s for r, s in slowest.items() if r <= n)]))
    return latency_s + added_s[-1]
