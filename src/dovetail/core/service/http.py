"""The HTTP face of a service: operations by path and method, who may ask for them, and what goes wrong, as JSON.

Whatever a client sends, it gets an answer with the right status: an error has the shape of OpenAI's, so that clients
made for that API can tell what happened. Only the token opens the door, for hosts that are meant to come through it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from dovetail.core.errors import DovetailError, InputError, MissingExtraError
from dovetail.core.files.document import explain
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.core.service.store import StoreError

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Router
    from starlette.types import Message, Receive, Scope, Send
except ImportError:
    raise MissingExtraError("web", "Starlette", "a service on HTTP") from None

T = TypeVar("T")
Default = TypeVar("Default", float, None)
Handler = Callable[[Request], Awaitable[Response]]
LOGGER = logging.getLogger("dovetail.http")
_RETRY_S = 5.0
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class HttpError(Exception):
    """An answer that is not what the client hoped for. `param` is the field that is to blame, `code` a word for
    programs; with `final` the client is told that trying again is of no use."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.final = status, param, code, final
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        found = {"x-should-retry": "false"} if self.final else {}
        if self.retry_after_s is not None:  # whole seconds for all clients, and the same in milliseconds for OpenAI's
            found |= {
                "retry-after": str(max(-int(-self.retry_after_s // 1), 0)),
                "retry-after-ms": str(max(-int(-self.retry_after_s * 1000 // 1), 0)),
            }
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        if self.status in (408, 413):
            found["connection"] = "close"  # what is left of the body is not read
        return found


@contextmanager
def told_as_http() -> Iterator[None]:
    """Turn what a service refuses into an answer with the right status."""
    try:
        yield
    except BusyError as error:
        raise HttpError(429, str(error), code="busy", retry_after_s=error.retry_after_s) from error
    except DrainingError as error:
        raise HttpError(503, str(error), code="draining", retry_after_s=_RETRY_S) from error
    except StoreError as error:
        raise HttpError(503, str(error), code="no_room", retry_after_s=_RETRY_S) from error
    except ConflictError as error:
        raise HttpError(409, str(error), code="conflict", final=True) from error
    except InputError as error:
        raise HttpError(400, str(error)) from error


class ClientGoneError(Exception):
    """The client has closed its connection; nobody waits for an answer."""


class Operation(NamedTuple):
    """What can be asked for: `takes` and `gives` are the types of the JSON that goes in and comes out, for the
    page that describes it. A public one needs no token."""

    method: str
    path: str
    handle: Handler
    summary: str
    takes: Any = None
    gives: Any = None
    query: tuple[str, ...] = ()
    public: bool = False


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, of whatever msgspec can encode; arrays (of numpy, of torch) as lists."""
    return Response(encode(value), status, dict(headers or {}), "application/json")


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"a value of type {type(value).__name__} cannot be sent as JSON")


async def body_of(request: Request, to: type[T], misfit: int = 400) -> T:
    """The JSON of a request, as what is wanted; what does not fit is the client's mistake, and it is told where."""
    text = await request.body()
    try:
        return msgspec.json.decode(text or b"{}", type=to)
    except msgspec.ValidationError as error:
        keys, message = explain(error, to)
        place = ".".join(map(str, keys))
        raise HttpError(misfit, f"{place}: {message}" if place else message, param=place or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives. If the client goes first, the work is cancelled and `ClientGoneError` raised."""
    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        listening.cancel()
        working.cancel()
        await asyncio.gather(working, listening, return_exceptions=True)


async def gone(receive: Receive) -> None:
    """Returns when the client has closed its connection; what it sends meanwhile is read and dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Face:
    """All operations of a service, as an application of ASGI: it lets in who has the token, bounds what it reads, names
    every request (`x-request-id`, the client's trace if it has one), and turns errors into answers.

    `hosts` are the names by which the service may be called beside numeric addresses: a page of a stranger's, whose
    name leads here, is none of them.
    """

    def __init__(
        self,
        operations: Iterable[Operation],
        token: str,
        *,
        hosts: Iterable[str] = (),
        most_bytes: int = 32 << 20,
        body_timeout_s: float = 30.0,
    ) -> None:
        self.operations = tuple(operations)
        self._secret = token.encode()
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._most_bytes, self._body_timeout_s = most_bytes, body_timeout_s
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        self._router = Router(redirect_slashes=False, default=_nothing_here)
        for path, methods in by_path.items():
            self._router.add_route(path, self._choose(methods), methods=None)
        for route in self._router.routes:
            route.methods = None  # type: ignore[attr-defined]  # which ones it knows is said by `_choose`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, status = time.perf_counter(), 0
        headers = dict(scope["headers"])
        found = _TRACE_PARENT.fullmatch(headers.get(b"traceparent", b""))
        trace = found[1].decode() if found and set(found[1]) != {ord("0")} else secrets.token_hex(16)
        scope["state"] = {"trace_id": trace}

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", trace.encode())]
            await send(message)

        try:
            self._check_host(headers.get(b"host"))
            await self._router(scope, self._bounded(headers, receive), named)
        except (ClientGoneError, ClientDisconnect):
            status = status or 499
        except (Exception, asyncio.CancelledError) as error:
            answer = _answer(error, trace)
            if status == 0:
                await reply(answer.body(), answer.status, answer.headers())(scope, receive, named)
            elif not isinstance(error, asyncio.CancelledError):
                raise  # in the middle of an answer: the connection is closed, so that nobody takes it for a whole one
        finally:
            if LOGGER.isEnabledFor(logging.INFO):
                took = time.perf_counter() - began
                LOGGER.info("%s %s %d %.4f s %s", scope["method"], scope["path"], status, took, trace)

    def _choose(self, methods: dict[str, Operation]) -> Handler:
        allowed = ", ".join(sorted({*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))

        async def choose(request: Request) -> Response:
            operation = methods.get("GET" if request.method == "HEAD" else request.method)
            if operation is None or not operation.public:
                self._check_token(request)
            if operation is not None:
                return await operation.handle(request)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": allowed})
            error = HttpError(405, f"{request.method} is not possible here; expected {allowed}")
            return reply(error.body(), 405, {"allow": allowed})

        return choose

    def _check_host(self, given: bytes | None) -> None:
        if given is None:
            raise HttpError(400, "the request has no Host header")
        name = given.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        try:
            ipaddress.ip_address(name)  # no name that somebody else could lead here
        except ValueError:
            if name not in self._hosts:
                raise HttpError(421, f"this service is not called {name!r}", param="host") from None

    def _check_token(self, request: Request) -> None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not secrets.compare_digest(given.strip().encode("latin-1"), self._secret):
            said = "is wrong" if given else "is missing: Authorization: Bearer TOKEN"
            raise HttpError(401, f"the token {said}", code="invalid_api_key")

    def _bounded(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Give no more of a body than is allowed, and wait for it no longer than that."""
        left = self._most_bytes
        deadline = time.monotonic() + self._body_timeout_s
        too_large = HttpError(413, f"the body is larger than {self._most_bytes} bytes", final=True)
        whole = False

        async def bounded() -> Message:
            nonlocal left, whole
            if whole:
                return await receive()
            if int(headers.get(b"content-length", b"0")) > self._most_bytes:
                raise too_large
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                    message = await receive()
            except TimeoutError:
                limit = f"{self._body_timeout_s:g} s"
                raise HttpError(408, f"the body was not sent within {limit}", final=True) from None
            left -= len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if left < 0:
                raise too_large
            return message

        return bounded


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    raise HttpError(404, f"there is nothing at {scope['path']}; /docs has what there is")


def _answer(error: BaseException, trace: str) -> HttpError:
    """What to tell a client of an error. What we did not foresee is ours, and in the log under its trace."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return HttpError(503, "the service is going down", retry_after_s=1.0)
    if isinstance(error, InputError):
        return HttpError(400, str(error))
    if not isinstance(error, DovetailError):
        LOGGER.error("request %s failed", trace, exc_info=error)
        return HttpError(500, f"internal error: {type(error).__name__}; the log has more under {trace}")
    return HttpError(500, str(error))


def number_in(request: Request, name: str, default: Default, most: float) -> float | Default:
    """A number of the query, not below 0."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise HttpError(400, f"{name}: expected a number from 0 to {most:g}, found {text!r}", param=name)
    return value
