"""All that a service of workflows can be asked over HTTP, in one face, and the server that shows it."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.service.access import TOKEN_FILE, token_in
from dovetail.core.service.http import Face
from dovetail.core.service.server import HttpServer, host_names
from dovetail.workflow.live.http.desk import Desk, RunService
from dovetail.workflow.live.http.model_server import ModelServerHandlers
from dovetail.workflow.live.http.openai import OpenAIHandlers
from dovetail.workflow.live.http.pages import PageHandlers
from dovetail.workflow.live.http.runs import RunHandlers

DEFAULT_MOST_BYTES = 64 << 20


class WorkflowServer:
    """A service on HTTP; a context that ends the server and leaves the service as it is.

    `folder` is where clients find the URL and, unless another file is named, the token.
    """

    def __init__(
        self,
        service: RunService,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token_file: Path | None = None,
        most_bytes: int = DEFAULT_MOST_BYTES,
    ) -> None:
        self.token_file = token_file or folder / TOKEN_FILE
        token = token_in(self.token_file)
        self._desk = Desk(service)
        asked = [
            *RunHandlers(self._desk).operations(),
            *OpenAIHandlers(self._desk).operations(),
            *ModelServerHandlers(self._desk).operations(),
        ]
        pages = PageHandlers(self._desk, asked).operations()
        face = Face([*asked, *pages], token, hosts=host_names(host), most_bytes=most_bytes)
        self._server = HttpServer(face, host=host, port=port, folder=folder)
        self.url = self._server.url

    def start(self) -> WorkflowServer:
        self._desk.start()
        self._server.start()
        return self

    def stop(self, grace_s: float = 0.0) -> None:
        """Take no more requests; what is still being answered has so long."""
        self._server.stop(grace_s)
        self._desk.close()

    def __enter__(self) -> WorkflowServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
