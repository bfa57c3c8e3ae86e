"""Models for traces that name none of ours: sizes and rates with their source, or a file of the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document
from dovetail.workflow.inputs.system import Model

DEFAULT_PRESET = "llama2-7b"
_DISK_GB_S = 2.0  # what a model is read with at first, as `costs.ssd_gb_s`

# Of an A100 with 80 GB, which is speed 1: medians of splitwise-sim's perf_model.csv (MIT; Patel et al., ISCA 2024), the
# prompt of 2,048 tokens, and 128 tokens after a prompt of 512, one at a time. llama2-7b and 13b were not measured: on
# one GPU they are as many times faster as llama2-70b on two has more parameters per GPU.
_PARAMETERS = {"llama2-7b": 6.74e9, "llama2-13b": 13.02e9, "llama2-70b": 68.98e9, "bloom-176b": 176.25e9}
_WIDTH = {"llama2-70b": 2, "bloom-176b": 8}
_MEASURED = {"llama2-70b": (2976.5, 18.23), "bloom-176b": (3790.0, 20.51)}  # prefill and decode, tokens per second

# How much longer a token takes when so many are written at once (the same file), and memory for a token's keys and
# values: two, 16 bits each, per layer and head that has its own (from the models' published shapes).
_SLOWER = {
    "llama2-70b": {2: 1.092, 4: 1.103, 8: 1.124, 16: 1.193, 32: 1.316},
    "bloom-176b": {2: 1.025, 4: 1.046, 8: 1.086, 16: 1.176, 32: 1.341},
}
_TOKEN_BYTES = {"llama2-7b": 4 * 32 * 4096, "llama2-13b": 4 * 40 * 5120, "llama2-70b": 4 * 80 * 1024}
_TOKEN_BYTES |= {"bloom-176b": 4 * 70 * 14336}
_MOST_AT_ONCE = 32

GPU_TYPES = {"a100": {"memory_gb": 80, "speed": 1.0}, "h100": {"memory_gb": 80, "speed": 1.48}}  # by decoding, likewise


def preset(name: str) -> dict[str, Any]:
    """A model of this name, as it stands in a configuration.

    >>> preset("llama2-70b")["gpus_required"], preset("llama2-7b")["tokens_per_second"]
    (2, 93.3)
    """
    if name not in _PARAMETERS:
        raise InputError(f"model {name!r}: is no preset, nor a file{did_you_mean(name, _PARAMETERS)}")
    width, like = _WIDTH.get(name, 1), name if name in _MEASURED else "llama2-70b"
    faster = _PARAMETERS[like] / _WIDTH[like] / (_PARAMETERS[name] / width)
    prefill, decode = _MEASURED[like]
    memory_gb = round(2 * _PARAMETERS[name] / 2**30, 1)  # 16 bits a parameter
    return {
        "name": name,
        "memory_gb": memory_gb,
        "gpus_required": width,
        "load_time_seconds": round(memory_gb / _DISK_GB_S, 1),
        "prefill_tokens_per_second": round(prefill * faster, 1),
        "tokens_per_second": round(decode * faster, 1),
    }


def serving(name: str, calls: int, read: int, wrote: int, prefixes: bool) -> dict[str, Any]:
    """How many calls a preset serves at once, how fast, and how much it keeps of prefixes, for what a trace asks of it.

    Nine tenths of what the weights leave of 80 GB a GPU holds tokens, half of them of calls under way. Calls at once
    read one after the other, and each token that they write takes as much longer as was measured.

    >>> serving("llama2-7b", 1, 1155, 211, False)["max_concurrency"]
    32
    >>> {n: round(speed, 2) for n, speed in serving("llama2-7b", 1, 1155, 211, False)["concurrency_curve"].items()}
    {2: 0.89, 4: 0.84, 8: 0.74, 16: 0.6, 32: 0.43}
    """
    model = preset(name)
    room = 0.9 * (80 * model["gpus_required"] - model["memory_gb"]) * 2**30 / _TOKEN_BYTES[name] / 2
    read_s, write_s = read / model["prefill_tokens_per_second"], wrote / model["tokens_per_second"]
    most = min(max(int(room * calls / (read + wrote)), 1), _MOST_AT_ONCE)
    slower = _SLOWER.get(name, _SLOWER["llama2-70b"])
    curve = {n: round((read_s + write_s) / (n * read_s + slow * write_s), 4) for n, slow in slower.items()}
    made: dict[str, Any] = {"max_concurrency": most, "concurrency_curve": curve} if most > 1 else {}
    return made | ({"prefix_cache_tokens": int(room)} if prefixes else {})


class ModelChoice:
    """What each model of a trace is taken to be: `given` is one preset or file for all, or one for each name."""

    def __init__(self, given: Any) -> None:
        if given is None or isinstance(given, str | os.PathLike):
            given = {"": given or DEFAULT_PRESET}
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InputError(f"model: expected a preset or a file, or one for each name, found {given!r}")
        self._entries = {name: _entry(name, value) for name, value in given.items()}
        self._files = {name for name, value in given.items() if not isinstance(value, str) or value not in _PARAMETERS}
        self._unused = {name for name in self._entries if name}

    def of(self, name: str, plain: str) -> dict[str, Any]:
        """The model that a trace calls so, or as its plain name."""
        key = next((key for key in (name, plain) if key in self._entries), "")
        self._unused.discard(key)
        return dict(self._entries[key] if key in self._entries else preset(DEFAULT_PRESET))

    def is_preset(self, name: str, plain: str) -> bool:
        key = next((key for key in (name, plain) if key in self._entries), "")
        return key not in self._files

    def finish(self, names: Mapping[str, str]) -> None:
        """All models have been seen: what was said of others is a slip."""
        if self._unused:
            word = min(self._unused)
            raise InputError(f"model {word!r}: the trace has no such model{did_you_mean(word, names)}")


def _entry(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) and (value in _PARAMETERS or not Path(value).exists()):
        return preset(value)
    doc = Document.of(value, f"model {name}" if name else "model")
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected the keys of a model, found {type(doc.data).__name__}")
    doc.convert(doc.data, Model)
    return dict(doc.data)
