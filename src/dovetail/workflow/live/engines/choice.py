"""The engine that carries a live run, and the problem on the GPUs that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from dovetail.core.errors import InputError
from dovetail.core.resources import is_type
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus, own_gpus
from dovetail.workflow.live.engines.ray import RayWorkers, has_gpus
from dovetail.workflow.live.places import pool_of
from dovetail.workflow.live.protocol import Engine, GpuPlace
from dovetail.workflow.problem import WorkflowProblem

EngineName = Literal["local", "ray"]


def engine_for(
    problem: WorkflowProblem, engine: EngineName | None = None, address: str | None = None, silence_s: float = 20.0
) -> tuple[Engine, WorkflowProblem]:
    """Processes of this machine (`local`), or actors of a Ray cluster: a private one here, or the one at an address.

    On this machine there are the GPUs that the problem has: real ones if the machine has any, else the processor does
    their work. A cluster has those of its nodes, whatever number the problem names; the problem comes back on them.
    """
    types = problem.system.gpu_types
    wanted = [device.type for device in problem.pool.devices]
    carrier: Engine
    if engine == "ray" or (engine is None and address is not None):
        carrier = RayWorkers(address, gpus=wanted, types=types, silence_s=silence_s)
    elif engine not in (None, "local"):
        raise InputError(f"--engine {engine}: expected local or ray")
    elif address is not None:
        raise InputError(f"--address {address} is a Ray cluster's: give --engine ray, or none")
    else:
        carrier = LocalGpuEngine(_places(wanted), silence_s)
    try:
        return carrier, problem.on(pool_of(carrier.places, types))
    except BaseException:
        carrier.close()
        raise


def _places(wanted: Sequence[str]) -> list[GpuPlace]:
    """In the order of the types that are wanted."""
    if not has_gpus():
        return [emulated_gpus(1, type)[0] for type in wanted]
    free, found = own_gpus(), []
    for type in wanted:
        fitting = next((place for place in free if type == "gpu" or is_type(place.type, type)), None)
        if fitting is None:
            here = ", ".join(f"{count} x {name}" for name, count in Counter(p.type for p in own_gpus()).items())
            raise InputError(f"--gpus: {wanted.count(type)} of type {type!r} are wanted, and this machine has {here}")
        free.remove(fitting)
        found.append(GpuPlace(type, fitting.host, fitting.device, fitting.memory_mib))
    return found
