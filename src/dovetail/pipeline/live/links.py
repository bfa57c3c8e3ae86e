"""The two ends of a link between stages, with bounded buffers: nothing is sent before there is room for it behind."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from dovetail.pipeline.live.quantise import RAW
from dovetail.pipeline.live.width import LinkSpeed
from dovetail.pipeline.live.wire import Connection, Hop, Items, Visit

T = TypeVar("T")
_ARRIVED, _FREE = b"a", b"f"  # what goes back: the microbatch is here; its buffer is free again


class ClosedError(Exception):
    """The other end of a channel is gone, on purpose."""


class Channel(Generic[T]):
    """A bounded queue between two threads that can be closed.

    >>> channel = Channel(1)
    >>> channel.put("microbatch"); len(channel)
    1
    >>> channel.get()
    'microbatch'
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._room)
            if self._closed:
                raise ClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items)
            if self._closed:
                raise ClosedError
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Outlet:
    """The sending end. It knows how many buffers are free behind it, and measures how fast microbatches arrive."""

    def __init__(self, connection: Connection, hop: Hop, buffers: int, bits: int) -> None:
        self.bits = bits
        self._connection = connection
        self._hop = hop
        self._free = buffers
        self._broken = False
        self._changed = threading.Condition()
        self._underway: deque[tuple[float, int]] = deque()
        self._last_s = 0.0  # when the last microbatch arrived
        self._moved_bytes, self._busy_s = 0, 0.0
        threading.Thread(target=self._listen, daemon=True, name="credits").start()

    def send(self, items: Items, buffers: Sequence[memoryview]) -> None:
        """Wait for a free buffer, then send."""
        size = sum(map(len, buffers))
        with self._changed:
            self._changed.wait_for(lambda: self._broken or self._free > 0)
            if self._broken:
                raise ConnectionError("the next stage closed the connection")
            self._free -= 1
            start_s = time.monotonic()
            self._underway.append((start_s, size))
        speed, latency_s = self._hop.bytes_per_s, self._hop.latency_s

        def pace(sent: int) -> None:
            # The last byte of a chunk goes out when a link of this speed would have delivered it.
            time.sleep(max(start_s + latency_s + (sent / speed if speed else 0.0) - time.monotonic(), 0.0))

        self._connection.send(items, buffers, pace if speed or latency_s else None)

    def measured(self) -> LinkSpeed:
        """What arrived since the last call."""
        with self._changed:
            speed = LinkSpeed(self._moved_bytes, self._busy_s)
            self._moved_bytes, self._busy_s = 0, 0.0
        return speed

    def _listen(self) -> None:
        with suppress(OSError):
            while signals := self._connection.socket.recv(64):
                with self._changed:
                    for signal in signals:
                        self._note(signal == _FREE[0])
                    self._changed.notify_all()
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def _note(self, freed: bool) -> None:
        if freed:
            self._free += 1
            return
        start_s, size = self._underway.popleft()
        now_s = time.monotonic()
        self._busy_s += now_s - max(start_s, self._last_s)
        self._moved_bytes += size
        self._last_s = now_s

    def close(self) -> None:
        self._connection.close()


class Inlet:
    """The receiving end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, generation: int, number: int) -> tuple[Items, list[memoryview]]:
        """The next microbatch, which must be this one."""
        items, buffers = self._connection.receive()
        if not isinstance(items, Items) or (items.generation, items.number) != (generation, number):
            raise ConnectionError(f"found {type(items).__name__} out of turn, expected microbatch {number + 1}")
        self._signal(_ARRIVED)
        return items, buffers

    def visit(self, items: Items, buffers: Sequence[memoryview]) -> Visit:
        """When the last microbatch came over the link: from its first byte to its last, which is now."""
        bits = max((head.bits for head in items.heads), default=RAW)
        return Visit(self._connection.begun_s, time.monotonic(), bits, sum(map(len, buffers)))

    def free(self) -> None:
        """The microbatch has left its buffer."""
        self._signal(_FREE)

    def _signal(self, signal: bytes) -> None:
        with suppress(OSError):  # whoever receives next learns that the connection is broken
            self._connection.socket.sendall(signal)

    def close(self) -> None:
        self._connection.close()
