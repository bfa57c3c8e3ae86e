"""Times as people write them: how long from now, and when."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from dovetail.core.errors import InputError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_S = 1e10  # three centuries: what is more is a slip, and beyond some calendars
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds(given: float | str, name: str = "delay") -> float:
    """Seconds, as a number or with units.

    >>> seconds("1h30m"), seconds("45"), seconds(2.5)
    (5400.0, 45.0, 2.5)
    >>> seconds("soon")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: delay: found 'soon', expected seconds, or as 30m, 1h30m, 2d
    """
    parts = _PART.findall(given) if isinstance(given, str) else []
    if parts and "".join(map("".join, parts)) == given:
        found = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        try:
            found = float(given)
        except ValueError:
            found = -1.0
    if LONGEST_S < found < float("inf"):
        raise InputError(f"{name}: found {given!r}, expected up to {LONGEST_S:g} seconds")
    if not 0 <= found < float("inf"):
        raise InputError(f"{name}: found {given!r}, expected seconds, or as 30m, 1h30m, 2d")
    return found


def moment(given: str | datetime, now: datetime | None = None) -> float:
    """When that is by the system's clock: today or tomorrow at a time of day, or a date and a time; local, unless it
    says otherwise.

    >>> noon = datetime(2026, 11, 16, 12, 0)
    >>> [datetime.fromtimestamp(moment(text, noon)).isoformat() for text in ("22:00", "9:30", "2026-12-01 08:00")]
    ['2026-11-16T22:00:00', '2026-11-17T09:30:00', '2026-12-01T08:00:00']
    """
    if isinstance(given, datetime):
        return given.timestamp()
    now = now or datetime.now()
    try:
        if re.fullmatch(r"\d?\d:\d\d(:\d\d)?", given):
            at = datetime.combine(
                now.date(), datetime.strptime(given, "%H:%M:%S"[: 5 + 3 * (given.count(":") - 1)]).time()
            )
            return (at if at > now else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(given).timestamp()
    except (ValueError, OverflowError, TypeError):
        raise InputError(f"begin: found {given!r}, expected a time as 22:00, or 2026-12-01 08:00") from None


def clock_time(begin: float) -> str:
    """A moment as its user would write it.

    >>> clock_time(1e300)
    'a time beyond the calendar'
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin))
    except (OverflowError, OSError, ValueError):
        return "a time beyond the calendar"
