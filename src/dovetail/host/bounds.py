"""No run of these programs ends earlier, whoever schedules it."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.events import Arrived
from dovetail.host.curves import curve


def makespan_bound_s(programs: Iterable[tuple[float, Arrived]], cores: int) -> float:
    """The larger of two: each program alone on as many cores as serve it best; all of their work on all cores.

    >>> jobs = [(0.0, Arrived(name, "p", (960.0,), facts={"cores": 12})) for name in "abc"]
    >>> makespan_bound_s(jobs, 16)
    180.0
    """
    alone, area, first = 0.0, 0.0, None
    for at_s, event in programs:
        speed_up = curve(event.facts.get("curve", "linear"))
        speeds = [speed_up.speed(n) for n in range(1, cores + 1)]
        alone = max(alone, at_s + event.sizes[0] / max(speeds))
        area += event.sizes[0] / max(speed / n for n, speed in enumerate(speeds, start=1))
        first = at_s if first is None else min(first, at_s)
    return max(alone, (first or 0.0) + area / cores)
