"""What models are asked for: text, embeddings, a class, or their tensors as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.workflow.live.backends.batched_decoder import BatchedDecoder, DecodedCall
from dovetail.workflow.live.backends.sampling import Sampling, TokenChoice, sampling_of
from dovetail.workflow.live.backends.text_stream import TextStream
from dovetail.workflow.live.protocol import Answer, BackEndError, Emit, ModelCall

_TEXTS_AT_ONCE = 32


class TorchTask(Protocol):
    """What a loaded model does with its calls."""

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer: ...

    def status(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class ModelTokenizer:
    """A tokenizer that several threads use."""

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self.longest: int | None = getattr(config, "max_position_embeddings", None)
        self.padding = tokenizer.pad_token_id or 0

    def of(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text. Raises `BackEndError` if there are more than the model can read, or none."""
        with self._lock:
            found: list[int] = self._tokenizer(text, add_special_tokens=special).input_ids
        if not found:
            raise BackEndError("the text is empty", "call")
        if self.longest is not None and len(found) > self.longest:
            raise BackEndError(f"the text has {len(found)} tokens; the model reads up to {self.longest}", "call")
        return found

    def of_chat(self, messages: Any) -> list[int]:
        """The tokens of a conversation that the model is to go on with, in its own format, or in a plain one: lines
        of `role: text`, with `assistant:` as the last."""
        plain = [_message(message) for message in messages] if isinstance(messages, list) and messages else None
        if plain is None:
            raise BackEndError(f"messages: expected a list of messages, found {messages!r:.80}", "call")
        if not self._tokenizer.chat_template:
            lines = [f"{message['role']}: {message['content']}" for message in plain]
            return self.of("\n".join((*lines, "assistant:")))
        try:
            text = self._tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template refuses what it cannot do with an error of its own
            raise BackEndError(f"messages: {error}", "call") from None
        return self.of(text, special=False)

    def text(self, tokens: Sequence[int]) -> str:
        with self._lock:
            found: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return found


class Generation:
    """Text that goes on with a prompt or a conversation."""

    def __init__(
        self,
        model: Any,
        tokens: ModelTokenizer,
        folder: Path,
        slots: int,
        device: torch.device,
        *,
        chat: bool,
        defaults: dict[str, Any],
    ) -> None:
        self._tokens = tokens
        self._chat = chat
        own, self._ends = generation_defaults(folder, model.config)
        self._defaults = own | defaults
        sampling_of(self._defaults)
        self._decoder = BatchedDecoder(model, slots, device)

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        given = {name: value for name, value in call.options.items() if value is not None}
        sampling = sampling_of(self._defaults | given)
        prompt = self._prompt(call)
        room = (self._tokens.longest or 1 << 30) - len(prompt)
        if room < 1:
            raise BackEndError(f"the prompt has {len(prompt)} tokens, which leaves none for an answer", "call")
        ends = frozenset() if sampling.ignore_eos else self._ends
        written = _Written(self._tokens, sampling, min(sampling.max_tokens or room, room), ends, call, emit)
        if not stopped.is_set():
            self._decoder.decode(DecodedCall(prompt, TokenChoice(sampling, prompt), written.take, stopped))
        return written.answer(len(prompt))

    def _prompt(self, call: ModelCall) -> list[int]:
        if "messages" in call.inputs:
            return self._tokens.of_chat(call.inputs["messages"])
        text = text_of(call, ("prompt", "text"))
        return self._tokens.of_chat([{"role": "user", "content": text}]) if self._chat else self._tokens.of(text)

    def status(self) -> dict[str, Any]:
        decoder = self._decoder
        return {"healthy": decoder.healthy, "slots": decoder.slots, "steps": decoder.steps, "tokens": decoder.tokens}

    def close(self) -> None:
        self._decoder.close()


class _Written:
    """What one call has written so far."""

    def __init__(
        self, tokens: ModelTokenizer, sampling: Sampling, most: int, ends: frozenset[int], call: ModelCall, emit: Emit
    ) -> None:
        self._tokens, self._most, self._ends, self._call, self._emit = tokens, most, ends, call, emit
        stop = [sampling.stop] if isinstance(sampling.stop, str) else sampling.stop
        self._stream = TextStream(tokens.text, stop) if call.stream or stop else None
        self._ids: list[int] = []
        self._told = 0  # tokens that were emitted
        self._reason = "cancelled"

    def take(self, token: int) -> bool:
        self._ids.append(token)
        text = ""
        if token in self._ends:
            self._reason = "stop"
        else:
            if self._stream is not None:
                text = self._stream.take(token)
            if self._stream is not None and self._stream.stopped:
                self._reason = "stop"
            elif len(self._ids) >= self._most:
                self._reason = "length"
        if not self._told or (self._call.stream and text):
            self._tell(text if self._call.stream else "")
        return self._reason == "cancelled"

    def _tell(self, text: str) -> None:
        self._emit(text, len(self._ids) - self._told)
        self._told = len(self._ids)

    def answer(self, read: int) -> Answer:
        if self._stream is None:
            ids = self._ids[:-1] if self._ids and self._ids[-1] in self._ends else self._ids
            text = self._tokens.text(ids)
        else:
            rest = self._stream.end()
            text = self._stream.text
            if self._call.stream and (rest or self._told < len(self._ids)):
                self._tell(rest)
        return Answer(self._call.id, {"text": text}, read, len(self._ids), self._reason)


class Embedding:
    """A vector for each text: the mean of its tokens' last states, or as the model's own settings say."""

    def __init__(
        self,
        model: Any,
        tokens: ModelTokenizer,
        folder: Path,
        device: torch.device,
        *,
        pooling: str | None,
        normalize: bool | None,
    ) -> None:
        self._model, self._tokens, self._device = model, tokens, device
        own, ends_normal = pooling_of(folder)
        self._pooling = pooling or own
        self._normalize = ends_normal if normalize is None else normalize

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        no_options(call)
        rows = [self._tokens.of(text) for text in texts_of(call)]
        found: list[list[float]] = []
        for mask, outputs in _forwards(self._model, rows, self._tokens.padding, self._device, stopped):
            found += self._pooled(outputs.last_hidden_state, mask).tolist()
        return Answer(call.id, {"embeddings": found}, sum(map(len, rows)), 0, _reason(len(found), len(rows)))

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        states = states.float()
        if self._pooling == "cls":
            pooled = states[:, 0]
        elif self._pooling == "last":
            pooled = states[torch.arange(len(states), device=states.device), mask.to(states.device).sum(1) - 1]
        else:
            weights = mask.to(states.device)[..., None].float()
            pooled = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1) if self._normalize else pooled

    def status(self) -> dict[str, Any]:
        return {"healthy": True}

    def close(self) -> None:
        self._model = None


class Classification:
    """The likeliest class of each text, and how likely each class is."""

    def __init__(self, model: Any, tokens: ModelTokenizer, device: torch.device) -> None:
        self._model, self._tokens, self._device = model, tokens, device
        self._labels = [model.config.id2label[i] for i in range(model.config.num_labels)]

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        no_options(call)
        rows = [self._tokens.of(text) for text in texts_of(call)]
        scores: list[dict[str, float]] = []
        for _, outputs in _forwards(self._model, rows, self._tokens.padding, self._device, stopped):
            shares = outputs.logits.float().softmax(-1).tolist()
            scores += [dict(zip(self._labels, row, strict=True)) for row in shares]
        labels = [max(row, key=row.__getitem__) for row in scores]
        outputs = {"label": labels[0] if labels else None, "labels": labels, "scores": scores}
        return Answer(call.id, outputs, sum(map(len, rows)), 0, _reason(len(scores), len(rows)))

    def status(self) -> dict[str, Any]:
        return {"healthy": True}

    def close(self) -> None:
        self._model = None


class Tensors:
    """What the model computes of one text, every tensor by its name, as an array."""

    def __init__(self, model: Any, tokens: ModelTokenizer, device: torch.device) -> None:
        self._model, self._tokens, self._device = model, tokens, device

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        no_options(call)
        row = self._tokens.of(text_of(call, ("text", "prompt")))
        outputs = {}
        for _, found in _forwards(self._model, [row], self._tokens.padding, self._device, stopped):
            tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
            outputs = {name: (v.float() if v.is_floating_point() else v).cpu().numpy() for name, v in tensors.items()}
        return Answer(call.id, outputs, len(row), 0, _reason(len(outputs), 1))

    def status(self) -> dict[str, Any]:
        return {"healthy": True}

    def close(self) -> None:
        self._model = None


def text_of(call: ModelCall, names: Sequence[str]) -> str:
    """The first input of these names that there is."""
    for name in names:
        if name in call.inputs:
            text = call.inputs[name]
            if isinstance(text, str):
                return text
            raise BackEndError(f"{name}: expected a text, found {text!r:.80}", "call")
    known = ", ".join(call.inputs) or "none"
    if "input" in call.inputs and "input" not in names:  # as embeddings are asked for
        known += ", and gives no embeddings"
    raise BackEndError(f"{call.model} has the inputs {known}; expected {' or '.join(names)}", "call")


def texts_of(call: ModelCall) -> list[str]:
    """The texts of `input`, one or several; else that of `text` or `prompt`."""
    given = call.inputs.get("input")
    if given is None or isinstance(given, str):
        return [given if given is not None else text_of(call, ("text", "prompt"))]
    if not isinstance(given, list | tuple) or not given or not all(isinstance(text, str) for text in given):
        raise BackEndError(f"input: expected a text or several, found {given!r:.80}", "call")
    return list(given)


def no_options(call: ModelCall) -> None:
    for name, value in call.options.items():
        if value is not None:
            raise BackEndError(f"{call.model} writes no text: it has no option {name!r}", "call")


def _message(message: Any) -> dict[str, str]:
    """A message whose content is a text; OpenAI's clients may send it in parts."""
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise BackEndError(f"messages: expected a role and a text as content, found {message!r:.80}", "call")
    return {**message, "role": role, "content": content}


def _reason(done: int, asked: int) -> str:
    return "stop" if done >= asked else "cancelled"


@torch.inference_mode()
def _forwards(
    model: Any, rows: list[list[int]], padding: int, device: torch.device, stopped: Event
) -> Iterator[tuple[Tensor, Any]]:
    """Run texts through a model, some at a time; with each part which tokens are of a text."""
    for at in range(0, len(rows), _TEXTS_AT_ONCE):
        if stopped.is_set():
            return
        part = rows[at : at + _TEXTS_AT_ONCE]
        longest = max(map(len, part))
        ids = torch.tensor([row + [padding] * (longest - len(row)) for row in part], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in part], device=device)
        yield mask, model(input_ids=ids, attention_mask=mask)


def generation_defaults(folder: Path, config: Any) -> tuple[dict[str, Any], frozenset[int]]:
    """How a model's own settings say that it is to be sampled from, and the tokens that end an answer."""
    path = folder / "generation_config.json"
    given: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    found = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("do_sample"):
        found.setdefault("temperature", 1.0)
    else:
        found["temperature"] = 0.0
    if given.get("max_new_tokens"):
        found["max_tokens"] = given["max_new_tokens"]
    ends = given.get("eos_token_id", getattr(config, "eos_token_id", None))
    return found, frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def pooling_of(folder: Path) -> tuple[str, bool]:
    """How sentence-transformers' files say that states become one vector, and whether that has length 1."""
    path, normal = folder / "1_Pooling" / "config.json", False
    given: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    modules = folder / "modules.json"
    if modules.is_file():
        normal = any(str(module.get("type", "")).endswith("Normalize") for module in json.loads(modules.read_text()))
    if given.get("pooling_mode_cls_token"):
        return "cls", normal
    return ("last" if given.get("pooling_mode_lasttoken") else "mean"), normal
