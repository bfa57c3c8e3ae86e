"""All that a live cluster can be asked over HTTP, and the server that answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_args

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from dovetail.cluster.live.jobs import JobState, JobStatus, UnknownJobError
from dovetail.cluster.live.nodes import ClusterNodeStatus
from dovetail.cluster.live.service import ClusterService
from dovetail.cluster.live.specs import JobSpec
from dovetail.cluster.live.wire import ProcessEvent
from dovetail.core.errors import did_you_mean
from dovetail.core.results.run import Account
from dovetail.core.service.access import TOKEN_FILE, token_in
from dovetail.core.service.http import Face, HttpError, Operation, body_of, number_in, reply, told_as_http, unless_gone
from dovetail.core.service.openapi import document, page
from dovetail.core.service.server import HttpServer, host_names
from dovetail.core.service.streams import EventStream

P = ParamSpec("P")
T = TypeVar("T")
_TITLE = "Dovetail cluster"
_TEXT = "Training jobs on accelerators of several types."
_LONGEST_WAIT_S = 3600.0
_LARGEST_PAGE = 1000
_LOOK_S = 0.2  # at what somebody waits for or follows


class PolicyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is to decide."""

    policy: str
    options: dict[str, Any] = {}


class JobBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are submitted together."""

    jobs: Annotated[list[JobSpec], Meta(min_length=1)]


class JobPage(Struct, frozen=True, kw_only=True):
    """Some of the jobs, the newest first; `after=NEXT` gives more."""

    data: list[JobStatus]
    next: int | None = None


class ClusterServer:
    """A service on HTTP; a context that ends the server and leaves the service as it is.

    `folder` is where clients find the URL and, unless another file is named, the token.
    """

    def __init__(
        self,
        service: ClusterService,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token_file: Path | None = None,
    ) -> None:
        self.token_file = token_file or folder / TOKEN_FILE
        operations = ClusterHandlers(service).operations()
        face = Face(operations, token_in(self.token_file), hosts=host_names(host))
        self._server = HttpServer(face, host=host, port=port, folder=folder)
        self.url = self._server.url

    def start(self) -> ClusterServer:
        self._server.start()
        return self

    def stop(self, grace_s: float = 0.0) -> None:
        self._server.stop(grace_s)

    def __enter__(self) -> ClusterServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ClusterHandlers:
    """What each request asks of the service, in a thread: it may have to wait for a disk or a lock."""

    def __init__(self, service: ClusterService) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        job, node = "/v1/jobs/{job}", "/v1/nodes/{node}"
        return [
            Operation(
                "POST",
                "/v1/jobs",
                self.submit,
                "Submit a job: 202 when it is kept. The same Idempotency-Key and body are the same job.",
                takes=JobSpec,
                gives=JobStatus,
            ),
            Operation(
                "POST",
                "/v1/jobs/batch",
                self.submit_all,
                "Submit jobs, all of them or none: 202 when they are kept.",
                takes=JobBatch,
                gives=list[JobStatus],
            ),
            Operation("GET", "/v1/jobs", self.list, "The jobs.", gives=JobPage, query=("state", "limit", "after")),
            Operation(
                "GET",
                job,
                self.status,
                "One job; with wait=SECONDS when it has ended, or the time is over.",
                gives=JobStatus,
                query=("wait",),
            ),
            Operation("DELETE", job, self.cancel, "Cancel it.", gives=JobStatus),
            Operation("POST", f"{job}/cancel", self.cancel, "Cancel it.", gives=JobStatus),
            Operation(
                "GET",
                f"{job}/logs",
                self.logs,
                "What a rank has written, over all leases; with follow=true until the job has ended.",
                query=("rank", "tail", "follow"),
            ),
            Operation("GET", f"{job}/explain", self.explain, "Why it waited, and where it ran.", gives=Account),
            Operation(
                "GET", f"{job}/timeline", self.timeline, "What its processes went through.", gives=list[ProcessEvent]
            ),
            Operation("GET", "/v1/nodes", self.nodes, "The nodes.", gives=list[ClusterNodeStatus]),
            Operation("POST", f"{node}/drain", self.drain, "Lease nothing more there.", gives=list[ClusterNodeStatus]),
            Operation("POST", f"{node}/undrain", self.undrain, "Use it again.", gives=list[ClusterNodeStatus]),
            Operation("PUT", "/v1/policy", self.policy, "Let another policy decide from now on.", takes=PolicyBody),
            Operation("GET", "/v1/about", self.about, "Policy, counts, types, and what was learned."),
            Operation("GET", "/v1/top", self.top, "The same with nodes, who runs there, and who waits."),
            Operation("GET", "/metrics", self.metrics, "Figures for Prometheus."),
            Operation("GET", "/health", self.health, "Is it there? Always 200 while it is.", public=True),
            Operation("GET", "/ready", self.ready, "Does it take jobs? 503 while it cannot.", public=True),
            Operation("GET", "/openapi.json", self.openapi, "This document.", public=True),
            Operation("GET", "/docs", self.docs, "This document, to be read.", public=True),
        ]

    # --- jobs ---------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        spec = await body_of(request, JobSpec)
        job = await _do(self._service.submit, spec, request.headers.get("idempotency-key"))
        return reply(await _do(self._service.status, job), 202, {"location": f"/v1/jobs/{job}"})

    async def submit_all(self, request: Request) -> Response:
        jobs = await _do(self._service.submit_all, (await body_of(request, JobBatch)).jobs)
        return reply([await _do(self._service.status, job) for job in jobs], 202)

    async def list(self, request: Request) -> Response:
        state = request.query_params.get("state")
        if state is not None and state not in get_args(JobState):
            raise HttpError(400, f"state {state!r}: expected a state{did_you_mean(state, get_args(JobState))}")
        limit, after = int(number_in(request, "limit", 50, _LARGEST_PAGE)) or 1, number_in(request, "after", -1, 1e15)
        last = None if after < 0 else int(after)
        found = await _do(self._service.jobs, state, last, limit + 1)  # type: ignore[arg-type]
        return reply(JobPage(data=found[:limit], next=found[limit - 1].id if len(found) > limit else None))

    async def status(self, request: Request) -> Response:
        wait_s = number_in(request, "wait", 0.0, _LONGEST_WAIT_S)
        return reply(await unless_gone(request, self._ended(_job(request), wait_s)))

    async def _ended(self, job: int, wait_s: float) -> JobStatus:
        """No thread waits: there may be many who do."""
        until = time.monotonic() + wait_s
        while (status := await _do(self._service.status, job)).open and time.monotonic() < until:
            await asyncio.sleep(min(_LOOK_S, wait_s))
        return status

    async def cancel(self, request: Request) -> Response:
        return reply(await _do(self._service.cancel, _job(request)))

    async def explain(self, request: Request) -> Response:
        return reply(await _do(self._service.explain, _job(request)))

    async def timeline(self, request: Request) -> Response:
        return reply(await _do(self._service.timeline, _job(request)))

    async def logs(self, request: Request) -> Response:
        job, rank = _job(request), int(number_in(request, "rank", 0, 1e6))
        tail, follow = number_in(request, "tail", -1, 1e9), request.query_params.get("follow", "false") == "true"
        at = await _do(self._service.log_begin, job, rank, None if tail < 0 else int(tail))
        await _do(self._service.status, job)
        answer = EventStream(self._pieces(job, rank, at, follow))
        answer.headers["content-type"] = "text/plain; charset=utf-8"
        return answer

    async def _pieces(self, job: int, rank: int, at: int, follow: bool) -> AsyncGenerator[bytes]:
        while True:
            piece, at, over = await _do(self._service.log_piece, job, rank, at)
            if piece:
                yield piece
            elif over or not follow:
                return
            else:
                await asyncio.sleep(_LOOK_S)

    # --- the cluster --------------------------------------------------------------------------------------------

    async def nodes(self, request: Request) -> Response:
        return reply(await _do(self._service.nodes))

    async def drain(self, request: Request) -> Response:
        await _do(self._service.drain, request.path_params["node"])
        return await self.nodes(request)

    async def undrain(self, request: Request) -> Response:
        await _do(self._service.undrain, request.path_params["node"])
        return await self.nodes(request)

    async def policy(self, request: Request) -> Response:
        body = await body_of(request, PolicyBody)
        await _do(self._service.change_policy, body.policy, body.options)
        return await self.about(request)

    async def about(self, request: Request) -> Response:
        return reply(await _do(self._service.about))

    async def top(self, request: Request) -> Response:
        return reply(await _do(self._service.top))

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(await _do(self._service.metrics), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        return reply({"status": "healthy"})

    async def ready(self, request: Request) -> Response:
        about = await _do(self._service.about)
        if about["draining"] or about["trouble"]:
            raise HttpError(503, about["trouble"] or "it is about to end, and takes no more jobs", code="not_ready")
        return reply({"status": "ready"})

    async def openapi(self, request: Request) -> Response:
        return reply(document(_TITLE, _TEXT, self.operations()))

    async def docs(self, request: Request) -> Response:
        text = page(document(_TITLE, _TEXT, self.operations()))
        return HTMLResponse(text, headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"})


async def _do(work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Do something in a thread; what the service refuses is an answer with the right status."""
    with told_as_http():
        try:
            return await asyncio.to_thread(work, *args, **more)
        except UnknownJobError as error:
            raise HttpError(404, str(error), code="job_not_found") from error


def _job(request: Request) -> int:
    text = request.path_params["job"]
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise HttpError(404, f"there is no job {text!r}: jobs have numbers", code="job_not_found")
    return int(text)
