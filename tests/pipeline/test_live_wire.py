"""Messages, strangers, bounded buffers: connections within this process."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from dovetail.pipeline.live.links import Channel, ClosedError, Inlet, Outlet
from dovetail.pipeline.live.quantise import TensorHead
from dovetail.pipeline.live.wire import Connection, Greeting, Hop, Items, Leave, Listener, Visit
from tests.waiting import PATIENCE_S

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair(socket.AF_UNIX)
    ends = []
    for sock in (a, b):
        end = Connection.__new__(Connection)  # a socket pair has no TCP options
        end.socket, end._lock = sock, threading.Lock()
        ends.append(end)
    yield ends[0], ends[1]
    for end in ends:
        end.close()


def _items(number: int) -> Items:
    return Items(1, number, True, [TensorHead("torch.uint8", (3,))])


def test_a_message_and_its_buffers(pair: Pair) -> None:
    pair[0].send(_items(7), [memoryview(b"abc"), memoryview(b""), memoryview(b"0123456789")])
    message, buffers = pair[1].receive()
    assert message == _items(7)
    assert buffers == [b"abc", b"", b"0123456789"]


def test_a_closed_connection_is_an_error(pair: Pair) -> None:
    pair[0].socket.sendall(struct.pack("<II", 100, 0) + b"only a part")
    pair[0].close()
    with pytest.raises(ConnectionError, match="closed"):
        pair[1].receive()


def test_nonsense_is_an_error(pair: Pair) -> None:
    pair[0].socket.sendall(struct.pack("<II", 3, 0) + b"xyz")
    with pytest.raises(ConnectionError, match="not a message"):
        pair[1].receive()
    pair[0].socket.sendall(b"\xff" * 8)
    with pytest.raises(ConnectionError, match="too long"):
        pair[1].receive()


class Guests:
    def __init__(self) -> None:
        self.taken: Queue[tuple[Connection, Greeting]] = Queue()
        self.listener = Listener("127.0.0.1", "secret", lambda connection, hello: self.taken.put((connection, hello)))


@pytest.fixture
def guests() -> Iterator[Guests]:
    made = Guests()
    yield made
    made.listener.close()


def test_a_guest_with_the_token_is_taken(guests: Guests) -> None:
    ours = Connection.open(guests.listener.address, Greeting("secret", "a", 3))
    connection, hello = guests.taken.get(timeout=PATIENCE_S)
    assert (hello.who, hello.generation) == ("a", 3)
    ours.send(Leave())
    assert connection.receive()[0] == Leave()
    for end in (ours, connection):
        end.close()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<II", 1 << 31, 0),
        struct.pack("<II", 10, 1 << 20),
        struct.pack("<II", 1, 0) + b"\xc0",
        struct.pack("<IIQ", 8, 1, 1 << 62) + msgspec.msgpack.encode({"k": "Leave"}),
    ],
)
def test_strangers_are_refused(guests: Guests, words: bytes) -> None:
    with socket.create_connection(guests.listener.address) as stranger:
        stranger.settimeout(PATIENCE_S)
        stranger.sendall(words)
        with suppress(ConnectionResetError):  # closed with something unread
            assert stranger.recv(1) == b""
    assert guests.taken.empty()


def test_a_wrong_token_is_refused(guests: Guests) -> None:
    stranger = Connection.open(guests.listener.address, Greeting("guess", "a"))
    stranger.socket.settimeout(PATIENCE_S)
    with pytest.raises(OSError):  # noqa: PT011  (closed or reset)
        stranger.receive()
    stranger.close()
    assert guests.taken.empty()


def test_a_silent_stranger_keeps_nobody_waiting(guests: Guests) -> None:
    with socket.create_connection(guests.listener.address):
        ours = Connection.open(guests.listener.address, Greeting("secret", "b"))
        connection, hello = guests.taken.get(timeout=PATIENCE_S)
        assert hello.who == "b"
    for end in (ours, connection):
        end.close()


def test_strangers_are_so_many_at_most() -> None:
    """Whoever says nothing makes room for others, the longest first; a guest among them is taken all the same."""
    taken: Queue[tuple[Connection, Greeting]] = Queue()
    listener = Listener("127.0.0.1", "secret", lambda *guest: taken.put(guest), strangers=3)
    silent = [socket.create_connection(listener.address) for _ in range(8)]
    ours = Connection.open(listener.address, Greeting("secret", "b"))
    connection, hello = taken.get(timeout=60)
    assert hello.who == "b"
    for stranger in silent[:5]:
        stranger.settimeout(60)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert len(listener._strangers) <= 3
    listener.close()
    for end in (ours, connection):
        end.close()
    for stranger in silent:
        stranger.close()


def test_no_more_is_sent_than_there_are_buffers(pair: Pair) -> None:
    outlet, inlet = Outlet(pair[0], Hop(("", 0)), 2, 32), Inlet(pair[1])
    sent: Queue[int] = Queue()

    def send() -> None:
        for number in range(5):
            outlet.send(_items(number), [memoryview(b"abc")])
            sent.put(number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert [sent.get(timeout=PATIENCE_S) for _ in range(2)] == [0, 1]
    for number in range(2):
        inlet.take(1, number)
    with pytest.raises(Empty):
        sent.get(timeout=0.05)  # two are received, but none has left its buffer
    inlet.free()
    assert sent.get(timeout=PATIENCE_S) == 2
    with pytest.raises(Empty):
        sent.get(timeout=0.05)
    for _ in range(4):
        inlet.free()
    thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive()


def test_a_sender_learns_that_the_receiver_is_gone(pair: Pair) -> None:
    outlet = Outlet(pair[0], Hop(("", 0)), 1, 32)
    outlet.send(_items(0), [memoryview(b"abc")])
    pair[1].close()
    with pytest.raises(OSError):  # noqa: PT011
        outlet.send(_items(1), [memoryview(b"abc")])


@pytest.mark.parametrize(("generation", "number"), [(2, 0), (1, 1)])
def test_what_is_out_of_turn_is_refused(pair: Pair, generation: int, number: int) -> None:
    pair[0].send(_items(0), [memoryview(b"abc")])
    with pytest.raises(ConnectionError, match="out of turn"):
        Inlet(pair[1]).take(generation, number)


def test_a_shaped_link_takes_its_time(pair: Pair) -> None:
    outlet, inlet = Outlet(pair[0], Hop(("", 0), 1e6, 0.01), 2, 32), Inlet(pair[1])
    visits: Queue[Visit] = Queue()
    threading.Thread(target=lambda: visits.put(inlet.visit(*inlet.take(1, 0))), daemon=True).start()
    start_s = time.monotonic()
    outlet.send(_items(0), [memoryview(bytes(50_000))])
    visit = visits.get()
    assert visit.size == 50_000
    assert start_s <= visit.start_s
    assert visit.end_s - start_s >= 0.06  # never faster than the link that it stands for
    while not (speed := outlet.measured()).busy_s:  # each call tells what came since the last
        time.sleep(0.001)
    assert speed.bytes_per_s <= 50_000 / 0.06


def test_a_closed_channel_wakes_both_sides() -> None:
    full: Channel[int] = Channel(1)
    full.put(1)
    woken: Queue[Any] = Queue()

    def put() -> None:
        try:
            full.put(2)
        except ClosedError as error:
            woken.put(error)

    threading.Thread(target=put, daemon=True).start()
    full.close()
    assert isinstance(woken.get(timeout=PATIENCE_S), ClosedError)
    with pytest.raises(ClosedError):
        full.get()
