"""The machines that carry accelerators, and which types these are: from Ray's nodes, from a list, or this machine.

Ray tells of GPUs by their product (`accelerator_type:A100`); a custom resource `dovetail:v100` with the amount 2 is two
accelerators of type v100, whatever carries them: so unlike types can be emulated on any machine.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.service.ray_start import RayNode

EMULATED = "dovetail:"  # before a type, in the names of Ray's resources
_PRODUCT = "accelerator_type:"
LOCAL = "local"  # the node without Ray
_MOST = 100_000
_VENDORS = ("nvidia", "tesla", "geforce", "quadro", "rtx", "amd", "instinct")


class NodeAccelerator(Struct, frozen=True):
    """An accelerator: its type, and which GPU of its machine it is; -1 is none of them: it is emulated."""

    type: str
    gpu: int = -1


class ClusterNode(Struct, frozen=True):
    """A machine, or what Ray takes for one. `ray_id` is what Ray calls it, as long as it lives."""

    name: str
    devices: tuple[NodeAccelerator, ...]
    address: str = "127.0.0.1"
    ray_id: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How many accelerators it has of each type.

        >>> emulated_node({"v100": 2, "k80": 1}).counts
        {'v100': 2, 'k80': 1}
        """
        return dict(Counter(device.type for device in self.devices))


def without(node: ClusterNode, types: Collection[str]) -> ClusterNode:
    """A node as it would be without accelerators of these types.

    >>> without(emulated_node({"v100": 2, "h100": 1}), {"h100"}).counts
    {'v100': 2}
    """
    return replace(node, devices=tuple(device for device in node.devices if device.type not in types))


def emulated_node(types: Mapping[str, int], name: str = LOCAL) -> ClusterNode:
    """A machine with so many accelerators of each type, which are no GPUs of its own."""
    return ClusterNode(name, tuple(NodeAccelerator(each) for each, count in types.items() for _ in range(count)))


def this_machine() -> ClusterNode:
    """Its GPUs by product; without any, one accelerator of type `cpu`."""
    products = _gpus()
    devices = [NodeAccelerator(type_of_product(product), i) for i, product in enumerate(products)]
    return ClusterNode(LOCAL, tuple(devices or [NodeAccelerator("cpu")]))


def _gpus() -> list[str]:
    """The products of this machine's GPUs, in their order; none if there is no driver that answers."""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return []


def type_of_product(product: str) -> str:
    """What a GPU is called here.

    >>> type_of_product("NVIDIA A100-SXM4-80GB"), type_of_product("Tesla V100-SXM2-16GB"), type_of_product("H200")
    ('a100', 'v100', 'h200')
    >>> type_of_product("NVIDIA GeForce RTX 3090"), type_of_product("NVIDIA L4")
    ('3090', 'l4')
    """
    words = [word for word in re.split(r"[\s_-]+", product.lower()) if word]
    named = [word for word in words if word not in _VENDORS]
    return (named or words or ["gpu"])[0]


def node_of_ray(node: RayNode) -> ClusterNode | None:
    """What a node of Ray brings; None if it has no accelerators.

    >>> node_of_ray(RayNode("f3", "a", "10.0.0.7", {"CPU": 8.0, "dovetail:v100": 2.0})).counts
    {'v100': 2}
    >>> node_of_ray(RayNode("f3", "a", "10.0.0.7", {"GPU": 2.0, "accelerator_type:A100": 1.0})).devices
    (NodeAccelerator(type='a100', gpu=0), NodeAccelerator(type='a100', gpu=1))
    """
    has = node.resources
    emulated = {name.removeprefix(EMULATED): int(has[name]) for name in sorted(has) if name.startswith(EMULATED)}
    devices = [*emulated_node(emulated).devices]
    if not devices:
        product = next((name.removeprefix(_PRODUCT) for name in sorted(has) if name.startswith(_PRODUCT)), "gpu")
        devices = [NodeAccelerator(type_of_product(product), gpu) for gpu in range(int(has.get("GPU", 0)))]
    return ClusterNode(node.name, tuple(devices), node.address, node.id) if devices else None


def given_types(types: Mapping[str, Any]) -> dict[str, int]:
    """Types and their counts, as a user gave them.

    >>> given_types({"v100": 0})
    Traceback (most recent call last):
    dovetail.core.errors.InputError: types: expected at least one accelerator, found none
    """
    for name, count in types.items():
        if not name or not name.isprintable() or type(count) is not int or not 0 <= count <= _MOST:
            raise InputError(f"types.{name}: expected a number of accelerators, 0 to {_MOST}, found {count!r}")
    if not sum(types.values()):
        raise InputError("types: expected at least one accelerator, found none")
    return dict(types)


class KnownNode(Struct):
    """A node as the service remembers it: the numbers of its accelerators, and whether it is there."""

    node: ClusterNode
    first: int  # its accelerators are numbered from here on
    here: bool = True
    drained: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.node.devices))


class ClusterNodeStatus(Struct, frozen=True, kw_only=True):
    """A node at this moment; `jobs` are those on its accelerators, in order, None where there is nobody."""

    name: str
    address: str
    here: bool
    down: bool
    drained: bool
    types: dict[str, int]
    jobs: list[int | None]
    unused: dict[str, int] = {}  # types that the service did not know when it started: it must be started again
    trouble: str = ""  # why no process can be started there


class NodeTable:
    """All nodes that were ever there, by name, and the numbers of their accelerators, which stay.

    A node that comes back under its name, or in the place of a lost one that was called and equipped alike, has the
    numbers that it had. One that comes back with other accelerators is a new one, under a name with a number.
    """

    def __init__(self, known: Iterable[KnownNode] = ()) -> None:
        self.nodes = {each.node.name: each for each in sorted(known, key=lambda each: each.first)}

    @property
    def size(self) -> int:
        """How many accelerators have a number."""
        return max((each.numbers.stop for each in self.nodes.values()), default=0)

    def types(self) -> list[str]:
        """All types that were ever there, in the order in which they came."""
        return list(dict.fromkeys(device.type for each in self.nodes.values() for device in each.node.devices))

    def place(self, number: int) -> tuple[str, int]:
        """The node of an accelerator, and its place there."""
        for name, each in self.nodes.items():
            if number in each.numbers:
                return name, number - each.first
        raise InputError(f"there is no accelerator {number}")

    def servers_before(self, known: KnownNode) -> int:
        """How many servers come before those of a node: each type in a node is one."""
        return sum(len(each.node.counts) for each in self.nodes.values() if each.first < known.first)

    def come(self, node: ClusterNode) -> tuple[KnownNode, bool]:
        """A node is there; gives what is known of it, and whether it is new."""
        if node.ray_id and (mine := self.with_ray_id(node.ray_id)) is not None:
            if mine.node.devices == node.devices:
                return mine, False  # whoever else is called so has gone
            mine.here = False  # types of it were not known then
        base, count = node.name, 1
        while (known := self.nodes.get(node.name)) is not None:
            same = known.node.devices == node.devices
            if same and (not known.here or known.node.ray_id == node.ray_id):
                known.node, known.here = node, True
                return known, False
            if not same and known.node.ray_id == node.ray_id:
                known.here = False
            count += 1
            node = ClusterNode(f"{base}-{count}", node.devices, node.address, node.ray_id)
        self.nodes[node.name] = known = KnownNode(node, self.size)
        return known, True

    def go(self, name: str) -> KnownNode | None:
        """A node is gone; gives it, if it was there."""
        known = self.nodes.get(name)
        if known is None or not known.here:
            return None
        known.here = False
        return known

    def with_ray_id(self, ray_id: str) -> KnownNode | None:
        """The node that is there and that Ray calls so."""
        return next((each for each in self.nodes.values() if each.here and each.node.ray_id == ray_id), None)
