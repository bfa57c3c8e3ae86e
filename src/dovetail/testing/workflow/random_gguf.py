"""A small model of random weights as a GGUF file, for llama.cpp and what is built on it; no package is needed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32
_WIDTH, _INNER, _HEADS, _LAYERS, _CONTEXT = 64, 128, 4, 2, 512
_SPECIAL = ("<unk>", "<s>", "</s>")
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_CONTROL, _NORMAL = 3, 1  # types of tokens


def write_gguf(path: Path, seed: int = 0) -> Path:
    """Write it; the weights of a seed are always the same. Its tokens are the bytes, so it knows any text."""
    tokens = [*_SPECIAL, *_byte_names(), "ĠĠ"]
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": f"random {seed}",
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL] * len(_SPECIAL) + [_NORMAL] * 257,
        "tokenizer.ggml.merges": ["Ġ Ġ"],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    weights = _weights(len(tokens), np.random.default_rng(seed))
    head = [b"GGUF", struct.pack("<IQQ", 3, len(weights), len(values))]
    head += [_text(key) + _value(value) for key, value in values.items()]
    at = 0
    for name, array in weights.items():
        head.append(_text(name) + struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape[::-1]))
        head.append(struct.pack("<IQ", 0, at))  # 0: 32-bit floats
        at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    whole = b"".join(head)
    with path.open("wb") as file:
        file.write(whole + bytes(-len(whole) % _ALIGNMENT))
        for array in weights.values():
            file.write(array.tobytes() + bytes(-array.nbytes % _ALIGNMENT))
    return path


def _weights(words: int, draw: np.random.Generator) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    shapes = {"token_embd": (words, _WIDTH), "output": (words, _WIDTH)}
    for i in range(_LAYERS):
        shapes |= {f"blk.{i}.attn_{part}": (_WIDTH, _WIDTH) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{part}": (_INNER, _WIDTH) for part in ("gate", "up")}
        shapes[f"blk.{i}.ffn_down"] = (_WIDTH, _INNER)
    norms = ["output_norm", *(f"blk.{i}.{part}_norm" for i in range(_LAYERS) for part in ("attn", "ffn"))]
    drawn = {f"{name}.weight": draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return drawn | {f"{name}.weight": np.ones(_WIDTH, np.float32) for name in norms}


def _byte_names() -> list[str]:
    """The characters that stand for bytes in tokenizers of GPT-2's kind."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _STRING if isinstance(value[0], str) else _INT32
        entries = [_text(entry) if kind == _STRING else struct.pack("<i", entry) for entry in value]
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(entries)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<II", _UINT32, value)
