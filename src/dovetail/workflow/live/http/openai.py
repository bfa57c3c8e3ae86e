"""OpenAI's API, where `model` is a model or a whole workflow: chat, completions, embeddings, the list of models.

A workflow's answer is the text of its last node, whose pieces are streamed; where only the end tells which that is,
the text comes in one piece. A client that goes cancels what it asked for. Before the first piece, what goes wrong has a
status of its own; after it, a stream ends with an error.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from dovetail.core.errors import did_you_mean
from dovetail.core.service.http import HttpError, Operation, encode, reply, unless_gone
from dovetail.core.service.streams import HEARTBEAT, HEARTBEAT_S, EventStream, server_event
from dovetail.workflow.live.http.desk import Desk, Waiting, completed
from dovetail.workflow.live.http.openai_types import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ModelRequest,
    TextRequest,
    read_request,
)
from dovetail.workflow.live.runs import ENDED, RunEvent, RunRequest, RunResult

_SILENT = frozenset({"queued", "started", "restarted"})  # what may happen before it is known how an answer begins


class OpenAIHandlers:
    """The handlers of OpenAI's paths."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._began = int(time.time())

    def operations(self) -> list[Operation]:
        return [
            Operation("POST", "/v1/chat/completions", self.chat, "OpenAI's chat completions.", takes=ChatRequest),
            Operation("POST", "/v1/completions", self.complete, "OpenAI's completions.", takes=CompletionRequest),
            Operation("POST", "/v1/embeddings", self.embed, "OpenAI's embeddings.", takes=EmbeddingRequest),
            Operation("GET", "/v1/models", self.models, "Models and workflows, which both can be asked for as models."),
            Operation("GET", "/v1/models/{model:path}", self.model, "One of them."),
        ]

    async def chat(self, request: Request) -> Response:
        return await self._text(request, read_request(await request.body(), ChatRequest), Chat)

    async def complete(self, request: Request) -> Response:
        return await self._text(request, read_request(await request.body(), CompletionRequest), Completion)

    async def _text(self, request: Request, asked: TextRequest, kind: type[TextAnswer]) -> Response:
        runs = [_run(request, asked, input, asked.options(), stream=bool(asked.stream)) for input in asked.inputs()]
        if len(runs) > 1:
            runs = [replace(run, idempotency_key=_nth(run.idempotency_key, n)) for n, run in enumerate(runs)]
        if not asked.stream:
            results = await unless_gone(request, self._results(runs))
            return reply(kind(results[0].id, asked.model).whole(results))
        if len(runs) > 1:
            raise HttpError(400, "prompt: expected one where the answer is streamed", param="prompt")
        info = await self._desk.info(asked.model)
        (work,) = runs
        waiting = await unless_gone(request, self._begun(work))
        answer = kind(waiting.run, asked.model, asked.stream_options is not None and asked.stream_options.include_usage)
        node = asked.model if info is None else "" if info.grows else info.answer
        return EventStream(self._stream(waiting, answer, node), waiting.close)

    async def _result(self, work: RunRequest) -> RunResult:
        with await self._desk.submit(work) as waiting:
            return await waiting.completed()

    async def _results(self, works: list[RunRequest]) -> list[RunResult]:
        """Of several runs at once; if one fails, the others are cancelled."""
        if len(works) == 1:
            return [await self._result(works[0])]
        going = [asyncio.ensure_future(self._result(work)) for work in works]
        try:
            return await asyncio.gather(*going)
        finally:
            for each in going:
                each.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    async def _begun(self, work: RunRequest) -> Waiting:
        """A run whose first words are there, or which takes its time; one that failed before has a status for that."""
        waiting = await self._desk.submit(work)
        try:
            event = await waiting.next(HEARTBEAT_S)
            while event is not None and event.kind in _SILENT:
                event = await waiting.next(HEARTBEAT_S)
            if event is not None:
                if event.kind in ENDED:
                    await self._outcome(waiting.run)
                waiting.put_back(event)
        except BaseException:
            waiting.close()
            raise
        return waiting

    async def _outcome(self, run: str) -> RunResult:
        return completed(await self._desk.do(self._desk.service.result, run))

    async def _stream(self, waiting: Waiting, answer: TextAnswer, node: str) -> AsyncGenerator[bytes]:
        told = StreamedText(node)
        yield answer.chunk("", first=True)
        try:
            while True:
                event = await waiting.next(HEARTBEAT_S)
                if event is None:
                    yield HEARTBEAT
                elif event.kind in ENDED:
                    break
                elif text := told.more(event):
                    yield answer.chunk(text)
            result = await self._outcome(waiting.run)
            if text := told.rest(text_of(result)):
                yield answer.chunk(text)
        except HttpError as error:
            yield server_event(encode(error.body()))
            return
        for chunk in answer.last(result):
            yield chunk
        yield b"data: [DONE]\n\n"

    async def embed(self, request: Request) -> Response:
        asked = read_request(await request.body(), EmbeddingRequest)
        work = _run(request, asked, {"input": asked.texts()} | asked.dovetail.input, {})
        result = await unless_gone(request, self._result(work))
        vectors = result.answer.get("embeddings")
        if vectors is None or len(vectors) != len(asked.texts()):
            found = ", ".join(result.answer) or "nothing"
            raise HttpError(422, f"{asked.model} gives no embeddings, but {found}", param="model", final=True)
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(await self._desk.do(_vectors, vectors, asked.encoding_format == "base64"))
        ]
        usage = None if result.read is None else {"prompt_tokens": result.read, "total_tokens": result.read}
        return reply({"object": "list", "data": data, "model": asked.model, "usage": usage})

    async def models(self, request: Request) -> Response:
        return reply({"object": "list", "data": await self._listed()})

    async def model(self, request: Request) -> Response:
        name, listed = request.path_params["model"], await self._listed()
        for each in listed:
            if each["id"] == name:
                return reply(each)
        hint = did_you_mean(name, [each["id"] for each in listed])
        raise HttpError(404, f"there is no model or workflow {name!r}{hint}", param="model", code="model_not_found")

    async def _listed(self) -> list[dict[str, Any]]:
        return [
            {
                "id": info.name,
                "object": "model",
                "created": self._began,
                "owned_by": "dovetail",
                "kind": "model" if info.implicit else "workflow",
                "models": info.models,
            }
            for info in await self._desk.do(self._desk.service.workflows)
        ]


def _run(
    request: Request, asked: ModelRequest, input: dict[str, Any], options: dict[str, Any], stream: bool = False
) -> RunRequest:
    return RunRequest(
        workflow=asked.model,
        input=input,
        options=options,
        stream=stream,
        tenant=asked.dovetail.tenant,
        weight=asked.dovetail.weight,
        due_s=asked.dovetail.due_s,
        idempotency_key=request.headers.get("idempotency-key"),
        trace_id=request.state.trace_id,
    )


def _nth(key: str | None, number: int) -> str | None:
    return None if key is None else f"{key}#{number}"


def text_of(result: RunResult) -> str:
    """The text of an answer: the output of that name, or the only one that is text."""
    text = result.answer.get("text")
    if isinstance(text, str):
        return text
    texts = [value for value in result.answer.values() if isinstance(value, str)]
    if len(texts) == 1:
        return texts[0]
    found = ", ".join(result.answer) or "nothing"
    raise HttpError(422, f"the answer has no text, but {found}", param="model", code="no_text", final=True)


def _vectors(vectors: Any, packed: bool) -> list[Any]:
    """Vectors as lists, or as OpenAI packs them: base64 of 32-bit floats, the low byte first."""
    import numpy

    rows = numpy.asarray(vectors, "<f4")
    return [base64.b64encode(row.tobytes()).decode() for row in rows] if packed else list(rows.tolist())


class StreamedText:
    """What was sent of a text that may have to be written anew: an attempt that begins with the same words goes on
    unnoticed, another one cannot be mended."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sent, self._again = "", ""

    def more(self, event: RunEvent) -> str:
        """What an event adds."""
        if event.node != self._node:
            return ""
        if event.kind == "restarted":
            self._again = ""
        return self._add(self._again + event.text) if event.kind == "piece" else ""

    def rest(self, text: str) -> str:
        """What the whole text has beyond what was sent; its pieces may have had more, at the ends of lines."""
        whole = text if len(text) >= len(self._again) else self._again
        if len(whole) < len(self._sent.rstrip()):
            raise self._lost()
        return self._add(whole)

    def _add(self, text: str) -> str:
        self._again = text
        if text.startswith(self._sent):
            new, self._sent = text[len(self._sent) :], text
            return new
        if self._sent.startswith(text):
            return ""
        raise self._lost()

    def _lost(self) -> HttpError:
        why = "the answer was lost where it was written, and the next attempt came out otherwise"
        return HttpError(500, why, code="stream_lost")


class TextAnswer:
    """An answer in OpenAI's words, whole or in chunks."""

    prefix, kind, chunk_kind = "", "", ""

    def __init__(self, run: str, model: str, with_usage: bool = False) -> None:
        self._head = {"id": f"{self.prefix}-{run}", "created": int(time.time()), "model": model}
        self._with_usage = with_usage

    def choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, results: list[RunResult]) -> dict[str, Any]:
        choices = [
            {"index": index, **self.choice(text_of(result)), "logprobs": None, "finish_reason": _reason(result)}
            for index, result in enumerate(results)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": _usage(results)}

    def chunk(self, text: str, first: bool = False, reason: str | None = None) -> bytes:
        choice = {"index": 0, **self.delta(text, first), "logprobs": None, "finish_reason": reason}
        return self._event([choice], None)

    def last(self, result: RunResult) -> list[bytes]:
        usage = [self._event([], _usage([result]))] if self._with_usage else []
        return [self.chunk("", reason=_reason(result)), *usage]

    def _event(self, choices: list[Any], usage: Any) -> bytes:
        said = {"usage": usage} if self._with_usage else {}
        return server_event(encode({**self._head, "object": self.chunk_kind, "choices": choices, **said}))


class Chat(TextAnswer):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""} if first else {"content": text} if text else {}}


class Completion(TextAnswer):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        return {"text": text}


def _reason(result: RunResult) -> str:
    return result.finish_reason if result.finish_reason in ("stop", "length", "content_filter") else "stop"


def _usage(results: list[RunResult]) -> dict[str, int] | None:
    """The tokens of all nodes. Nothing is made up: None where a call did not count both what it read and wrote."""
    counts = [(result.read, result.written) for result in results]
    read = sum(each or 0 for each, _ in counts)
    written = sum(each or 0 for _, each in counts)
    if any(None in each for each in counts):
        return None
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
