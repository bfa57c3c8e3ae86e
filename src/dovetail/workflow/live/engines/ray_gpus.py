"""The GPUs that the nodes of a Ray cluster have, as their resources tell.

A real one is Ray's own `GPU`, of the type that `accelerator_type:A100` names. `dovetail_gpu:a100` is one whose work the
processor does, for trials without hardware; `dovetail_gpu` alone is one of the plain type.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.resources import is_type
from dovetail.core.service.ray_start import RayNode
from dovetail.workflow.live.protocol import GpuPlace

EMULATED = "dovetail_gpu"
_PLAIN = "gpu"


class NodeGpu(Struct, frozen=True):
    """A GPU of a node, and what its worker asks of Ray to have it."""

    type: str
    emulated: bool

    @property
    def resources(self) -> dict[str, float]:
        return {emulated_gpu(self.type): 1.0} if self.emulated else {}

    def place(self, host: str, number: int) -> GpuPlace:
        return GpuPlace(self.type, host, "cpu" if self.emulated else f"cuda:{number}")


def emulated_gpu(type: str) -> str:
    """The resource that stands for it."""
    return EMULATED if type == _PLAIN else f"{EMULATED}:{type}"


def gpus_of(node: RayNode, types: Collection[str]) -> list[NodeGpu]:
    """Those of one type beside each other. `types` are the configuration's; without any, all GPUs are alike.

    >>> a = RayNode("1", "a", "10.0.0.1", {"GPU": 2.0, "accelerator_type:A100": 1.0, "CPU": 8.0})
    >>> [gpu.type for gpu in gpus_of(a, ["a100-80gb", "a100"])], [gpu.type for gpu in gpus_of(a, ())]
    (['a100', 'a100'], ['gpu', 'gpu'])
    >>> gpus_of(RayNode("2", "b", "10.0.0.2", {"dovetail_gpu:l4": 1.0}), ["l4"])
    [NodeGpu(type='l4', emulated=True)]
    """
    found = []
    for resource, amount in sorted(node.resources.items()):
        name, _, type = resource.partition(":")
        if name == EMULATED:
            type = type or _PLAIN
            if types and type not in types:
                raise _unknown(node, type, types)
            found += [NodeGpu(type, emulated=True)] * int(amount)
        elif resource == "GPU":
            found += [NodeGpu(_real_type(node, types), emulated=False)] * int(amount)
    return found


def _real_type(node: RayNode, types: Collection[str]) -> str:
    if not types or set(types) == {_PLAIN}:
        return _PLAIN
    models = [resource.partition(":")[2] for resource in node.resources if resource.startswith("accelerator_type:")]
    for model in models:
        if fitting := [type for type in types if is_type(model, type)]:
            return max(fitting, key=len)
    raise _unknown(node, " ".join(models) or "an unknown product", types)


def _unknown(node: RayNode, type: str, types: Collection[str]) -> InputError:
    return InputError(
        f"Ray node {node.name} has GPUs of type {type!r}, and the configuration's gpu_types are {', '.join(types)}"
    )
