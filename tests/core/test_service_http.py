"""The HTTP face that services share: who is let in, what is refused, and that every request is answered."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import stat
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from dovetail.core.errors import InputError
from dovetail.core.service.access import TOKEN_VARIABLE, Address, find, read_token, token_in
from dovetail.core.service.client import HttpClient, ServiceError
from dovetail.core.service.http import Face, HttpError, Operation, body_of, reply, unless_gone
from dovetail.core.service.openapi import document, page
from dovetail.core.service.server import HttpServer
from dovetail.core.service.streams import EventStream, server_event
from tests.waiting import until


class Sum(Struct, forbid_unknown_fields=True):
    numbers: list[int]
    scale: int = 1
    note: Any = None
    exact: bool = False


class Tried:
    """What clients have left behind."""

    cancelled = 0


async def add(request: Request) -> Response:
    given = await body_of(request, Sum)
    return reply({"sum": sum(given.numbers) * given.scale, "trace": request.state.trace_id})


async def fail(request: Request) -> Response:
    raise ZeroDivisionError("a secret of ours")


async def refuse(request: Request) -> Response:
    raise HttpError(429, "full", retry_after_s=0.25)


async def wait(request: Request) -> Response:
    async def forever() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            Tried.cancelled += 1
        return reply({})

    return await unless_gone(request, forever())


async def stream(request: Request) -> Response:
    async def events() -> AsyncGenerator[bytes]:
        first = int(request.headers.get("last-event-id", 0))
        try:
            for number in range(first + 1, 4):
                yield server_event(b'{"n": %d}' % number, "counted", number)
            if "endless" in request.query_params:
                await asyncio.Event().wait()
        finally:
            Tried.cancelled += 1

    return EventStream(events())


async def open_door(request: Request) -> Response:
    return reply({"status": "up"})


OPERATIONS = (
    Operation("POST", "/sum", add, "Adds numbers.", takes=Sum, gives=dict[str, int]),
    Operation("GET", "/fail", fail, "Fails."),
    Operation("GET", "/full", refuse, "Is full."),
    Operation("GET", "/wait", wait, "Waits."),
    Operation("GET", "/stream", stream, "Counts.", query=("endless",)),
    Operation("GET", "/health", open_door, "Is up.", public=True),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return tmp_path / "state"


@pytest.fixture
def server(folder: Path) -> Iterator[HttpServer]:
    Tried.cancelled = 0
    face = Face(OPERATIONS, token_in(folder / "token"), most_bytes=4000, body_timeout_s=0.2)
    with HttpServer(face, folder=folder) as server:
        yield server


@pytest.fixture
def client(server: HttpServer, folder: Path) -> HttpClient:
    return HttpClient(find(folder))


def raw(server: HttpServer, text: bytes) -> bytes:
    """What is answered to these bytes until the connection is closed."""
    with socket.create_connection((server.host, server.port)) as line:
        line.sendall(text)
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def head(token: str, more: str = "") -> bytes:
    return f"Host: localhost\r\nAuthorization: Bearer {token}\r\n{more}\r\n".encode()


def status(client: HttpClient, method: str, path: str, body: object = None) -> int:
    with pytest.raises(ServiceError) as caught:
        client.ask(method, path, body)
    return caught.value.status


def test_a_client_finds_the_service_by_its_folder(client: HttpClient, server: HttpServer, folder: Path) -> None:
    assert (folder / "url").read_text() == server.url + "\n"
    assert server.url.startswith("http://127.0.0.1:")
    assert client.ask("POST", "/sum", {"numbers": [1, 2], "scale": 2})["sum"] == 6
    server.stop()
    assert not (folder / "url").exists()
    with pytest.raises(InputError, match=r"no service answers in .*state: it has no file url"):
        find(folder)
    assert status(client, "GET", "/health") == 503


def test_the_token_is_for_its_user_alone(folder: Path) -> None:
    path = folder / "token"
    token = token_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_in(path) == token
    assert token not in repr(Address("http://localhost", token))
    path.chmod(0o640)
    with pytest.raises(InputError, match=r"others can read it \(mode 640\); expected mode 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(InputError, match="expected a token of at least 16"):
        token_in(path)
    with pytest.raises(InputError, match="the token cannot be read"):
        read_token(folder / "none")


def test_those_who_make_a_token_at_once_have_the_same(folder: Path) -> None:
    """Nobody reads one that another is about to write."""
    together = Barrier(8)

    def made(_: int) -> str:
        together.wait()
        return token_in(folder / "token")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(made, range(8)))) == 1
    assert os.listdir(folder) == ["token"]


def test_the_token_comes_from_the_environment_for_a_url(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(
        InputError, match=f"its token is not known; name its file with --token-file, or set {TOKEN_VARIABLE}"
    ):
        find("http://127.0.0.1:1")
    monkeypatch.setenv(TOKEN_VARIABLE, "from the environment")
    assert find("http://127.0.0.1:1/").token == "from the environment"
    assert find("http://127.0.0.1:1/", folder / "token" if token_in(folder / "token") else None).token != TOKEN_VARIABLE
    (folder / "url").write_text("nonsense")
    with pytest.raises(InputError, match="expected a URL, found 'nonsense'"):
        find(folder)


@pytest.mark.parametrize("words", ["", "Bearer", "Bearer wrong", "Basic {token}", "Bearer {token}x", "Bearer \u00fc"])
def test_no_door_opens_without_the_token(server: HttpServer, client: HttpClient, words: str) -> None:
    connection = http.client.HTTPConnection(server.host, server.port)
    given = words.format(token=client.address.token).encode("latin-1")
    for path in ("/sum", "/wait", "/stream"):
        connection.request("GET", path, headers={"authorization": given} if words else {})
        answer = connection.getresponse()
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert b'"type":"authentication_error"' in answer.read()
    connection.request("GET", "/health", headers={"authorization": given})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:1", 200),
        ("192.0.2.7", 200),
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("", 421),
    ],
)
def test_a_strangers_name_for_this_machine_is_refused(server: HttpServer, host: str, expected: int) -> None:
    text = f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    assert raw(server, text).startswith(b"HTTP/1.1 %d " % expected)


def test_a_request_without_a_host_is_refused(server: HttpServer) -> None:
    assert raw(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing key `numbers`"),
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[]", "expected object, found array"),
        (b'{"numbers": [1, "a"]}', "numbers.1: expected int, found str"),
        (b'{"numbers": [], "scal": 2}', "unknown key 'scal'; did you mean 'scale'?"),
        (b'{"numbers": [], "note": %b' % (b"[" * 3000), "the body is not JSON"),
    ],
)
def test_a_bad_body_is_the_clients_mistake(server: HttpServer, client: HttpClient, body: bytes, message: str) -> None:
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n"
    answer = raw(server, b"POST /sum HTTP/1.1\r\n" + head(client.address.token, length) + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert message in answer.decode()


def test_bodies_have_a_limit(server: HttpServer, client: HttpClient) -> None:
    assert status(client, "POST", "/sum", {"numbers": [1] * 4000}) == 413
    chunked = head(client.address.token, "Transfer-Encoding: chunked\r\n")
    answer = raw(server, b"POST /sum HTTP/1.1\r\n" + chunked + b"800\r\n%b\r\n" % (b" " * 0x800) * 3)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"x-should-retry: false" in answer
    announced = head(client.address.token, "Content-Length: 99999999999999999999\r\n")
    assert raw(server, b"POST /sum HTTP/1.1\r\n" + announced).startswith(b"HTTP/1.1 4")


def test_a_body_that_never_comes_is_not_waited_for(server: HttpServer, client: HttpClient) -> None:
    promised = head(client.address.token, "Content-Length: 10\r\n")
    assert raw(server, b"POST /sum HTTP/1.1\r\n" + promised + b"{").startswith(b"HTTP/1.1 408 ")


def test_headers_that_never_end_are_not_waited_for(
    server: HttpServer, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.core.service.server._HEADERS_WITHIN_S", 0.1)
    assert raw(server, b"GET /hea") == b""
    assert raw(server, b"") == b""
    monkeypatch.setattr("dovetail.core.service.server._HEADERS_WITHIN_S", 1.0)  # who sends whole ones has the time
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(server, whole + b"GET").startswith(b"HTTP/1.1 200 ")


def test_methods(server: HttpServer, client: HttpClient) -> None:
    connection = http.client.HTTPConnection(server.host, server.port)
    allowed = {"authorization": f"Bearer {client.address.token}"}
    for method, path, expected, allow in (
        ("OPTIONS", "/sum", 204, "OPTIONS, POST"),
        ("PUT", "/sum", 405, "OPTIONS, POST"),
        ("HEAD", "/health", 200, None),
        ("OPTIONS", "/health", 204, "GET, HEAD, OPTIONS"),
        ("GET", "/nothing", 404, None),
        ("GET", "/health/", 404, None),
    ):
        connection.request(method, path, headers=allowed)
        answer = connection.getresponse()
        content = answer.read()
        assert (answer.status, answer.headers["allow"]) == (expected, allow), (method, path)
        assert "access-control-allow-origin" not in answer.headers
        assert not (method == "HEAD" and content)
    connection.close()


def test_what_goes_wrong_here_is_not_told_in_full(client: HttpClient, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ServiceError) as caught:
        client.get("/fail")
    assert caught.value.status == 500
    assert "secret" not in str(caught.value)
    assert "a secret of ours" in caplog.text


def test_who_comes_too_early_is_told_when_to_come_back(server: HttpServer, client: HttpClient) -> None:
    with pytest.raises(ServiceError, match="full") as caught:
        client.get("/full")
    assert (caught.value.status, caught.value.retry_after_s, caught.value.exit_code) == (429, 1.0, 1)
    answer = raw(server, b"GET /full HTTP/1.1\r\n" + head(client.address.token, "Connection: close\r\n"))
    assert b"retry-after-ms: 250\r\n" in answer


@pytest.mark.parametrize(
    ("given", "kept"),
    [(f"00-{'a1' * 16}-{'b2' * 8}-01", True), ("00-zz-01", False), (f"00-{'0' * 32}-{'b' * 16}-01", 0)],
)
def test_a_request_keeps_its_trace(server: HttpServer, client: HttpClient, given: str, kept: bool) -> None:
    body = b'{"numbers": []}'
    more = f"traceparent: {given}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    answer = raw(server, b"POST /sum HTTP/1.1\r\n" + head(client.address.token, more) + body).decode()
    (trace,) = (line.split(": ")[1] for line in answer.split("\r\n") if line.startswith("x-request-id"))
    assert len(trace) == 32
    assert (trace == "a1" * 16) == kept
    assert f'"trace":"{trace}"' in answer


def test_events_are_numbered_and_resumed(client: HttpClient) -> None:
    assert [(event.name, event.data["n"], event.number) for event in client.events("/stream")] == [
        ("counted", n, n) for n in (1, 2, 3)
    ]
    assert [event.number for event in client.events("/stream", after=2)] == [3]


@pytest.mark.parametrize("path", ["/wait", "/stream?endless=1"])
def test_work_for_a_client_that_went_is_ended(server: HttpServer, client: HttpClient, path: str) -> None:
    with socket.create_connection((server.host, server.port)) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\n".encode() + head(client.address.token))
        if "stream" in path:
            assert line.recv(1)
    until(lambda: Tried.cancelled == 1)


def test_stopping_cuts_off_what_is_still_being_answered(server: HttpServer, client: HttpClient) -> None:
    with socket.create_connection((server.host, server.port)) as waits:
        waits.sendall(b"GET /wait HTTP/1.1\r\n" + head(client.address.token))
        with socket.create_connection((server.host, server.port)) as streams:
            streams.sendall(b"GET /stream?endless=1 HTTP/1.1\r\n" + head(client.address.token))
            assert streams.recv(1)
            server.stop()
            assert not b"".join(iter(lambda: streams.recv(1 << 16), b"")).endswith(b"0\r\n\r\n")
        assert b"".join(iter(lambda: waits.recv(1 << 16), b"")).startswith(b"HTTP/1.1 503 ")
    assert Tried.cancelled == 2


def test_addresses_that_cannot_be_listened_at(server: HttpServer) -> None:
    face = Face(OPERATIONS, "x" * 20)
    with pytest.raises(InputError, match=rf"127.0.0.1:{server.port}: cannot listen there: Address already in use"):
        HttpServer(face, port=server.port)
    with pytest.raises(InputError, match="port 70000: expected 0"):
        HttpServer(face, port=70000)
    with pytest.raises(InputError, match=r"host 'no.such.host.invalid'"):
        HttpServer(face, host="no.such.host.invalid")


def test_the_operations_describe_themselves() -> None:
    told = document("Sums", "Adds & counts.", OPERATIONS)
    assert told["paths"]["/sum"]["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Sum"
    }
    assert told["components"]["schemas"]["Sum"]["required"] == ["numbers"]
    assert told["paths"]["/health"]["get"]["security"] == []
    text = page(told)
    assert "Adds &amp; counts." in text
    assert "list of integer" in text
    assert ("<td>false</td>" in text, "False" in text) == (True, False)
    assert "://" not in text.replace("http-equiv", "")
