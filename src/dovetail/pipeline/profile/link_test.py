"""How fast the link between two hosts is: one side serves, the other one connects, sends, fetches and times."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files.document import Document, as_path
from dovetail.pipeline.profile.files import dump_yaml
from dovetail.pipeline.profile.measure import spread

_HELLO = b"dovetail-link-1\n"
_PING, _TAKE, _GIVE = b"P", b"T", b"G"  # what a client asks for; the last two are followed by a count of bytes
_MOST_BYTES = 2**28  # of one transfer: a stranger cannot make the server fill its memory or time
_CHUNK = bytes(2**18)
_PATIENCE_S = 30.0
_MIBIT = 2**20 / 8  # bytes; the planner's Mbps are 2**20 bits per second


class LinkResult(Struct, frozen=True, kw_only=True):
    """Mibit/s to the server and back, and the one-way latency: medians, with the interquartile range of the first."""

    to_mbps: float
    from_mbps: float
    latency_s: float
    to_spread_mbps: float
    from_spread_mbps: float
    repeats: int


class LinkTest(Struct, frozen=True):
    """What was measured, and what a links file says about it."""

    result: LinkResult
    links: list[dict[str, Any]]


def listen(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket for `serve`; port 0 takes a free one."""
    _check_port(port, 0)
    try:
        return socket.create_server((address, port), family=_family(address, port))
    except OSError as error:
        raise InputError(f"{address} port {port}: cannot listen: {error.strerror or error}") from error


def _check_port(port: int, least: int) -> None:
    if not least <= port <= 65535:
        raise InputError(f"port: expected {least} to 65535, found {port}")


def _family(address: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]


def serve_link(
    address: str = "127.0.0.1",
    port: int = 0,
    *,
    clients: int | None = None,
    notice: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer link tests of other hosts, so many or for ever. `notice` is told where it listens, and of each client."""
    with listen(address, port) as listener:
        notice(f"listening on {address} port {listener.getsockname()[1]}")
        serve(listener, clients=clients, told=notice)


def serve(listener: socket.socket, *, clients: int | None = None, told: Callable[[str], None] = lambda _: None) -> None:
    """Answer one client after another, so many or for ever. A client that breaks off does no harm."""
    served = 0
    while clients is None or served < clients:
        connection, peer = listener.accept()
        with connection:
            try:
                _answer(connection)
                told(f"{peer[0]}: done")
            except (OSError, EOFError, ValueError) as error:
                told(f"{peer[0]}: {error or type(error).__name__}")
        served += 1


def _answer(connection: socket.socket) -> None:
    _prepare(connection)
    if _receive(connection, len(_HELLO)) != _HELLO:
        raise ValueError("not a client of this test")
    connection.sendall(_HELLO)
    while asked := connection.recv(1):
        if asked == _PING:
            connection.sendall(_PING)
            continue
        size = int.from_bytes(_receive(connection, 8), "big")
        if asked not in (_TAKE, _GIVE) or size > _MOST_BYTES:
            raise ValueError("a request that is not understood")
        if asked == _TAKE:
            _drain(connection, size)
            connection.sendall(_PING)
        else:
            _pour(connection, size)


def link_test(
    address: str,
    port: int,
    *,
    here: str = "here",
    there: str | None = None,
    repeats: int = 9,
    seconds: float = 0.2,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> LinkTest:
    """Measure the link to a host where `serve_link` runs, and add it to a links file if one is named.

    `here` and `there` are what the hosts or their types are called in devices.yml. Transfers are made large enough to
    last about so many seconds each.
    """
    place = None if out is None else as_path(out, "out")
    if place is not None:
        other_links(place, here, there or address, force=force)  # an error now, not after the measurement
    result = measure_link(address, port, repeats=repeats, seconds=seconds)
    entries = link_entries(result, here, there or address)
    if place is not None:
        write_links(place, entries, force=force)
    return LinkTest(result, entries)


def measure_link(address: str, port: int, *, repeats: int = 9, seconds: float = 0.2) -> LinkResult:
    """Measure the link to a server: transfers are made large enough to last about so many seconds each."""
    _check_port(port, 1)
    if repeats < 1 or not 0 < seconds < inf:
        raise InputError(f"repeats and seconds: expected more than 0, found {repeats} and {seconds:g}")
    try:
        with socket.create_connection((address, port), timeout=_PATIENCE_S) as connection:
            _prepare(connection)
            connection.sendall(_HELLO)
            if _receive(connection, len(_HELLO)) != _HELLO:
                raise InputError(f"{address} port {port}: no link test answers there")
            return _measure(connection, repeats, seconds)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DovetailError(f"{address} port {port}: the link test failed: {reason}") from error


def _measure(connection: socket.socket, repeats: int, seconds: float) -> LinkResult:
    for _ in range(3):  # the first ones wake things up
        _ping(connection)
    round_trip = statistics.median(_ping(connection) for _ in range(max(20, repeats)))
    rates: list[list[float]] = []
    for transfer in (_send, _fetch):
        size = 2**16
        while (taken := transfer(connection, size)) < seconds / 2 and size < _MOST_BYTES:
            size = min(_MOST_BYTES, max(2 * size, int(size * min(16.0, seconds / taken))))
        times = [transfer(connection, size) for _ in range(repeats)]
        rates.append([size / _MIBIT / max(taken - round_trip, 1e-9) for taken in times])
    to, back = rates
    return LinkResult(
        to_mbps=statistics.median(to),
        from_mbps=statistics.median(back),
        latency_s=round_trip / 2,
        to_spread_mbps=spread(to),
        from_spread_mbps=spread(back),
        repeats=repeats,
    )


def _ping(connection: socket.socket) -> float:
    begin = perf_counter()
    connection.sendall(_PING)
    _receive(connection, 1)
    return perf_counter() - begin


def _send(connection: socket.socket, size: int) -> float:
    begin = perf_counter()
    connection.sendall(_TAKE + size.to_bytes(8, "big"))
    _pour(connection, size)
    _receive(connection, 1)
    return perf_counter() - begin


def _fetch(connection: socket.socket, size: int) -> float:
    begin = perf_counter()
    connection.sendall(_GIVE + size.to_bytes(8, "big"))
    _drain(connection, size)
    return perf_counter() - begin


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(_PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _pour(connection: socket.socket, size: int) -> None:
    view = memoryview(_CHUNK)
    while size > 0:
        connection.sendall(view[: min(size, len(_CHUNK))])
        size -= len(_CHUNK)


def _drain(connection: socket.socket, size: int) -> None:
    buffer = bytearray(len(_CHUNK))
    while size > 0:
        count = connection.recv_into(buffer, min(size, len(buffer)))
        if not count:
            raise EOFError("the other side hung up")
        size -= count


def _receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise EOFError("the other side hung up")
        found += piece
    return found


def link_entries(result: LinkResult, here: str, there: str) -> list[dict[str, Any]]:
    """What links.yml says about it: one entry for both ways, or two where the ways differ by more than a tenth.

    >>> link_entries(LinkResult(to_mbps=98.0, from_mbps=95.0, latency_s=0.001, to_spread_mbps=1.0,
    ...     from_spread_mbps=1.0, repeats=9), "a", "b")
    [{'from': 'a', 'to': 'b', 'bw_Mbps': 95.0, 'latency_s': 0.001}]
    """
    latency_s = float(f"{result.latency_s:.6g}")
    ways = [(here, there, result.to_mbps), (there, here, result.from_mbps)]
    slow, fast = sorted((result.to_mbps, result.from_mbps))
    if slow >= 0.9 * fast:
        return [{"from": here, "to": there, "bw_Mbps": float(f"{slow:.6g}"), "latency_s": latency_s}]
    return [
        {"from": a, "to": b, "bw_Mbps": float(f"{rate:.6g}"), "latency_s": latency_s, "one_way": True}
        for a, b, rate in ways
    ]


class _LinksFile(Struct, forbid_unknown_fields=True):
    links: list[dict[str, Any]] = []
    latency_s: float = 0.0


def other_links(path: Path, here: str, there: str, *, force: bool = False) -> _LinksFile:
    """What a links file holds but for the links between these two, which must not be there without `force`."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return _LinksFile()
    doc = Document.read(path)
    file = doc.convert(doc.data, _LinksFile)
    for i, link in enumerate(file.links):
        if {link.get("from"), link.get("to")} == {here, there} and not force:
            raise doc.error(("links", i), f"the link of {here} and {there} is there already; -f replaces it")
    file.links = [link for link in file.links if {link.get("from"), link.get("to")} != {here, there}]
    return file


def write_links(path: Path, entries: Sequence[dict[str, Any]], *, force: bool = False) -> None:
    """Add entries to a links file; with `force` those between the same two are replaced."""
    file = other_links(path, entries[0]["from"], entries[0]["to"], force=force)
    file.links = [*file.links, *entries]
    plain = msgspec.to_builtins(file)
    dump_yaml(path, plain if file.latency_s else {"links": plain["links"]})
