"""Seconds since a service first began: they go on over restarts, and the system's clock may be set as one likes."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct

from dovetail.core.service.store import Store

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Reading(Struct):
    """What the service's clock showed when the monotonic one of this boot showed so much."""

    boot: str
    monotonic_s: float
    at_s: float


class LastingClock:
    """Never goes back. While only the process is gone it goes on, by the machine's monotonic clock; while the machine
    is off or asleep it stands still, because nothing ran then, and no clock that tells how long can be trusted."""

    def __init__(self, store: Store, least_s: float = 0.0, anew: bool = False) -> None:
        """It shows `least_s` or more, and what it did before counts unless it begins `anew`."""
        boot, now = _boot(), time.monotonic()
        known = None if anew else store.get("clock", _Reading)
        if known is not None and boot and known.boot == boot and now >= known.monotonic_s:
            at_s = known.at_s + now - known.monotonic_s
        else:
            at_s = 0.0 if known is None else known.at_s
        self._reading = _Reading(boot, now, max(at_s, least_s))
        store.set("clock", self._reading)

    def __call__(self) -> float:
        return self._reading.at_s + time.monotonic() - self._reading.monotonic_s


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
