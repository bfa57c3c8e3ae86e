"""One batch over all the devices of a node: chunks of it go to whichever device is free, results come back in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.dispatch.compat.mpi import SimpleMPIScheduler
    from dovetail.dispatch.compat.schedulers import SharedScheduler, SimpleScheduler, StaticHybridScheduler
    from dovetail.dispatch.derivatives.batched import Derivatives
    from dovetail.dispatch.inputs.batch import Pieces, Slices
    from dovetail.dispatch.inputs.devices import NodeDevice as Device
    from dovetail.dispatch.live.dispatcher import Dispatcher
    from dovetail.dispatch.live.outcome import BatchOutcome as Outcome
    from dovetail.dispatch.live.pool import WorkerPool as Pool
    from dovetail.dispatch.live.replicas import Replicas
    from dovetail.dispatch.live.stream import Piece

_WHERE = {
    "Derivatives": "derivatives.batched:Derivatives",
    "Device": "inputs.devices:NodeDevice",
    "Dispatcher": "live.dispatcher:Dispatcher",
    "Outcome": "live.outcome:BatchOutcome",
    "Piece": "live.stream:Piece",
    "Pieces": "inputs.batch:Pieces",
    "Pool": "live.pool:WorkerPool",
    "Replicas": "live.replicas:Replicas",
    "SharedScheduler": "compat.schedulers:SharedScheduler",
    "SimpleMPIScheduler": "compat.mpi:SimpleMPIScheduler",
    "SimpleScheduler": "compat.schedulers:SimpleScheduler",
    "Slices": "inputs.batch:Slices",
    "StaticHybridScheduler": "compat.schedulers:StaticHybridScheduler",
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

_find, __dir__ = exports(__name__, _WHERE)


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch with it, only now."""
    if name in _WHERE:
        from dovetail.dispatch.inputs.devices import load_torch

        load_torch()
    return _find(name)
