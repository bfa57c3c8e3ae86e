"""What OpenAI's clients send: what is taken, what is refused because it would change the answer, what is ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from dovetail.core.files.document import explain
from dovetail.core.service.http import HttpError

T = TypeVar("T", bound="ModelRequest")
Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Text = Annotated[str, Meta(min_length=1, max_length=10_000)]

# Fields that nothing depends on here.
HARMLESS = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_retention"),
}
# Fields that would change the answer, and the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "echo": (False,),
    "suffix": ("",),
    "dimensions": (),
}


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class RunExtras(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What OpenAI's API has no word for; in `extra_body={"dovetail": {...}}` of its client."""

    tenant: str = ""
    weight: float = 1.0
    due_s: float | None = None
    input: dict[str, Any] = {}


class ModelRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all kinds of requests have: a model or workflow."""

    model: str
    dovetail: RunExtras = RunExtras()


class TextRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for text. Options that are not given are left to the model."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None = None
    stop: str | Annotated[list[Text], Meta(max_length=4)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    def options(self) -> dict[str, Any]:
        names = ("max_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return found | ({"stop": [text for text in stop if text]} if stop else {})

    def inputs(self) -> list[dict[str, Any]]:
        """What each run is given: of several prompts each is one."""
        raise NotImplementedError


class TextPart(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ChatMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; beside text, an answer that is sent back may name what it does not have."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def plain(self) -> dict[str, str]:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text()}


class ChatRequest(TextRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/chat/completions`"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None

    def options(self) -> dict[str, Any]:
        most = self.max_completion_tokens
        return super().options() | ({} if most is None else {"max_tokens": most})

    def inputs(self) -> list[dict[str, Any]]:
        """The messages, and the last one of the user's alone, for workflows whose first node takes a text."""
        asked = [message.text() for message in self.messages if message.role == "user"]
        prompt = asked[-1] if asked else self.messages[-1].text()
        return [{"messages": [message.plain() for message in self.messages], "prompt": prompt} | self.dovetail.input]


class CompletionRequest(TextRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/completions`; texts, not tokens."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=128)]

    def inputs(self) -> list[dict[str, Any]]:
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [{"prompt": prompt} | self.dovetail.input for prompt in prompts]


class EmbeddingRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /v1/embeddings`; texts, not tokens."""

    input: str | Annotated[list[str], Meta(min_length=1, max_length=2048)]
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


def read_request(text: bytes, to: type[T]) -> T:
    """A request as it was sent; an error says which field is to blame, and whether it is a mistake or too much."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.ValidationError:
        raise HttpError(400, "expected a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    for name, value in given.items():
        if name in REFUSED and value is not None and not any(_same(value, idle) for idle in REFUSED[name]):
            raise HttpError(400, f"{name}: this service cannot do that", param=name, code="unsupported_parameter")
    known = {name: value for name, value in given.items() if name not in HARMLESS and name not in REFUSED}
    try:
        return msgspec.convert(known, to)
    except msgspec.ValidationError as error:
        keys, message = explain(error, to)
        if keys and keys[-1] == "type" and "content" in keys:
            message += "; expected 'text'"
        place = ".".join(map(str, keys))
        raise HttpError(400, f"{place}: {message}" if place else message, param=place or None) from None


def _same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and bool(one == two)
