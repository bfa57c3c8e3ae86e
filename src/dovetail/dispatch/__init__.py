"""One batch over all the devices of a node: chunks of it go to whichever device is free, results come back in order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.dispatch.batch import Pieces, Slices
    from dovetail.dispatch.derivatives import Derivatives
    from dovetail.dispatch.devices import Device
    from dovetail.dispatch.dispatcher import Dispatcher
    from dovetail.dispatch.mpi import SimpleMPIScheduler
    from dovetail.dispatch.outcome import Outcome
    from dovetail.dispatch.pool import Pool
    from dovetail.dispatch.replicas import Replicas
    from dovetail.dispatch.schedulers import SharedScheduler, SimpleScheduler, StaticHybridScheduler
    from dovetail.dispatch.stream import Piece

_WHERE = {
    "Derivatives": "derivatives",
    "Device": "devices",
    "Dispatcher": "dispatcher",
    "Outcome": "outcome",
    "Piece": "stream",
    "Pieces": "batch",
    "Pool": "pool",
    "Replicas": "replicas",
    "SharedScheduler": "schedulers",
    "SimpleMPIScheduler": "mpi",
    "SimpleScheduler": "schedulers",
    "Slices": "batch",
    "StaticHybridScheduler": "schedulers",
}
__all__ = [
    "Derivatives",
    "Device",
    "Dispatcher",
    "Outcome",
    "Piece",
    "Pieces",
    "Pool",
    "Replicas",
    "SharedScheduler",
    "SimpleMPIScheduler",
    "SimpleScheduler",
    "Slices",
    "StaticHybridScheduler",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch with it, only now."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dovetail.dispatch.devices import load_torch

    load_torch()
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
