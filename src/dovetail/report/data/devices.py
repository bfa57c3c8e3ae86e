"""What the devices of a run are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.core.journal import Header
from dovetail.core.resources import devices_text


def own_names(header: Header) -> list[str] | None:
    """What a level calls each device of a run, if its facts say it; one that joined later goes by its type."""
    named = header.facts.get("devices")
    if isinstance(named, list) and 0 < len(named) <= len(header.pool) and all(isinstance(name, str) for name in named):
        return [*named, *(f"{device.type} {device.id}" for device in header.pool.devices[len(named) :])]
    return None


def together(header: Header) -> Callable[[Sequence[int]], str]:
    """How several devices of a run are named at once."""
    own, device = own_names(header), header.words.device
    return lambda ids: ", ".join(own[i] for i in ids) if own else f"{device} {devices_text(ids)}"
