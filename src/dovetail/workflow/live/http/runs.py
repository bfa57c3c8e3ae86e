"""`/v1/runs`: runs of workflows, which go on whether anybody waits for them or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, get_args
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response

from dovetail.core.errors import did_you_mean
from dovetail.core.service.http import HttpError, Operation, body_of, encode, number_in, reply, unless_gone
from dovetail.core.service.streams import HEARTBEAT, HEARTBEAT_S, EventStream, server_event
from dovetail.workflow.live.http.desk import Desk, Waiting
from dovetail.workflow.live.runs import ENDED, RunEvent, RunRequest, RunResult, RunState, RunStatus
from dovetail.workflow.live.values import ValueFaultError, from_json, to_json

_LONGEST_WAIT_S = 3600.0
_LARGEST_PAGE = 1000


class RunBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that is asked for: the workflow or model, its input by name, and how much it matters."""

    workflow: str
    input: dict[str, Any] = {}
    options: dict[str, Any] = {}
    tenant: str = ""
    weight: float = 1.0
    due_s: float | None = None
    stream: bool = False
    id: str | None = None


class RunPage(Struct, frozen=True, kw_only=True):
    """Some of the runs, the newest first; `after=NEXT` gives more."""

    data: list[RunStatus]
    next: str | None = None


class RunHandlers:
    """The handlers of `/v1/runs`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def operations(self) -> list[Operation]:
        run = "/v1/runs/{run}"
        return [
            Operation(
                "POST",
                "/v1/runs",
                self.submit,
                "Ask for a run: 202 with its id, or with wait=SECONDS its result if it ends in that time. The same "
                "Idempotency-Key and body are the same run, however often they are sent.",
                takes=RunBody,
                gives=RunStatus,
                query=("wait", "once"),
            ),
            Operation("GET", "/v1/runs", self.list, "The runs.", gives=RunPage, query=("state", "limit", "after")),
            Operation("GET", run, self.status, "One run.", gives=RunStatus),
            Operation("DELETE", run, self.cancel, "Cancel it.", gives=RunStatus),
            Operation("POST", f"{run}/cancel", self.cancel, "Cancel it.", gives=RunStatus),
            Operation(
                "GET",
                f"{run}/result",
                self.result,
                "What came of it; 202 with its status while it is open and wait=SECONDS have passed. With once=true "
                "the values of the answer are not among the outputs too.",
                gives=RunResult,
                query=("wait", "once"),
            ),
            Operation(
                "GET",
                f"{run}/events",
                self.events,
                "What happens to it, as server-sent events; with Last-Event-ID from there on.",
                gives=RunEvent,
            ),
            Operation("GET", f"{run}/explain", self.explain, "Why it waited, and why it went where it went."),
        ]

    async def submit(self, request: Request) -> Response:
        body = await body_of(request, RunBody)
        wait_s = number_in(request, "wait", None, _LONGEST_WAIT_S)
        key = request.headers.get("idempotency-key")
        given = asdict(body) | {"input": await self._desk.do(_values, body.input)}
        asked = RunRequest(**given, idempotency_key=key, trace_id=request.state.trace_id)
        if wait_s is None:
            run = await self._desk.do(self._desk.service.submit, asked)
            return await self._status(run, 202)
        return await unless_gone(request, self._waited_for(asked, wait_s, _once(request)))

    async def _waited_for(self, asked: RunRequest, wait_s: float, once: bool) -> Response:
        """Whoever goes meanwhile never knew the id: the run is cancelled. At the end of the time it is told."""
        with await self._desk.submit(asked) as waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    return await self._told(await waiting.result(), once)
            waiting.cancels = False
        return await self._status(waiting.run, 202)

    async def list(self, request: Request) -> Response:
        state = request.query_params.get("state")
        if state is not None and state not in get_args(RunState):
            raise HttpError(400, f"state {state!r}: expected a state{did_you_mean(state, get_args(RunState))}")
        limit = int(number_in(request, "limit", 50, _LARGEST_PAGE) or 1)
        after = request.query_params.get("after")
        found = await self._desk.do(self._desk.service.runs, state, after, limit + 1)  # type: ignore[arg-type]
        shown = list(found[:limit])
        return reply(RunPage(data=shown, next=shown[-1].id if len(found) > limit else None))

    async def status(self, request: Request) -> Response:
        return await self._status(request.path_params["run"])

    async def _status(self, run: str, status: int = 200) -> Response:
        found = await self._desk.do(self._desk.service.status, run)
        return reply(found, status, {"location": f"/v1/runs/{quote(run, safe='')}"} if status == 202 else {})

    async def cancel(self, request: Request) -> Response:
        run = request.path_params["run"]
        why = request.query_params.get("why", "") or "it was asked for"
        await self._desk.do(self._desk.service.cancel, run, why)
        return await self._status(run)

    async def result(self, request: Request) -> Response:
        wait_s = number_in(request, "wait", 0.0, _LONGEST_WAIT_S) or 0.0
        return await unless_gone(request, self._result(request.path_params["run"], wait_s, _once(request)))

    async def _result(self, run: str, wait_s: float, once: bool) -> Response:
        status = await self._desk.do(self._desk.service.status, run)
        if status.state not in ENDED:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    with await self._desk.follow(run) as waiting:
                        return await self._told(await waiting.result(), once)
            return await self._status(run, 202)
        return await self._told(await self._desk.do(self._desk.service.result, run), once)

    async def events(self, request: Request) -> Response:
        run, seen = request.path_params["run"], request.headers.get("last-event-id", "0")
        if not seen.isascii() or not seen.isdecimal() or len(seen) > 18:
            raise HttpError(400, f"Last-Event-ID: expected a number, found {seen!r}", param="last-event-id")
        status = await self._desk.do(self._desk.service.status, run)
        waiting = await self._desk.follow(run, int(seen))
        return EventStream(self._events(waiting, status.state in ENDED), waiting.close)

    async def _events(self, waiting: Waiting, over: bool) -> AsyncGenerator[bytes]:
        while True:
            event = await waiting.next(0.0 if over else HEARTBEAT_S)
            if event is None:
                if over:
                    return
                yield HEARTBEAT
                continue
            yield await self._desk.do(self._sent, waiting.run, event) if event.kind == "node done" else _sent(event)
            if event.kind in ENDED:
                return

    def _sent(self, run: str, event: RunEvent) -> bytes:
        """With what the node gave, in a thread: it may be large."""
        return _sent(replace(event, data=to_json(self._desk.service.output(run, event.node or ""))))

    async def _told(self, result: RunResult, once: bool) -> Response:
        return await self._desk.do(lambda: reply(result.plain(once)))

    async def explain(self, request: Request) -> Response:
        return reply(await self._desk.do(self._desk.service.explain, request.path_params["run"]))


def _once(request: Request) -> bool:
    said = request.query_params.get("once", "false")
    if said not in ("true", "false"):
        raise HttpError(400, f"once: expected true or false, found {said!r}", param="once")
    return said == "true"


def _sent(event: RunEvent) -> bytes:
    return server_event(encode(event), event.kind, event.n)


def _values(given: dict[str, Any]) -> dict[str, Any]:
    try:
        values: dict[str, Any] = from_json(given)
    except (ValueFaultError, RecursionError, ImportError, TypeError, ValueError) as error:
        raise HttpError(400, f"input: {error}", param="input") from None
    return values
