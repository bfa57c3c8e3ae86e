"""A worker in an actor of a Ray cluster: it calls the service, and large values stay in the object store."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection
from threading import Event
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.service.ray_store import RayStore
from dovetail.workflow.live.backends import back_end_for
from dovetail.workflow.live.protocol import (
    Answer,
    BackEnd,
    BackEndError,
    Emit,
    Memory,
    ModelCall,
    Reference,
    ServedModel,
)
from dovetail.workflow.live.wire import pack, unpack
from dovetail.workflow.live.worker import serve_worker


class ActorErrand(Struct, frozen=True):
    """Who an actor is to be, and whom it is to call."""

    name: str  # of this process
    worker: int
    host: str
    port: int
    secret: bytes
    served: dict[str, ServedModel]
    reference_bytes: int


class ActorGreeting(Struct, frozen=True):
    """The first words of an actor."""

    name: str
    pid: int
    gpus: tuple[str, ...]  # those that Ray gave it, by number


def main(argument: bytes, store: RayStore) -> None:
    errand = msgspec.msgpack.decode(argument, type=ActorErrand)
    connection = Client((errand.host, errand.port), authkey=errand.secret)
    no_delay(connection)
    connection.send_bytes(msgspec.msgpack.encode(ActorGreeting(errand.name, os.getpid(), store.gpus())))

    def make(served: ServedModel) -> BackEnd:
        return Referring(back_end_for(served), store.put, store.get, errand.reference_bytes)

    serve_worker(connection, errand.worker, errand.served, make)
    os.kill(os.getpid(), signal.SIGKILL)  # upon which Ray ends whatever it has started


def no_delay(connection: Connection[Any, Any]) -> None:
    """Send at once, wait for an answer as long as it takes, and notice a machine that is gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            own.setsockopt(socket.IPPROTO_TCP, option, value)


class Referring:
    """A back end whose large outputs stay in a store, and which finds inputs there. Texts are always sent: templates
    and branches read them."""

    def __init__(
        self, back_end: BackEnd, put: Callable[[bytes], str], get: Callable[[str], memoryview], limit: int
    ) -> None:
        self._back_end, self._put, self._get, self._limit = back_end, put, get, limit

    def load(self, devices: Sequence[str]) -> None:
        self._back_end.load(devices)

    def unload(self, keep: bool) -> None:
        self._back_end.unload(keep)

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        inputs = {name: self._found(name, value) for name, value in call.inputs.items()}
        answer = self._back_end.call(msgspec.structs.replace(call, inputs=inputs), emit, stopped)
        outputs = {name: self._kept(value) for name, value in answer.outputs.items()}
        return msgspec.structs.replace(answer, outputs=outputs)

    def status(self) -> dict[str, Any]:
        return self._back_end.status()

    def memory(self) -> Memory:
        return self._back_end.memory()

    def _found(self, name: str, value: Any) -> Any:
        if not isinstance(value, Reference):
            return value
        try:
            return unpack(self._get(value.handle))
        except Exception as error:
            first = (str(error).splitlines() or [repr(error)])[0]
            raise BackEndError(f"its input {name!r} was lost: {first}", blame="call") from None

    def _kept(self, value: Any) -> Any:
        size = len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 0)
        if size <= self._limit:
            return value
        data = pack(value)
        return Reference(self._put(data), len(data))
