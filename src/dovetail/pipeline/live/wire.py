"""Messages over TCP: a small head, then raw buffers. Nothing is unpickled; a peer without the token is refused."""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from dovetail.pipeline.live.decoding import DecodeStep
from dovetail.pipeline.live.quantise import TensorHead
from dovetail.pipeline.live.sampling import TokenSampling
from dovetail.pipeline.models.spec import ModelSpec

Address = tuple[str, int]
_PREFIX = struct.Struct("<II")  # bytes of the head, number of buffers
_SIZE = struct.Struct("<Q")
_HEAD_LIMIT = 1 << 26
_STRANGER_LIMIT = 1 << 12  # a peer that has not said the token may not make us hold more than this
_CHUNK = 1 << 16  # bytes that a paced sender sends at a time
_PATIENCE_S = 10.0
_STRANGERS = 128  # connections at a time that have not said the token


class WireMessage(Struct, frozen=True, tag=True, tag_field="k", omit_defaults=True):
    """Anything that a connection may carry."""


class Greeting(WireMessage, frozen=True):
    """The first message of a connection: `who` it is (a host, or the place in the stage before), for which layout."""

    token: str
    who: str = ""
    generation: int = 0
    pid: int = 0
    data: Address = ("", 0)  # where it takes values
    clock: str = ""  # processes that name the same clock read the same one
    device: str = ""  # what carries its layers


class ClockReading(WireMessage, frozen=True):
    """A question for the time, and with `theirs_s` the answer."""

    ours_s: float
    theirs_s: float = 0.0


class Hop(Struct, frozen=True):
    """A receiver of what a stage sends, and how fast the link may be (None: as fast as it is)."""

    address: Address
    bytes_per_s: float | None = None
    latency_s: float = 0.0


class StageJob(WireMessage, frozen=True, kw_only=True):
    """What a process is to do from now on: its layers, its place among replicas, and where the values go."""

    generation: int
    model: ModelSpec
    dtype: str
    layers: tuple[int, int]
    place: int  # among the replicas of its stage
    replicas: int
    senders: int  # replicas of the stage before
    hops: tuple[Hop, ...]
    first: int  # number of the first microbatch of this layout
    buffers: int
    bits: int
    widths: tuple[int, ...] = ()  # to choose from, if there is a budget
    budget_s: float | None = None  # of one microbatch on the link
    clip: bool = False
    decodes: bool = False  # microbatches are steps of generation
    sampling: TokenSampling | None = None  # how tokens are drawn, if they are


class Ready(WireMessage, frozen=True):
    generation: int


class Visit(Struct, frozen=True, array_like=True):
    """When a microbatch was received or computed, on the clock of the host that did it; of what came over a link also
    its width and size."""

    start_s: float
    end_s: float
    bits: int = 0
    size: int = 0


class Trace(Struct, frozen=True, array_like=True):
    """What has become of a microbatch so far: its visits, in the order of the links and stages on its way."""

    generation: int
    number: int
    visits: list[Visit]


class Beat(WireMessage, frozen=True):
    """A sign of life, with the traces of what was computed since the last."""

    generation: int
    traces: list[Trace] = []


class Trouble(WireMessage, frozen=True):
    """A connection broke, or (`fatal`) the layers themselves cannot run."""

    generation: int
    why: str
    fatal: bool = False


class Leave(WireMessage, frozen=True):
    pass


class Items(WireMessage, frozen=True):
    """A microbatch between stages, with what has become of it so far; the tensors' bytes follow.

    It carries its trace along, so that of a microbatch that comes out everything is known, whoever is gone by then.
    """

    generation: int
    number: int
    single: bool
    heads: list[TensorHead]
    visits: list[Visit] = []
    step: DecodeStep | None = None  # what it is a step of, when tokens are generated


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Greeting | ClockReading | StageJob | Ready | Beat | Trouble | Leave | Items).decode


class RefusedError(ConnectionError):
    """A peer that did not say the token."""


class Connection:
    """One side of a connection. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.begun_s = 0.0  # when the last message began to arrive
        self._lock = threading.Lock()

    @classmethod
    def open(cls, address: Address, hello: Greeting) -> Connection:
        connection = cls(socket.create_connection(address, timeout=_PATIENCE_S))
        connection.socket.settimeout(None)
        connection.send(hello)
        return connection

    def send(
        self, message: WireMessage, buffers: Sequence[memoryview] = (), pace: Callable[[int], None] | None = None
    ) -> None:
        """Send all of it; `pace` is told before each chunk how many bytes will then have been sent."""
        head = _encode(message)
        sizes = b"".join(_SIZE.pack(len(buffer)) for buffer in buffers)
        with self._lock:
            self.socket.sendall(_PREFIX.pack(len(head), len(buffers)) + sizes + head)
            sent = 0
            for buffer in buffers:
                if pace is None:
                    self.socket.sendall(buffer)
                    continue
                for at in range(0, len(buffer), _CHUNK):
                    chunk = buffer[at : at + _CHUNK]
                    sent += len(chunk)
                    pace(sent)
                    self.socket.sendall(chunk)

    def receive(self, limit: int = _HEAD_LIMIT, buffers: bool = True) -> tuple[Any, list[memoryview]]:
        """The next message and its buffers, if it may have any; ConnectionError if there is none any more."""
        length, count = _PREFIX.unpack(self._exactly(_PREFIX.size))
        self.begun_s = time.monotonic()
        if length + count * _SIZE.size > limit or (count and not buffers):
            raise ConnectionError(f"a message of {length} bytes and {count} buffers is too long")
        sizes = [_SIZE.unpack(self._exactly(_SIZE.size))[0] for _ in range(count)]
        try:
            message = _decode(self._exactly(length))
        except msgspec.DecodeError as error:
            raise ConnectionError(f"not a message: {error}") from None
        return message, [self._exactly(size) for size in sizes]

    def _exactly(self, size: int) -> memoryview:
        # Not a bytearray: that would be filled with zeros first, which keeps the interpreter from all other threads.
        view: memoryview = np.empty(size, np.uint8).data
        at = 0
        while at < size:
            got = self.socket.recv_into(view[at:])
            if not got:
                raise ConnectionError("the connection was closed")
            at += got
        return view

    def close(self) -> None:
        """Close it, and wake whoever waits on it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def greeted(connection: Connection, token: str) -> Greeting:
    """The hello of a peer that knows the token; anyone else is refused."""
    connection.socket.settimeout(_PATIENCE_S)
    try:
        message, _ = connection.receive(_STRANGER_LIMIT, buffers=False)
    except (OSError, ValueError) as error:
        raise RefusedError(f"no hello: {error}") from None
    if not isinstance(message, Greeting) or not hmac.compare_digest(message.token.encode(), token.encode()):
        raise RefusedError("a peer does not know the token of this run")
    connection.socket.settimeout(None)
    return message


class Listener:
    """Takes connections on a port of its own and hands on those that know the token.

    Of connections that have not said it there are so many at most: one more, and the oldest is closed. Who knows the
    token says it at once, so whoever has long been silent is a stranger.
    """

    def __init__(
        self, host: str, token: str, take: Callable[[Connection, Greeting], None], strangers: int = _STRANGERS
    ) -> None:
        self._socket = socket.create_server((host, 0), backlog=64)
        self._token = token
        self._take = take
        self._most_strangers = strangers
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._lock = threading.Lock()
        self.address: Address = (host, self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True, name="accept").start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            connection = Connection(sock)
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > self._most_strangers:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    oldest.close()
            # A thread each: a stranger that says nothing must not keep others waiting.
            threading.Thread(target=self._greet, args=(connection,), daemon=True, name="greet").start()

    def _greet(self, connection: Connection) -> None:
        try:
            try:
                hello = greeted(connection, self._token)
            finally:
                with self._lock:
                    self._strangers.pop(connection, None)
            self._take(connection, hello)
        except OSError:
            connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Offset(Struct, frozen=True):
    """What to add to a peer's clock to get ours, and by how much that may be wrong."""

    offset_s: float = 0.0
    error_s: float = 0.0
    shared: bool = True  # both read one clock


def own_clock() -> str:
    """What tells this machine's monotonic clock from those of others: it counts from the machine's start."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def measure_offset(connection: Connection, clock: str, rounds: int = 9) -> Offset:
    """How a peer's clock differs from ours: from the quickest of some questions, wrong by half of its way at most."""
    best_s, offset_s = float("inf"), 0.0
    for _ in range(rounds):
        asked_s = time.monotonic()
        connection.send(ClockReading(asked_s))
        answer, _ = connection.receive()
        while not isinstance(answer, ClockReading):  # heartbeats may come in between
            answer, _ = connection.receive()
        now_s = time.monotonic()
        if now_s - asked_s < best_s:
            best_s, offset_s = now_s - asked_s, (asked_s + now_s) / 2 - answer.theirs_s
    # A container may have a clock of its own beside the machine's.
    if clock and clock == own_clock() and abs(offset_s) <= best_s:
        return Offset()
    return Offset(offset_s, best_s / 2, shared=False)
