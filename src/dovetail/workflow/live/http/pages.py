"""What a service says of itself: is it there, does it take requests, its figures, and how it is used."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from dovetail.core.service.http import HttpError, Operation, reply
from dovetail.core.service.openapi import document, page
from dovetail.workflow.live.http.desk import Desk

_TITLE = "Dovetail workflows"
_TEXT = "Workflows and models on a pool of GPUs. For OpenAI's clients: base URL /v1, and the token as key."


class PageHandlers:
    """The handlers of pages about the service; those of `others` are described too."""

    def __init__(self, desk: Desk, others: list[Operation]) -> None:
        self._desk = desk
        self._others = others

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/health", self.health, "Is it there? Always 200 while it is.", public=True),
            Operation(
                "GET",
                "/ready",
                self.ready,
                "Does it take requests? 503 while it cannot.",
                public=True,
            ),
            Operation("GET", "/v1/about", self.about, "GPUs and what is on them, models, queues, rates."),
            Operation("GET", "/metrics", self.metrics, "Figures for Prometheus."),
            Operation("GET", "/openapi.json", self.openapi, "This document.", public=True),
            Operation("GET", "/docs", self.docs, "This document, to be read.", public=True),
        ]

    async def health(self, request: Request) -> Response:
        about = await self._desk.do(self._desk.service.about)
        listed = [info for info in await self._desk.do(self._desk.service.workflows) if info.implicit]
        resident = {model for gpu in about["gpus"] for model in gpu["models"]}
        counts = {"models_in_dram": len(resident), "models_on_disk": len(listed), "serving_instances": 0}
        return reply({"status": "healthy", "timestamp": time.time(), **counts})

    async def ready(self, request: Request) -> Response:
        about = await self._desk.do(self._desk.service.about)
        if about["draining"]:
            raise HttpError(503, "it is about to end, and takes no more requests", code="draining")
        if about["trouble"]:
            raise HttpError(503, about["trouble"], code="trouble")
        return reply({"status": "ready"})

    async def about(self, request: Request) -> Response:
        return reply(await self._desk.do(self._desk.service.about))

    async def metrics(self, request: Request) -> Response:
        text = await self._desk.do(self._desk.service.metrics)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return reply(document(_TITLE, _TEXT, [*self._others, *self.operations()]))

    async def docs(self, request: Request) -> Response:
        text = page(document(_TITLE, _TEXT, [*self._others, *self.operations()]))
        return HTMLResponse(text, headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"})
