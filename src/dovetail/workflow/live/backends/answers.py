"""What a server of OpenAI's API answers, put together: text, tokens, how it ended; whether it is whole, and whose."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from dovetail.workflow.live.backends.http_client import failure
from dovetail.workflow.live.backends.swapping import same_model
from dovetail.workflow.live.protocol import Answer, BackEndError, Emit, ModelCall

_ASKED_OTHERWISE = {"model", "messages", "prompt", "input", "stream", "stream_options", "encoding_format"}
_LOST_ON_THE_WAY = {"n", "best_of", "echo", "logprobs", "top_logprobs", "tools", "tool_choice", "functions"}
REFUSED = frozenset(_ASKED_OTHERWISE | _LOST_ON_THE_WAY | {"function_call"})


class StreamedAnswer:
    """An answer as it comes. It is whole once the server has given a reason for its end (`finish_reason`): not every
    server says `[DONE]`, and one that says it, or hangs up, after half an answer is not believed."""

    def __init__(self, call: ModelCall, model: str, emit: Emit) -> None:
        self._call, self._model, self._emit = call, model, emit
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._tokens = 0
        self._usage: dict[str, Any] = {}
        self._finish: str | None = None
        self._embeddings: list[list[float]] | None = None

    def take_stream(self, events: Iterable[str]) -> bool:
        """Whether there was anything in it."""
        data = ""
        for data in events:
            if data == "[DONE]":
                break
            try:
                chunk = json.loads(data)
            except ValueError:
                raise BackEndError(f"a piece of the answer is not JSON: {data[:200]}") from None
            self._take(chunk, "delta")
        if self._finish is None and data:
            raise BackEndError(f"the answer was cut short after {self._tokens} tokens: no finish_reason")
        return bool(data)

    def take_whole(self, value: Any) -> None:
        self._take(value, "message")
        if self._finish is None:
            raise BackEndError("the answer has no finish_reason")

    def take_embeddings(self, value: Any, texts: list[Any]) -> None:
        self._check(value)
        try:
            entries = sorted(value["data"], key=lambda entry: int(entry.get("index", 0)))
            self._embeddings = [[float(number) for number in entry["embedding"]] for entry in entries]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BackEndError(f"not embeddings: {str(value)[:200]}") from None
        if len(self._embeddings) != len(texts):
            raise BackEndError(f"{len(self._embeddings)} embeddings for {len(texts)} texts")
        self._usage = value.get("usage") or {}
        self._finish = "stop"

    def _take(self, value: Any, part: str) -> None:
        self._check(value)
        self._usage = value.get("usage") or self._usage
        choices = value.get("choices")
        if not choices:
            if not value.get("usage"):
                raise BackEndError(f"not a completion: {str(value)[:200]}")
            return
        choice = choices[0]
        spoken = choice.get(part) or {}
        thought = spoken.get("reasoning_content") or spoken.get("reasoning") or ""
        text = spoken.get("content") or choice.get("text") or ""
        if text or thought:
            if self._call.stream or not self._tokens:
                self._emit(text if self._call.stream else "", 1)
            self._tokens += 1
            self._texts.append(text)
            self._thoughts.append(thought)
        self._finish = choice.get("finish_reason") or self._finish

    def _check(self, value: Any) -> None:
        """That it is no error, and that the model that was asked has answered."""
        if not isinstance(value, dict):
            raise BackEndError(f"not an answer: {str(value)[:200]}")
        if error := value.get("error"):
            raise failure(f"in its answer: {_words(error)}", _blame(error))
        if (answered := value.get("model")) and not same_model(self._model, str(answered)):
            raise BackEndError(f"{answered!r} answered when {self._model!r} was asked")

    def end(self, stopped: bool) -> Answer:
        """All of it; of one that was stopped, what there is."""
        finish = "cancelled" if stopped and self._finish is None else self._finish or "stop"
        read = self._usage.get("prompt_tokens")
        if self._embeddings is not None:
            return Answer(self._call.id, {"embeddings": self._embeddings}, read, 0, finish)
        outputs = {"text": "".join(self._texts)}
        if thoughts := "".join(self._thoughts):
            outputs["reasoning"] = thoughts
        return Answer(self._call.id, outputs, read, self._usage.get("completion_tokens", self._tokens), finish)


def _words(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _blame(error: Any) -> Literal["call", "place"]:
    code = str(error.get("code") or error.get("type")) if isinstance(error, dict) else ""
    return "call" if code.startswith("4") or code == "invalid_request_error" else "place"
