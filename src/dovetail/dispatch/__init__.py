"""One batch over all the devices of a node: chunks of it go to whichever device is free, results come back in order.

>>> from dovetail import dispatch
>>> curves = {"devices": {"gpu": {"latency_s": 0.004, "rate": 200_000}, "cpu": {"latency_s": 0.001, "rate": 30_000}}}
>>> both = dispatch.simulate(curves, items=100_000)
>>> both.items["gpu"] > both.items["cpu"] > 0, both.check().valid
(True, True)

What runs functions needs PyTorch; simulations do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.dispatch.check import check_journal
    from dovetail.dispatch.compat.mpi import SimpleMPIScheduler
    from dovetail.dispatch.compat.schedulers import SharedScheduler, SimpleScheduler, StaticHybridScheduler
    from dovetail.dispatch.derivatives.batched import Derivatives
    from dovetail.dispatch.inputs.batch import Pieces, Slices
    from dovetail.dispatch.inputs.curve_files import SimDevice, load
    from dovetail.dispatch.inputs.curves import Curve
    from dovetail.dispatch.inputs.devices import NodeDevice as Device
    from dovetail.dispatch.inputs.devices import devices
    from dovetail.dispatch.inputs.kinds import register_batch_type
    from dovetail.dispatch.live.dispatcher import Dispatcher
    from dovetail.dispatch.live.mapping.run import MapReport
    from dovetail.dispatch.live.outcome import BatchOutcome as Outcome
    from dovetail.dispatch.live.pool import WorkerPool as Pool
    from dovetail.dispatch.live.replicas import Replicas
    from dovetail.dispatch.live.stream import Piece
    from dovetail.dispatch.map import map
    from dovetail.dispatch.measure import Benchmark, Tuning, bench, tune
    from dovetail.dispatch.metrics import DispatchRun
    from dovetail.dispatch.policies.base import Policy, View
    from dovetail.dispatch.simulate import compare, simulate

_WITH_TORCH = {
    "Benchmark": "measure",
    "Derivatives": "derivatives.batched",
    "Dispatcher": "live.dispatcher",
    "MapReport": "live.mapping.run",
    "Outcome": "live.outcome:BatchOutcome",
    "Piece": "live.stream",
    "Pieces": "inputs.batch",
    "Pool": "live.pool:WorkerPool",
    "Replicas": "live.replicas",
    "SharedScheduler": "compat.schedulers",
    "SimpleMPIScheduler": "compat.mpi",
    "SimpleScheduler": "compat.schedulers",
    "Slices": "inputs.batch",
    "StaticHybridScheduler": "compat.schedulers",
    "Tuning": "measure",
    "bench": "measure",
    "devices": "inputs.devices",
    "map": "map",
    "register_batch_type": "inputs.kinds",
    "tune": "measure",
}
_WHERE = _WITH_TORCH | {
    "Curve": "inputs.curves",
    "Device": "inputs.devices:NodeDevice",
    "DispatchRun": "metrics",
    "Policy": "policies.base",
    "SimDevice": "inputs.curve_files",
    "View": "policies.base",
    "check_journal": "check",
    "compare": "simulate",
    "load": "inputs.curve_files",
    "simulate": "simulate",
}
__all__ = [
    "Benchmark",
    "Curve",
    "Derivatives",
    "Device",
    "DispatchRun",
    "Dispatcher",
    "MapReport",
    "Outcome",
    "Piece",
    "Pieces",
    "Policy",
    "Pool",
    "Replicas",
    "SharedScheduler",
    "SimDevice",
    "SimpleMPIScheduler",
    "SimpleScheduler",
    "Slices",
    "StaticHybridScheduler",
    "Tuning",
    "View",
    "bench",
    "check_journal",
    "compare",
    "devices",
    "load",
    "map",
    "register_batch_type",
    "simulate",
    "tune",
]

_find, __dir__ = exports(__name__, _WHERE)


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch only with what needs it."""
    if name in _WITH_TORCH:
        from dovetail.dispatch.inputs.devices import load_torch

        load_torch()
    return _find(name)
