"""HTTP to a model server: kept connections, answers that stream, calls that can be given up, whose fault it is."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event, Lock, Thread
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from dovetail.workflow.live.protocol import BackEndError, OutOfMemoryError

READ_BYTES = 1 << 16
CONNECT_S = 5.0
STOP_SEEN_S = 0.05  # how long a call that was stopped may go unnoticed
BUSY_S = 60.0  # how long a server that answers 429 is asked again
_AGAIN = (408, 409, 425)  # a client's errors by their number, but not of what was asked


class CallStoppedError(Exception):
    """The call was stopped while the server was at it."""


class ServerClient:
    """One server at a base URL. Any thread may ask, each on a connection of its own, which is kept for the next."""

    def __init__(self, url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self.url, self.timeout_s = url.rstrip("/").removesuffix("/v1"), timeout_s
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._place = (parts.hostname or "", parts.port)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = dict(headers or {})
        self._idle: list[HTTPConnection] = []
        self._lock = Lock()
        self._stops = Stops()

    def ask(
        self, path: str, body: object = None, *, method: str | None = None, timeout_s: float | None = None
    ) -> Reply:
        """One whole answer, whatever its status."""
        with self.asking(path, body, method=method, timeout_s=timeout_s) as reply:
            reply.whole()
        return reply

    @contextlib.contextmanager
    def asking(
        self,
        path: str,
        body: object = None,
        stopped: Event | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Reply]:
        """An answer that is read as it comes. What goes wrong on the way is the place's fault; `CallStoppedError` if
        `stopped` was set, and then the connection is closed, which tells the server to stop."""
        _raise_if(stopped)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        send = {"Content-Type": "application/json", **self._headers, **(headers or {})}
        request = (method or ("GET" if body is None else "POST"), self._path + path, raw, send)
        connection = None
        try:
            connection, stream, response = self._send(request, timeout_s or self.timeout_s, stopped)
            with self._stops.watch(stopped, stream):
                yield Reply(response, f"{self.url}{path}")
            if not response.will_close and _is_read(response, stream):
                self._keep(connection)
                connection = None
        except BackEndError:  # of what has come: a connection that was closed here may look like the answer's end
            _raise_if(stopped)
            raise
        except (OSError, HTTPException, ValueError) as error:
            _raise_if(stopped)
            raise BackEndError(f"{self.url}{path}: {_what(error, timeout_s or self.timeout_s)}") from error
        finally:
            if connection is not None:
                connection.close()

    def _send(
        self, request: tuple[str, str, bytes | None, dict[str, str]], timeout_s: float, stopped: Event | None
    ) -> tuple[HTTPConnection, socket.socket, HTTPResponse]:
        kept = self._kept()
        connection = kept or self._kind(*self._place, timeout=min(timeout_s, CONNECT_S))
        try:
            if kept is None:
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.sock
            stream.settimeout(timeout_s)
            with self._stops.watch(stopped, stream):
                connection.request(*request)
                return connection, stream, connection.getresponse()
        except BaseException as error:
            connection.close()
            if kept is None or not isinstance(error, ConnectionError) or (stopped is not None and stopped.is_set()):
                raise
        return self._send(request, timeout_s, stopped)  # the server closed a kept connection just now

    def _kept(self) -> HTTPConnection | None:
        """A connection that the server has not closed meanwhile: one that has something to read has come to its end."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not _has_ended(connection.sock):
                    return connection
                connection.close()
        return None

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def reachable(self) -> bool:
        connection = self._kind(*self._place, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError:
            return False
        finally:
            connection.close()
        return True

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Reply:
    """What a server answers: its status, and its body as it comes."""

    def __init__(self, response: HTTPResponse, url: str) -> None:
        self._response, self.url = response, url
        self.status = response.status
        self.header = response.getheader
        self.body = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def streams(self) -> bool:
        return (self.header("Content-Type") or "").startswith("text/event-stream")

    def whole(self) -> bytes:
        self.body = self.body or self._response.read()
        return self.body

    def json(self) -> Any:
        """The body's value; a server that answers something else is at fault."""
        try:
            return json.loads(self.whole())
        except ValueError:
            raise BackEndError(f"{self.url}: the answer is not JSON: {_short(self.body)}") from None

    def pieces(self) -> Iterator[bytes]:
        while piece := self._response.read1(READ_BYTES):
            yield piece

    def fail(self) -> NoReturn:
        """Tell what a status other than success means: a client's error is the call's fault, all else the place's."""
        self.whole()
        blame: Literal["call", "place"] = "call" if 400 <= self.status < 500 and self.status not in _AGAIN else "place"
        raise failure(f"{self.url}: {self.status}, {message_of(self.body)}", blame)

    def retry_after_s(self, default: float) -> float:
        try:
            return max(float(self.header("Retry-After") or default), 0.05)
        except ValueError:  # a date
            return default


class Stops:
    """Breaks the connections of calls that are stopped while they wait for the server. Its thread lives as long as a
    call does that can be stopped."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[Event, socket.socket]] = {}
        self._lock = Lock()
        self._thread: Thread | None = None

    @contextlib.contextmanager
    def watch(self, stopped: Event | None, stream: socket.socket) -> Iterator[None]:
        if stopped is None:
            yield
            return
        with self._lock:
            self._watched[id(stream)] = (stopped, stream)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="dovetail-stops", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(id(stream), None)

    def _run(self) -> None:
        while True:
            time.sleep(STOP_SEEN_S)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                for stopped, stream in self._watched.values():
                    if stopped.is_set():
                        with contextlib.suppress(OSError):
                            stream.shutdown(socket.SHUT_RDWR)


def patiently(ask: Callable[[], Any], wait: Callable[[float], bool], busy_s: float = BUSY_S) -> Any:
    """What `ask` gives, asked again while the server is too busy (`ServerBusyError`), for `busy_s` seconds at most.
    `wait` waits for so many seconds, and tells whether to give up."""
    until = time.monotonic() + busy_s
    while True:
        try:
            return ask()
        except ServerBusyError as busy:
            if time.monotonic() + busy.after_s > until:
                raise BackEndError(f"{busy}: still so after {busy_s:g} s") from None
            if wait(busy.after_s):
                raise CallStoppedError from None


class ServerBusyError(Exception):
    def __init__(self, why: str, after_s: float) -> None:
        super().__init__(why)
        self.after_s = after_s


def _raise_if(stopped: Event | None) -> None:
    if stopped is not None and stopped.is_set():
        raise CallStoppedError


def _is_read(response: HTTPResponse, stream: socket.socket) -> bool:
    """Whether nothing is left of an answer whose last word was heard, so that its connection can be used again."""
    if not response.isclosed():
        stream.settimeout(STOP_SEEN_S)
        with contextlib.suppress(OSError, HTTPException):
            response.read1(READ_BYTES)
    return response.isclosed()


def failure(why: str, blame: Literal["call", "place"] = "place") -> BackEndError:
    if "out of memory" in why.lower():
        return OutOfMemoryError(why)
    return BackEndError(why, blame)


def message_of(body: bytes) -> str:
    """The words of an error's body, as OpenAI, FastAPI, Ollama, Triton and llama-swap put them."""
    try:
        value = json.loads(body)
    except ValueError:
        return _short(body)
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail", "msg") if key in value), str(value))
    return _short(str(value).encode())


def _what(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no word for {timeout_s:g} s"
    return str(error) or type(error).__name__


def _short(text: bytes) -> str:
    return text[:300].decode(errors="replace").strip() or "nothing"


def _has_ended(connection: socket.socket) -> bool:
    """Whether there is something to read where nothing was asked; of any number of connections."""
    look = select.poll()
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))
