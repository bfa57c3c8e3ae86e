"""The engine that carries a live run, and the problem on the GPUs that it has."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dovetail.core.errors import InputError
from dovetail.core.resources import Device, DeviceType, Pool, is_type
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.engines.ray import RayWorkers
from dovetail.workflow.live.places import pool_of
from dovetail.workflow.live.protocol import Engine, GpuPlace
from dovetail.workflow.live.specs import check_extras, model_specs
from dovetail.workflow.problem import WorkflowProblem

EngineName = Literal["local", "ray"]
# In a process apart: CUDA stays with whoever has looked at it.
_OWN_GPUS = (
    "import sys, msgspec; from dovetail.workflow.live.engines.local import own_gpus; "
    "sys.stdout.buffer.write(msgspec.json.encode(own_gpus()))"
)
DeviceKind = Literal["auto", "cpu", "cuda"]
ANY_GPUS = Pool((Device(0, "any"),), {"any": DeviceType("any", memory_mib=1 << 40)})  # of a cluster yet to be asked


def engine_for(
    problem: WorkflowProblem,
    engine: EngineName | None = None,
    address: str | None = None,
    device: DeviceKind = "auto",
    silence_s: float = 20.0,
) -> tuple[Engine, WorkflowProblem]:
    """Processes of this machine (`local`), or actors of a Ray cluster: a private one here, or the one at an address.

    On this machine there are as many GPUs as the problem has: CUDA's, or with `device="cpu"` such that the processor
    works for. `auto`: CUDA's if there are any and a model comes from a folder or a function. A cluster has the GPUs of
    its nodes: at least those of the problem, or any with `ANY_GPUS`. The problem comes back on the GPUs that there are.
    """
    types = problem.system.gpu_types
    wanted = [] if problem.pool == ANY_GPUS else [each.type for each in problem.pool.devices]
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device}: expected auto, cpu or cuda")
    served = model_specs(problem.system).values()
    if address is None:  # the workers are on this machine
        check_extras(served)
    if device == "auto":
        runs_here = any("path" in model.source or "factory" in model.source for model in served)
        device = "cuda" if runs_here and Path("/proc/driver/nvidia/gpus").is_dir() else "cpu"
    carrier: Engine
    if engine == "ray" or (engine is None and address is not None):
        carrier = RayWorkers(address, gpus=wanted, types=types, emulate=device == "cpu", silence_s=silence_s)
    elif engine not in (None, "local"):
        raise InputError(f"--engine {engine}: expected local or ray")
    elif address is not None:
        raise InputError(f"--address {address} is a Ray cluster's: give --engine ray, or none")
    else:
        carrier = LocalGpuEngine(_places(wanted) if device == "cuda" else _emulated(wanted), silence_s)
    try:
        _check_there(wanted, [place.type for place in carrier.places])
        return carrier, problem.on(pool_of(carrier.places, types))
    except BaseException:
        carrier.close()
        raise


def _check_there(wanted: Sequence[str], there: Sequence[str]) -> None:
    lacking = Counter(wanted) - Counter(there if "gpu" not in wanted else ["gpu"] * len(there))
    for type, count in lacking.items():
        raise InputError(f"{wanted.count(type)} GPUs of type {type!r} are wanted, and the nodes have {count} fewer")


def _emulated(wanted: Sequence[str]) -> list[GpuPlace]:
    return [emulated_gpus(1, type)[0] for type in wanted]


def _places(wanted: Sequence[str]) -> list[GpuPlace]:
    """CUDA's devices, in the order of the types that are wanted."""
    asked = subprocess.run([sys.executable, "-c", _OWN_GPUS], capture_output=True, check=False)
    if asked.returncode:
        raise InputError(asked.stderr.decode().strip().splitlines()[-1].partition(": ")[2])
    there = msgspec.json.decode(asked.stdout, type=list[GpuPlace])
    free, found = list(there), []
    for type in wanted:
        fitting = next((place for place in free if type == "gpu" or is_type(place.type, type)), None)
        if fitting is None:
            here = ", ".join(f"{count} x {name}" for name, count in Counter(place.type for place in there).items())
            raise InputError(
                f"{wanted.count(type)} GPUs of type {type!r} are wanted, and this machine has {here}; --device cpu "
                "works without"
            )
        free.remove(fitting)
        found.append(GpuPlace(type, fitting.host, fitting.device, fitting.memory_mib))
    return found
