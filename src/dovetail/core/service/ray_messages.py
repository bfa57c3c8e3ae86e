"""What passes between a service and the process that speaks with Ray for it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.service.ray_start import RayNode


class JoinRay(Struct, frozen=True, tag=True):
    """The first order. Without an address a Ray of its own is started, with these resources and its files there."""

    address: str | None
    resources: dict[str, float]
    folder: str


class LaunchProcess(Struct, frozen=True, tag=True):
    """Run a function, `module:name`, in a process of its own on a node. It is given the argument, and a handle by which
    it reaches the object store."""

    name: str
    node: str
    entry: str
    argument: bytes
    gpus: float = 0.0
    resources: dict[str, float] = {}


class RunCell(Struct, frozen=True, tag=True):
    """One cell of a sweep, on whatever node has a CPU for it; repeated elsewhere if that node dies."""

    cell: int
    errand: bytes


class KillProcess(Struct, frozen=True, tag=True):
    name: str


class FetchObject(Struct, frozen=True, tag=True):
    """Bring a kept object here."""

    key: str


class DropObjects(Struct, frozen=True, tag=True):
    """Kept objects that nobody needs any more."""

    keys: tuple[str, ...]


class AbandonObjects(Struct, frozen=True, tag=True):
    """What a process kept that is gone now, but for those that it told of."""

    owner: str
    known: tuple[str, ...]


class RayReady(Struct, frozen=True, tag=True):
    """Ray is there. `bind` is an address of this machine that the nodes can reach."""

    bind: str
    gcs: str
    nodes: tuple[RayNode, ...]


class RayRefused(Struct, frozen=True, tag=True):
    """Ray cannot be had; whether the user is to blame, who gave the address."""

    why: str
    user: bool


class NodesChanged(Struct, frozen=True, tag=True):
    """The nodes that are alive, when that has changed."""

    nodes: tuple[RayNode, ...]


class HeadGone(Struct, frozen=True, tag=True):
    """Nobody answers at the head's address any more. What runs goes on, and nothing can be started."""

    why: str


class HeadBack(Struct, frozen=True, tag=True):
    pass


class ProcessEnded(Struct, frozen=True, tag=True):
    name: str
    why: str


class CellEnded(Struct, frozen=True, tag=True):
    """What a cell gave back, or why it could not be run however often it was tried."""

    cell: int
    answer: bytes = b""
    why: str = ""


class ObjectFetched(Struct, frozen=True, tag=True):
    """The object, or why it cannot be had."""

    key: str
    value: bytes = b""
    why: str | None = None


Order = JoinRay | LaunchProcess | RunCell | KillProcess | FetchObject | DropObjects | AbandonObjects
News = RayReady | RayRefused | NodesChanged | HeadGone | HeadBack | ProcessEnded | CellEnded | ObjectFetched

_ORDERS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Order)
_NEWS: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(News)


class Messages:
    """One end of a connection on which structs go; any thread may send."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = Lock()

    def send(self, message: Struct) -> None:
        frame = msgspec.msgpack.encode(message)
        with self._sending:
            self._connection.send_bytes(frame)

    def order(self) -> Order:
        """The next order. Raises EOFError or OSError when the other end is gone."""
        found: Order = _ORDERS.decode(self._connection.recv_bytes())
        return found

    def news(self) -> News:
        found: News = _NEWS.decode(self._connection.recv_bytes())
        return found

    def close(self) -> None:
        with self._sending:
            self._connection.close()
