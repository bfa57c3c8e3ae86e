"""Prompts from files or from Python, as token ids; and what follows them, written down."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document
from dovetail.core.files.output import written_whole
from dovetail.pipeline.models.spec import ModelSpec, one_line


class Prompts:
    """Token ids of prompts. A text needs the tokenizer in the model's folder, which then also reads what follows."""

    def __init__(self, given: Any, model: ModelSpec) -> None:
        """`given` is a file with a list, or the list: of texts, or of lists of token ids."""
        where = str(given) if isinstance(given, str | os.PathLike) else "generate"
        data = Document.of(given, "generate").data if isinstance(given, str | os.PathLike) else given
        if not isinstance(data, list | tuple) or not data:
            raise InputError(f"{where}: expected a list of prompts, found {data!r:.80}")
        self._tokenizer: Any = _tokenizer(model) if any(isinstance(prompt, str) for prompt in data) else None
        self.ids = [self._read(where, number, prompt) for number, prompt in enumerate(data)]

    def _read(self, where: str, number: int, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            prompt = self._tokenizer(prompt)["input_ids"]
        elif hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if not isinstance(prompt, list | tuple) or not prompt or any(type(token) is not int for token in prompt):
            raise InputError(f"{where}: prompt {number + 1}: expected a text or token ids, found {prompt!r:.80}")
        return list(prompt)

    def check(self, config: Any, max_new_tokens: int) -> None:
        """Refuse prompts that the model cannot read, or go on with so far."""
        text = config.get_text_config(decoder=True)
        longest = getattr(text, "max_position_embeddings", None)
        for number, prompt in enumerate(self.ids, 1):
            if wrong := [token for token in prompt if not 0 <= token < text.vocab_size]:
                raise InputError(f"prompt {number}: token {wrong[0]}: expected 0 to {text.vocab_size - 1}")
            if longest is not None and len(prompt) + max_new_tokens > longest:
                raise InputError(
                    f"prompt {number}: {len(prompt)} tokens and --max-new-tokens {max_new_tokens}: the model reads "
                    f"{longest} at most"
                )

    def write(self, path: Path, tokens: Sequence[Sequence[int]]) -> None:
        """A list with the prompt and what follows it; with texts where the prompts are."""
        rows = []
        for prompt, found in zip(self.ids, tokens, strict=True):
            row: dict[str, Any] = {"prompt": prompt, "tokens": list(found)}
            if self._tokenizer is not None:
                row["text"] = self._tokenizer.decode(row["tokens"], skip_special_tokens=True)
            rows.append(row)
        with written_whole(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")


def end_tokens(config: Any) -> frozenset[int]:
    """The tokens that end a sequence."""
    found = getattr(config.get_text_config(decoder=True), "eos_token_id", None)
    return frozenset(found if isinstance(found, list | tuple) else [] if found is None else [found])


def _tokenizer(model: ModelSpec) -> Any:
    folder = Path(model.source.removeprefix("hf:"))
    folder = folder if folder.is_dir() else folder.parent
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the library finds missing or wrong
        raise InputError(f"{folder}: no tokenizer, so prompts must be token ids: {one_line(error)}") from error
