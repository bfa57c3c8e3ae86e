"""The client's side of a service on HTTP, with the standard library alone: JSON out and in, and events as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError
from dovetail.core.service.access import Address

CONNECT_S = 10.0


class ServiceError(DovetailError):
    """A service's answer that something is wrong. `retry_after_s`: when to try again, if that may help."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s
        self.exit_code = 2 if 400 <= status < 500 and status != 429 else 1


class SentEvent(Struct, frozen=True):
    """A server-sent event: its name, its data (JSON), and its number, after which one can ask for what followed."""

    name: str
    data: Any
    number: int | None = None


class HttpClient:
    """Asks one service; each request has a connection of its own, so any thread may ask."""

    def __init__(self, address: Address, timeout_s: float | None = 600.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._at = urlsplit(address.url)

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, query=query)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request; gives the JSON (or text) of the answer, or raises what the service says is wrong."""
        with self._answer(method, path, body, query, headers or {}) as answer:
            text = answer.read()
            if "json" in answer.headers.get("content-type", ""):
                return msgspec.json.decode(text)
            return text.decode()

    def events(self, path: str, after: int = 0) -> Iterator[SentEvent]:
        """The events of a stream until its end."""
        headers = {"last-event-id": str(after)} if after else {}
        with self._answer("GET", path, None, None, headers) as answer:
            fields: dict[str, str] = {}
            while line := answer.readline():
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name:
                    fields[name] = value
                elif "data" in fields:
                    number = int(fields["id"]) if "id" in fields else None
                    yield SentEvent(fields.get("event", ""), msgspec.json.decode(fields["data"]), number)
                    fields = {}

    def lines(self, path: str, **query: Any) -> Iterator[str]:
        """The lines of a text, as they come."""
        with self._answer("GET", path, None, query, {}) as answer:
            while line := answer.readline():
                yield line.decode(errors="replace").rstrip("\n")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Any, query: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._at.scheme == "https" else HTTPConnection
        assert self._at.hostname is not None
        connection = kind(self._at.hostname, self._at.port, timeout=CONNECT_S)
        words = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._at.path + path + (f"?{urlencode(words)}" if words else "")
        content = None if body is None else msgspec.json.encode(body)
        more = {"authorization": f"Bearer {self.address.token}", "content-type": "application/json", **headers}
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
            connection.request(method, target, content, more)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _error(answer)
            yield answer
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServiceError(503, f"no service answers at {self.address.url}: {why}") from error
        finally:
            connection.close()


def _error(answer: HTTPResponse) -> ServiceError:
    text = answer.read()
    try:
        message = msgspec.json.decode(text)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"the service answers {answer.status} {answer.reason}: {text[:200].decode(errors='replace')}"
    wait = answer.headers.get("retry-after", "")
    return ServiceError(answer.status, message, float(wait) if wait.isdecimal() else None)
