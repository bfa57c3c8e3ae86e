"""The values that nodes pass on: text, numbers, lists, mappings, bytes and tensors; their sizes, and their JSON."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from dovetail.workflow.live.protocol import BackEndError, Reference

MIB = 1 << 20
Fetch = Callable[[Reference], Any]
_PLAIN = (str, bytes, bool, int, float, type(None))
_TENSOR = {"shape", "dtype", "data"}
_DEEPEST = 200  # levels of lists and mappings
_NUMBERS = "biufc"  # kinds of numpy's types: truth values, whole, real and complex numbers
_NO_NUMBERS = {"nan", "inf", "-inf"}  # that JSON has no word for


class ValueFaultError(BackEndError):
    """Values are not what they must be; it is the call, or what it answered, that is to blame."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "call")


def _torch() -> Any:
    """Torch, if somebody has imported it, and is done with that."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "bfloat16") and hasattr(torch, "Tensor") else None


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def inside(value: Any) -> Iterator[Any]:
    """A value and all that it holds; what cannot be passed on is a fault."""
    stack = [(value, 0)]
    while stack:
        value, depth = stack.pop()
        held: list[Any] = []
        if depth > _DEEPEST:
            raise ValueFaultError(f"values within values, more than {_DEEPEST} deep, or a value that holds itself")
        if isinstance(value, Mapping):
            if wrong := [key for key in value if not isinstance(key, str)]:
                raise ValueFaultError(f"a mapping has the key {wrong[0]!r}; expected text")
            held = [*value.values()]
        elif isinstance(value, list | tuple):
            held = [*value]
        elif not isinstance(value, (*_PLAIN, np.ndarray, np.generic, Reference)) and not _is_tensor(value):
            expected = "expected text, numbers, lists, mappings, bytes or tensors"
            raise ValueFaultError(f"a value of type {type(value).__module__}.{type(value).__qualname__}; {expected}")
        if isinstance(value, np.ndarray) and value.dtype.kind not in _NUMBERS:
            raise ValueFaultError(f"an array of {value.dtype.name}; expected numbers, or a list")
        yield value
        stack += [(part, depth + 1) for part in reversed(held)]


def size_of(value: Any) -> int:
    """Bytes that a value takes, about; what stays in an object store counts nothing.

    >>> size_of({"text": "abc", "image": bytes(100)})
    112
    """
    size = 0
    for part in inside(value):
        if isinstance(part, str):
            size += len(part) if part.isascii() else len(part.encode(errors="surrogatepass"))
        elif isinstance(part, Mapping):
            size += sum(map(len, part)) if part else 0
        elif isinstance(part, bytes):
            size += len(part)
        elif isinstance(part, np.ndarray | np.generic) or _is_tensor(part):
            size += part.nbytes
        elif not isinstance(part, list | tuple | Reference):
            size += 8
    return size


def text_of(value: Any, fetch: Fetch | None = None) -> str:
    """A value as a prompt shows it: text as it is, nothing as nothing, all else as JSON."""
    value = fetched(value, fetch)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    for part in inside(value):
        if isinstance(part, bytes | np.ndarray) or _is_tensor(part):
            raise ValueFaultError(
                f"a prompt can show text and JSON, found {'bytes' if type(part) is bytes else 'a tensor'}"
            )
    return msgspec.json.encode(to_json(value)).decode()


def fetched(value: Any, fetch: Fetch | None) -> Any:
    """The value itself, of a reference to one."""
    if not isinstance(value, Reference):
        return value
    if fetch is None:
        raise ValueFaultError(
            f"a value of {value.bytes:,} bytes stays in an object store, which cannot be read from here"
        )
    return fetch(value)


def to_json(value: Any) -> Any:
    """A value as JSON can hold it: bytes as `{"base64": ...}`, tensors as `{"shape", "dtype", "data"}`, and
    what is no number as `{"float": "nan"}`.

    >>> to_json({"image": b"png", "vector": np.array([1, 2], dtype="<f4")})
    {'image': {'base64': 'cG5n'}, 'vector': {'shape': [2], 'dtype': 'float32', 'data': 'AACAPwAAAEA='}}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    if isinstance(value, _PLAIN):
        return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if _is_tensor(value):
        return _tensor_json(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _NUMBERS:
            raise ValueFaultError(f"an array of {value.dtype.name}; expected numbers, or a list")
        data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        return {"shape": list(value.shape), "dtype": value.dtype.name, "data": b64encode(data.tobytes()).decode()}
    if isinstance(value, Reference):
        return {"reference": value.handle, "bytes": value.bytes}
    raise ValueFaultError(f"a value of type {type(value).__qualname__} has no JSON")


def _tensor_json(tensor: Any) -> dict[str, Any]:
    torch, plain = _torch(), tensor.detach().cpu()
    as_numpy = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).contiguous().numpy()
    return {**to_json(as_numpy), "dtype": str(plain.dtype).removeprefix("torch."), "of": "torch"}


def from_json(value: Any, depth: int = 0) -> Any:
    """The value that `to_json` was given; tensors of torch only where that is imported already, else numpy's.

    >>> from_json({"image": {"base64": "cG5n"}, "vector": {"shape": [2], "dtype": "float32", "data": "AACAPwAAAEA="}})
    {'image': b'png', 'vector': array([1., 2.], dtype=float32)}
    """
    if depth > _DEEPEST:
        raise ValueFaultError(f"values within values, more than {_DEEPEST} deep")
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"base64"}:
        return _bytes(value["base64"])
    if value.keys() == {"float"} and value["float"] in _NO_NUMBERS:
        return float(value["float"])
    if value.keys() - {"of"} == _TENSOR:
        return _tensor(value)
    return {key: from_json(item, depth + 1) for key, item in value.items()}


def _bytes(text: Any) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Error, TypeError, ValueError):
        raise ValueFaultError("base64: expected bytes in base64") from None


def _tensor(value: Mapping[str, Any]) -> Any:
    dtype, data = value["dtype"], _bytes(value["data"])
    try:
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
        if stored.kind not in _NUMBERS:
            raise ValueError("expected numbers")
        array = np.frombuffer(bytearray(data), dtype=stored).reshape(value["shape"])
    except (TypeError, ValueError) as error:
        found = f"shape {value['shape']!r}, dtype {dtype!r}, {len(data)} bytes"
        raise ValueFaultError(f"expected a tensor as shape, dtype and data, found {found}: {error}") from None
    array = array.astype(stored.newbyteorder("="), copy=False)
    if dtype == "bfloat16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    kind = getattr(_torch(), dtype, None) if value.get("of") == "torch" else None
    return array if kind is None else _torch().from_numpy(array).to(kind)
