"""Calls of KServe's version 2 (Triton and others): tensors in and out, as bytes where the server can take them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import did_you_mean
from dovetail.workflow.live.backends.http_client import ServerClient
from dovetail.workflow.live.protocol import BackEndError

HEADER = "Inference-Header-Content-Length"  # of an answer or a question: how much of it is JSON, before the bytes
_DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


def metadata(client: ServerClient, model: str) -> dict[str, Any]:
    """The model's inputs, and whether tensors may be sent as bytes."""
    reply = client.ask(f"/v2/models/{quote(model)}")
    if not reply.ok:
        reply.fail()
    extensions = client.ask("/v2").json().get("extensions", [])
    return {**reply.json(), "binary": "binary_tensor_data" in extensions}


def request(model: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The question with these values by name, and its headers."""
    described, tails = [], []
    for entry in model["inputs"]:
        name, kind = entry["name"], entry["datatype"]
        if name not in values:
            raise BackEndError(f"{model['name']} needs an input {name!r}{did_you_mean(name, values)}", "call")
        array = _array(values[name], kind, name)
        if len(array.shape) != len(entry["shape"]):
            raise BackEndError(f"input {name!r} has shape {list(array.shape)}, expected {entry['shape']}", "call")
        tensor: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": kind}
        if model["binary"]:
            raw = _bytes_of(array) if kind == "BYTES" else array.tobytes()
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tails.append(raw)
        else:
            tensor["data"] = array.ravel().tolist()
        described.append(tensor)
    body: dict[str, Any] = {"inputs": described}
    if not model["binary"]:
        return json.dumps(body).encode(), {}
    head = json.dumps({**body, "parameters": {"binary_data_output": True}}).encode()
    return b"".join((head, *tails)), {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def outputs(body: bytes, head_bytes: str | None) -> dict[str, Any]:
    """Values by name: arrays, and texts as text (one alone, or nested lists of them)."""
    end = int(head_bytes) if head_bytes else len(body)
    try:
        head = json.loads(body[:end])
        found = {}
        for entry in head["outputs"]:
            size = entry.get("parameters", {}).get("binary_data_size")
            raw = body[end : end + size] if size is not None else None
            end += size or 0
            found[entry["name"]] = _value(entry, raw)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise BackEndError(f"not an answer with tensors ({error}): {body[:200]!r}") from None
    return found


def _array(value: Any, kind: str, name: str) -> NDArray[Any]:
    try:
        if kind == "BYTES":
            return np.asarray(value, dtype=object)
        return np.ascontiguousarray(value, dtype=_DTYPES[kind])
    except KeyError:
        raise BackEndError(
            f"input {name!r} is {kind}, which is not known; known: {', '.join(_DTYPES)}, BYTES"
        ) from None
    except (ValueError, TypeError) as error:
        raise BackEndError(f"input {name!r} is no tensor of {kind}: {error}", "call") from None


def _bytes_of(array: NDArray[Any]) -> bytes:
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _value(entry: Mapping[str, Any], raw: bytes | None) -> Any:
    kind, shape = entry["datatype"], entry["shape"]
    if kind != "BYTES":
        data = entry["data"] if raw is None else np.frombuffer(raw, _DTYPES[kind])
        return np.array(data, dtype=_DTYPES[kind]).reshape(shape)
    texts = list(entry["data"]) if raw is None else list(_texts(raw))
    if len(texts) != prod(shape):
        raise ValueError(f"{len(texts)} texts for shape {shape}")
    if len(texts) == 1:
        return texts[0]
    whole = np.empty(len(texts), dtype=object)
    whole[:] = texts
    return whole.reshape(shape).tolist()


def _texts(raw: bytes) -> Any:
    at = 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        text = raw[at + 4 : at + 4 + size]
        at += 4 + size
        try:
            yield text.decode()
        except UnicodeDecodeError:
            yield text
