"""What happened to one program, from the steps that are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.core.events import Measured
from dovetail.core.journal import Recorded


def past_of(
    job: str, steps: Iterable[tuple[int, float, Sequence[Recorded]]], cpus: Sequence[int]
) -> list[dict[str, Any]]:
    """What happened to a program, and what was decided about it and why, on which processors."""
    found = []
    for _, t, events in steps:
        for event in events:
            if getattr(event, "job", "") == job:
                devices = getattr(event, "devices", None)
                cores = None if devices is None else [cpus[device] for device in devices]
                why = getattr(event, "why", "") or getattr(event, "what", "")
                if isinstance(event, Measured):
                    why = f"{event.rate:g} per second on {event.width}"
                found.append({"t": t, "what": type(event).__struct_config__.tag, "cores": cores, "why": why})
    return found
