"""What a worker is told and what it tells, as bytes: MessagePack, in which arrays travel as they are.

Nothing is unpickled. A tensor is sent as an array; what is neither text, number, bytes, list, mapping nor array is
refused.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    BackEndError,
    CallFailed,
    Loaded,
    LoadFailed,
    ModelCall,
    Reference,
    Unhealthy,
    Unloaded,
    WorkerReady,
)

_ARRAY, _REFERENCE = 1, 2  # codes among MessagePack's extensions


class LoadModel(Struct, frozen=True, tag=True):
    model: str
    devices: tuple[str, ...]


class UnloadModel(Struct, frozen=True, tag=True):
    model: str
    keep: bool = False


class MakeCall(Struct, frozen=True, tag=True):
    call: ModelCall


class CancelCall(Struct, frozen=True, tag=True):
    call: str


class WorkerBeat(Struct, frozen=True, tag=True):
    """A sign of life, with what the back ends last said of themselves."""

    worker: int
    models: dict[str, dict[str, Any]] = {}


Command = LoadModel | UnloadModel | MakeCall | CancelCall
WorkerReport = WorkerReady | Loaded | Unloaded | LoadFailed | Unhealthy | AnswerPiece | Answer | CallFailed | WorkerBeat


def _pack(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Reference):
        return msgspec.msgpack.Ext(_REFERENCE, msgspec.msgpack.encode((value.handle, value.bytes)))
    if hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, order="C")
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype} cannot be sent")
        head = msgspec.msgpack.encode((array.dtype.str, array.shape))
        return msgspec.msgpack.Ext(_ARRAY, len(head).to_bytes(4, "little") + head + array.tobytes())
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


def _unpack(code: int, data: memoryview) -> Any:
    if code == _REFERENCE:
        return Reference(*msgspec.msgpack.decode(data, type=tuple[str, int]))
    if code != _ARRAY:
        raise ValueError(f"extension {code} is not known")
    end = 4 + int.from_bytes(data[:4], "little")
    dtype, shape = msgspec.msgpack.decode(data[4:end], type=tuple[str, tuple[int, ...]])
    return np.frombuffer(data[end:], dtype).reshape(shape).copy()  # not bound to the message, and may be written to


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
decode_command = msgspec.msgpack.Decoder(Command, ext_hook=_unpack).decode
decode_report = msgspec.msgpack.Decoder(WorkerReport, ext_hook=_unpack).decode
unpack = msgspec.msgpack.Decoder(ext_hook=_unpack).decode


def encode(message: Command | WorkerReport) -> bytes:
    """
    >>> decode_command(encode(CancelCall("7")))
    CancelCall(call='7')
    """
    return pack(message)


def pack(values: Any) -> bytes:
    """
    >>> unpack(pack({"image": b"png", "vector": np.array([1, 2]), "from": Reference("a", 9)}))
    {'image': b'png', 'vector': array([1, 2]), 'from': Reference('a', 9)}
    """
    try:
        return _encoder.encode(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # also of what is nested too deep
        raise BackEndError(str(error), blame="call") from None
