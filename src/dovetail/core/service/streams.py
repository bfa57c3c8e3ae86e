"""Server-sent events: what happens, as it happens, over a connection that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dovetail.core.service.http import gone

T = TypeVar("T")
HEARTBEAT_S = 15.0
HEARTBEAT = b": still here\n\n"


def server_event(data: bytes, name: str = "", number: int | None = None) -> bytes:
    """One event; its data is JSON, which has no line breaks.

    >>> server_event(b'{"text": "a"}', "piece", 3)
    b'id: 3\\nevent: piece\\ndata: {"text": "a"}\\n\\n'
    """
    head = (f"id: {number}\n" if number is not None else "") + (f"event: {name}\n" if name else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)


class EventStream(Response):
    """Sends what a generator gives. If the client goes, or the server stops, it is closed there and then, also if it
    has not begun; `close` is called in the end, however that comes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], close: Callable[[], None] = lambda: None) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, listening = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            listening.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
            self._close()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in self._events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Mailbox(Generic[T]):
    """What other threads tell, for a coroutine to wait for; made in the loop of the coroutine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[T] = asyncio.Queue()
        self._first: list[T] = []

    def tell(self, what: T) -> None:
        with suppress(RuntimeError):  # the server has stopped, and nobody waits any more
            self._loop.call_soon_threadsafe(self._told.put_nowait, what)

    def put_back(self, what: T) -> None:
        """Let this be the next once more."""
        self._first.append(what)

    @property
    def empty(self) -> bool:
        return not self._first and self._told.empty()

    async def next(self, within_s: float | None = None) -> T | None:
        """The next that was told; None if there is nothing within a time."""
        if self._first:
            return self._first.pop()
        if within_s is None or not self._told.empty():
            return await self._told.get()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                return await self._told.get()
        return None
