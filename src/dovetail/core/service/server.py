"""A server for an HTTP face, in a thread of its own: on loopback unless another address is given, on any free port if
that is 0; its URL is in a file for clients to find."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from dovetail.core.errors import DovetailError, InputError, MissingExtraError
from dovetail.core.files.output import atomic_write
from dovetail.core.service.access import URL_FILE, is_loopback
from dovetail.core.service.http import Face

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("web", "uvicorn", "a service on HTTP") from None

_HEADERS_WITHIN_S = 30.0
_LOOK_S = 1.0
_KEPT_ALIVE_S = 75  # longer than clients keep a connection that nobody uses, so that they close it and not we


class HttpServer:
    """Serves a face until it is stopped; a context that stops it.

    `folder` is where the URL is written, which goes again when the server does.
    """

    def __init__(self, face: Face, *, host: str = "127.0.0.1", port: int = 0, folder: Path | None = None) -> None:
        self._socket = _listen(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        shown = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        self.url = f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"
        config = uvicorn.Config(
            face,
            http=_Patient,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # the face keeps its own log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEPT_ALIVE_S,
        )
        self._server = _Server(config)
        self._file = None if folder is None else folder / URL_FILE
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http")

    def start(self) -> HttpServer:
        self._thread.start()
        while not self._server.up.wait(_LOOK_S):
            if not self._thread.is_alive():
                raise DovetailError(f"{self.url}: the server ended as it started")
        if self._file is not None:
            atomic_write(self._file, self.url + "\n")
        return self

    def stop(self, grace_s: float = 0.0) -> None:
        """Stop listening, cut off what is still being answered when the grace is over, and wait until all is done."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # seconds, for asyncio
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> HttpServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def host_names(host: str) -> list[str]:
    """The names by which clients may call a server that listens at this address; numeric addresses need none."""
    return [host] if is_loopback(host) else [host, socket.gethostname(), socket.getfqdn()]


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"port {port}: expected 0 (any free one) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by that
    except OSError as error:
        raise InputError(f"host {host!r}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(f"{host}:{port}: cannot listen there: {error.strerror}") from None
    return listener


class _Server(uvicorn.Server):
    """Says when it can be asked."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class _Patient(H11Protocol):
    """A connection whose request, once it has begun, must be there within a time: nobody holds one open for nothing."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._let_be()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._let_be()
        elif self._overdue is None and (self.cycle is None or self.conn.trailing_data[0]):
            self._overdue = self.loop.call_later(_HEADERS_WITHIN_S, self.timeout_keep_alive_handler)

    def _let_be(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
