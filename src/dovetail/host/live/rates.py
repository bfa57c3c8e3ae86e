"""What a live run has measured, as rates and prices that other levels can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from dovetail.core.events import Measured, Resume, Settled, Start
from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.host.curves import LINEAR, curve, learned
from dovetail.host.program import CORE


def rate_table(steps: Iterable[tuple[int, float, Sequence[Any]]], names: Mapping[str, str]) -> RateTable:
    """Of every program by its name: the steps per second that its agent last told for each number of cores; once two
    are known, how many times as fast as on one core; and the seconds from the decision to start it, or to resume it
    after a pause, until it ran: what a restart and a pause cost.

    >>> seen = [(1, 0.0, [Start("1", "run", "program", (0, 1), 0.0, 0.0, "")]), (2, 0.5, [Settled("1", "run", (0, 1))]),
    ...         (3, 9.0, [Measured("1", "run", 2, 5.0), Measured("1", "run", 1, 4.0)])]
    >>> table = rate_table(seen, {"1": "train"})
    >>> table.per_s("train", CORE, "steps/s", 2), table.switch_s("", "train", CORE)
    (5.0, 0.5)
    >>> round(table.rate("train", CORE, 2), 6)
    1.25
    """
    rates: dict[str, dict[int, float]] = {}
    prices: dict[tuple[str, str], list[float]] = {}
    begun: dict[str, tuple[str, float]] = {}
    for _, t, events in steps:
        for event in events:
            if getattr(event, "job", "") not in names:
                continue  # one that was cleaned away
            match event:
                case Measured():
                    rates.setdefault(names[event.job], {})[event.width] = event.rate
                case Start() | Resume():
                    begun[event.job] = ("" if isinstance(event, Start) else names[event.job], t)
                case Settled() if event.devices and event.job in begun:
                    previous, since = begun.pop(event.job)
                    prices.setdefault((previous, names[event.job]), []).append(t - since)
    found = [
        Rate(name, CORE, rate, width, source="measured", unit="steps/s")
        for name, known in rates.items()
        for width, rate in sorted(known.items())
    ]
    for name, known in rates.items():
        if len(known) > 1:
            speed_up = curve(learned(LINEAR, known))
            found += [Rate(name, CORE, speed_up.speed(n), n, source="measured") for n in sorted(known)]
    switches = [Switch(to, median(took), previous, CORE, "measured") for (previous, to), took in prices.items()]
    return RateTable(found, switches)
