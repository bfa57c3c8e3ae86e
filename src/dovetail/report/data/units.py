"""Units of time for axes and text."""

from __future__ import annotations

from typing import NamedTuple


class Unit(NamedTuple):
    name: str
    seconds: float


_UNITS = (Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0), Unit("h", 3600.0), Unit("d", 86400.0))


def unit_for(seconds: float) -> Unit:
    """The unit in which a span of time reads best. Seconds are kept up to many hours: they are what files hold.

    >>> unit_for(0.02).name, unit_for(5000).name, unit_for(200_000).name
    ('ms', 's', 'h')
    """
    if seconds >= 86400 * 20:
        return _UNITS[4]
    if seconds >= 100_000:
        return _UNITS[3]
    if seconds >= 1 or seconds <= 0:
        return _UNITS[2]
    return _UNITS[1] if seconds >= 1e-3 else _UNITS[0]


def unit_of(axis: str) -> Unit | None:
    """The unit of an axis over time, by what it is called; nothing if it shows something else.

    >>> unit_of("time, h").seconds, unit_of("devices")
    (3600.0, None)
    """
    return next((unit for unit in _UNITS if axis == f"time, {unit.name}"), None)
