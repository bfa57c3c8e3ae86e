"""The line to a service of workflows, from another process or machine: all that can be asked of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from dovetail.core.errors import DovetailError
from dovetail.core.results.run import Account
from dovetail.core.service.access import AnyPath, find_service
from dovetail.core.service.client import HttpClient, ServiceError
from dovetail.workflow.live.overview import Overview
from dovetail.workflow.live.runs import ENDED, RunEvent, RunResult, RunState, RunStatus
from dovetail.workflow.live.values import from_json, to_json

T = TypeVar("T")
_LONGEST_WAIT_S = 60.0  # of one request for a result; whoever waits longer asks again
_PAGE = 200
_NO_ANSWER = 503  # nobody is there, or not yet


def connect(place: AnyPath | None = None, token_file: AnyPath | None = None) -> WorkflowClient:
    """A line to the service whose state is in this folder, or in the usual one, or which answers at this URL.

    Its token is read from `token_file`, else from that folder, else from the variable DOVETAIL_TOKEN.
    """
    return WorkflowClient(HttpClient(find_service("workflow", place, token_file)))


class WorkflowClient:
    """Asks a service of workflows; any thread may."""

    def __init__(self, line: HttpClient) -> None:
        self._line = line
        self.url = line.address.url

    def __repr__(self) -> str:
        return f"<WorkflowClient of {self.url}>"

    # --- runs -------------------------------------------------------------------------------------------------

    def submit(
        self,
        workflow: str,
        input: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        tenant: str = "",
        weight: float = 1.0,
        due: float | None = None,
        key: str | None = None,
        id: str | None = None,
        stream: bool = False,
    ) -> str:
        """Ask for a run of a workflow or model; gives its id once it is kept.

        Parameters
        ----------
        input
            Values by name: text, numbers, lists, mappings, bytes, arrays.
        options
            Of the node that answers: max_tokens, temperature, seed, ...; `node_configs`: of others, by their names.
        due
            Seconds within which it should be complete.
        key
            The same key and content are the same run, however often it is sent.
        stream
            Tell the pieces of its answer among its events, as they come.
        """
        body = {
            "workflow": workflow,
            "input": to_json(dict(input or {})),
            "options": dict(options or {}),
            "tenant": tenant,
            "weight": weight,
            "due_s": due,
            "id": id,
            "stream": stream,
        }
        headers = {} if key is None else {"idempotency-key": key}
        return str(self._line.ask("POST", "/v1/runs", body, headers=headers)["id"])

    def status(self, run: str) -> RunStatus:
        return msgspec.convert(self._line.get(f"/v1/runs/{_quoted(run)}"), RunStatus)

    def runs(self, state: RunState | None = None, limit: int | None = None) -> list[RunStatus]:
        """The runs, those that came last first; all that are known, or the newest so many."""
        found: list[RunStatus] = []
        after = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._line.get("/v1/runs", state=state, limit=size, after=after)
            found += msgspec.convert(page["data"], list[RunStatus])
            after = page["next"]
            if after is None:
                break
        return found

    def result(self, run: str, timeout: float | None = None) -> RunResult:
        """Wait until a run has ended, and tell what came of it, however it ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_WAIT_S if until is None else max(until - time.monotonic(), 0.0)
            wait_s = round(min(left, _LONGEST_WAIT_S), 3)
            found = self._line.get(f"/v1/runs/{_quoted(run)}/result", wait=wait_s, once="true")
            if found["state"] in ENDED:
                result = msgspec.convert(found, RunResult)
                answer, outputs = from_json(result.answer), from_json(result.outputs)
                if result.answered_by in outputs:  # its values are sent once
                    outputs[result.answered_by] = answer
                return msgspec.structs.replace(result, outputs=outputs, answer=answer)
            if until is not None and time.monotonic() >= until:
                raise DovetailError(f"run {run} has not ended after {timeout:g} s: it is {found['state']}")

    def cancel(self, run: str) -> RunStatus:
        """End a run, whether it waits or runs."""
        return msgspec.convert(self._line.ask("DELETE", f"/v1/runs/{_quoted(run)}"), RunStatus)

    def events(self, run: str, after: int = 0) -> Iterator[RunEvent]:
        """What has happened to a run, and what comes, until its end; from the `after`-th event on. A line that breaks
        is taken up again where it broke."""
        tried = 0
        while True:
            before = after
            try:
                for sent in self._line.events(f"/v1/runs/{_quoted(run)}/events", after):
                    event = msgspec.convert(sent.data, RunEvent)
                    after = event.n
                    yield event
                    if event.kind in ENDED:
                        return
            except ServiceError as error:
                tried = tried + 1 if after == before else 0
                if tried > 1 or error.status != _NO_ANSWER:
                    raise
                continue
            if after == before:
                return  # there is nothing more

    def explain(self, run: str) -> Account:
        """Why it waited, and why it went where it went."""
        return msgspec.convert(self._line.get(f"/v1/runs/{_quoted(run)}/explain"), Account)

    # --- the service ------------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """GPUs and what is on them, models, queues, rates."""
        found: dict[str, Any] = self._line.get("/v1/about")
        return found

    def overview(self, before: Overview | None = None) -> Overview:
        """The service at this moment, as `dovetail workflow top` shows it; rates are since an earlier look."""
        models = [each["id"] for each in self._line.get("/v1/models")["data"] if each["kind"] == "model"]
        return Overview.of(self.url, self.about() | {"models": models}, self.metrics(), before)

    def models(self) -> list[str]:
        """The models and workflows that can be asked for."""
        return [each["id"] for each in self._line.get("/v1/models")["data"]]

    def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        return str(self._line.get("/metrics"))


def _quoted(run: str) -> str:
    """A run's id, which may have any printable characters, as part of a path."""
    return quote(run, safe="")
