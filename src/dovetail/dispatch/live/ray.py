"""An actor per device, on the nodes of a Ray cluster: Ray places the processes and notices when a node is gone.

A device's name says its node before a slash: `10.0.0.7/cuda:0`, where the node is an address, a name, an id or a
resource that only this node has. Without one, Ray chooses the node.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import torch

from dovetail.core.service.ray_start import alive_nodes, connect, import_ray, node_called, placed_on
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.live.packing import Packed, unpack
from dovetail.dispatch.live.remote import Orders, Remote, sendable
from dovetail.dispatch.live.worker import Ended, Worker

_SLOTS = 2  # one is under way while the other one computes
_users = 0
_ours = False
_lock = Lock()


class _Actor:
    """The process of a device, on its node."""

    def __init__(self, device: NodeDevice, threads: int) -> None:
        self._remote = Remote(device, threads)
        self._wrong: BaseException | None = None

    def where(self) -> tuple[str, int]:
        """The id of its node, and its process."""
        import os

        return import_module("ray").get_runtime_context().get_node_id(), os.getpid()

    def begin(self, order: bytes) -> None:
        try:
            self._remote.begin(order)
            self._wrong = None
        except Exception as error:
            self._wrong = sendable(error)

    def hook(self, call: bytes) -> None:
        import_module("ray").cloudpickle.loads(call)(self._remote.device)

    def call(self, layout: Any, given: Any) -> Any:
        """The result's layout and bytes, or what went wrong."""
        try:
            if self._wrong is not None:
                raise self._wrong
            # What Ray hands out may not be written to; a function may.
            result = self._remote.call(unpack(layout, torch.from_numpy(np.array(given))))
            return packed(result)
        except Exception as error:
            return sendable(error)


def packed(tree: Any) -> tuple[bytes, Any]:
    """A tree's layout, and its tensors as one array, which Ray sends without copying it again."""
    found = Packed.of(tree)
    array = np.empty(found.size, dtype=np.uint8)
    found.pack(torch.from_numpy(array))
    return found.layout, array


class RayWorker:
    """The near end of a device's actor, driven by one thread."""

    late = False

    def __init__(self, device: NodeDevice) -> None:
        self.device = device
        self.slots = device.slots or _SLOTS
        self.actor: Any = None
        self._ray = ray()
        self._held: dict[Any, Chunk] = {}  # by what Ray will answer with, in the order of launching

    def start(self) -> None:
        node, _, _ = self.device.name.rpartition("/")
        # Ray hides all GPUs from an actor that asks for none, and numbers those it gives from 0.
        gpus = 1 if self.device.kind == "cuda" else 0
        device = msgspec.structs.replace(self.device, where="cuda:0") if gpus else self.device
        options = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": self._strategy(node)}
        self.actor = self._ray.remote(_Actor).options(**options).remote(device, device.threads)
        self._orders = Orders(self._ray.cloudpickle.dumps)
        self._ask(self.actor.where.remote())  # once it is there, no chunk is charged for its start

    def _strategy(self, node: str) -> Any:
        return placed_on(node_id(node)) if node else "SPREAD"

    def _ask(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            self.actor = None
            raise DeviceLostError(f"{self.device.name}: {str(error).splitlines()[0]}") from None

    def revived(self) -> bool:
        """Start a new actor if this one is gone; whether it was."""
        if self.actor is not None:
            return False
        self.start()
        return True

    def begin(self, run: BatchRun) -> None:
        order = self._orders.begin(run)
        if order is not None:
            self.actor.begin.remote(order)

    def hook(self, function: Any, device: NodeDevice) -> None:
        """Call one of the user's hooks where the device is."""
        self._ask(self.actor.hook.remote(self._ray.cloudpickle.dumps(function)))

    def launch(self, chunk: Chunk) -> None:
        self._held[self.actor.call.remote(*packed(chunk.run.slice(chunk.start, chunk.stop)))] = chunk

    def collect(self) -> list[Ended]:
        if not self._held:
            return []
        ref = next(iter(self._held))
        try:
            answer = self._ask(ref)
            if isinstance(answer, Exception):
                raise answer
            chunk = self._held.pop(ref)
        except DeviceLostError as error:
            chunks, self._held = list(self._held.values()), {}
            return [(chunk, error) for chunk in chunks]
        except Exception as error:
            return [(self._held.pop(ref), error)]
        try:
            layout, array = answer
            if chunk.run.claim(chunk):
                chunk.run.output.write(chunk.start, chunk.stop, unpack(layout, torch.from_numpy(np.array(array))))
        except Exception as error:
            return [(chunk, error)]
        return [(chunk, None)]

    def stop(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            if self.actor is not None:
                self._ray.kill(self.actor)
        release()


def ray(address: str | None = None) -> Any:
    """Ray, connected to the cluster at an address, that of $RAY_ADDRESS, or one of this machine alone."""
    global _ours, _users
    module = import_ray("the ray back end")
    with _lock:
        if not module.is_initialized():
            connect(module, address)
            _ours = True
        _users += 1
    return module


def release() -> None:
    """A worker is done; the last one ends the connection, if it is ours."""
    global _ours, _users
    with _lock:
        _users -= 1
        if _ours and not _users:
            import_module("ray").shutdown()
            _ours = False


def node_id(wanted: str) -> str:
    """The id of the node that has this address, name, id or resource."""
    return node_called(alive_nodes(import_module("ray")), wanted).id


def devices_of_cluster() -> list[NodeDevice]:
    """Every GPU of a Ray cluster, and the CPU of every node, to dispatch over."""
    nodes = alive_nodes(ray())
    release()
    addresses = [node.address for node in nodes]
    found = []
    for node in nodes:
        name = node.address if addresses.count(node.address) == 1 else node.id
        places = [f"cuda:{i}" for i in range(int(node.resources.get("GPU", 0)))]
        found += [NodeDevice(f"{name}/{place}", where=place) for place in (*places, "cpu")]
    return found


def make(device: NodeDevice, devices: list[NodeDevice]) -> Worker:
    """The worker for a device somewhere in the cluster."""
    return RayWorker(device)
