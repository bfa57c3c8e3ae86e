"""Values as flat bytes: how they go to another process or machine, and back.

Whatever can be pickled is, but for the numbers of tensors and arrays, wherever they are held: these lie beside.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGN = 64  # bytes; enough for any element, and for vector instructions


class Packed(NamedTuple):
    """A value without its numbers, the tensors and arrays that hold these with their places, and the bytes they take.

    >>> packed = Packed.of({"x": torch.zeros(3, dtype=torch.float64), "scale": 2})
    >>> packed.size, packed.pack(torch.empty(64, dtype=torch.uint8))
    (64, None)
    """

    layout: bytes
    found: list[tuple[int, int, Any]]
    size: int

    @classmethod
    def of(cls, value: Any) -> Packed:
        try:
            return cls._by(pickle.Pickler, value)
        except (pickle.PicklingError, AttributeError, TypeError):
            with suppress(ImportError):
                return cls._by(import_module("cloudpickle").Pickler, value)
            raise

    @classmethod
    def _by(cls, pickler: Any, value: Any) -> Packed:
        found: list[tuple[int, int, Any]] = []

        class Packer(pickler):  # type: ignore[misc]
            def reducer_override(self, held: Any) -> Any:
                if not _is_plain(held):
                    above = getattr(super(), "reducer_override", None)
                    return NotImplemented if above is None else above(held)
                start = -(-found[-1][1] // _ALIGN) * _ALIGN if found else 0
                stop = start + (held.nbytes if isinstance(held, np.ndarray) else held.element_size() * held.numel())
                found.append((start, stop, held))
                return _placed, (type(held) is Tensor, held.dtype, tuple(held.shape), start, stop)

        file = io.BytesIO()
        Packer(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return cls(file.getvalue(), found, -(-found[-1][1] // _ALIGN) * _ALIGN if found else 0)

    def pack(self, buffer: Tensor) -> None:
        """Copy the numbers to their places."""
        for start, stop, held in self.found:
            there = _placed(type(held) is Tensor, held.dtype, tuple(held.shape), start, stop, buffer)
            there.copy_(held.detach()) if isinstance(held, Tensor) else np.copyto(there, held)


def _is_plain(held: Any) -> bool:
    if type(held) is Tensor:
        return held.layout is torch.strided and not held.is_quantized
    return type(held) is np.ndarray and not held.dtype.hasobject


def _placed(
    tensor: bool, dtype: Any, shape: tuple[int, ...], start: int, stop: int, buffer: Tensor, keep: bool = False
) -> Any:
    """A tensor or an array over some of the bytes; `keep`: one of its own."""
    if not prod(shape):
        return torch.empty(shape, dtype=dtype) if tensor else np.empty(shape, dtype)
    there = buffer[start:stop]
    if tensor:
        view = there.view(dtype).view(shape)
        return view.clone() if keep else view
    array = there.numpy().view(dtype).reshape(shape)
    return array.copy() if keep else array


class _Unpickler(pickle.Unpickler):
    def __init__(self, layout: bytes, buffer: Tensor, keep: bool) -> None:
        super().__init__(io.BytesIO(layout))
        self._put = partial(_placed, buffer=buffer, keep=keep)

    def find_class(self, module: str, name: str) -> Any:
        return self._put if (module, name) == (__name__, "_placed") else super().find_class(module, name)


def unpack(layout: bytes, buffer: Tensor, keep: bool = False) -> Any:
    """The value again; its tensors and arrays are views of the bytes, unless it shall keep them."""
    return _Unpickler(layout, buffer, keep).load()


Parcel = tuple[str, int, bytes]  # where the bytes are if the place is new, how many, and the layout


class Sender:
    """Bytes in shared memory that another process reads; they are used again for the next tree, and grow with it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._memory: _Memory | None = None
        self._sent: bytes | None = None  # the layout that the receiver has
        self._new = False  # it does not know of this memory yet

    def send(self, tree: Any) -> Parcel | None:
        """What to tell the receiver; None if all is as the last time but for the values."""
        packed = Packed.of(tree)
        if packed.size > len(self._buffer):
            self.close()
            self._memory = _Memory(packed.size + packed.size // 2)
            self._buffer, self._new = self._memory.bytes, True
        packed.pack(self._buffer)
        if packed.layout == self._sent and not self._new:
            return None
        path = self._memory.path if self._new and self._memory is not None else ""
        self._sent, self._new = packed.layout, False
        return path, len(self._buffer), packed.layout

    def repeat(self) -> None:
        """The last parcel did not arrive: the next one must say everything."""
        self._sent, self._new = None, self._memory is not None

    def close(self) -> None:
        """Let the bytes go; who received them may still read them."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class Receiver:
    """The other end of a Sender."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._layout = b""

    def receive(self, parcel: Parcel | None, keep: bool = False) -> Any:
        """The tree; unless it is kept, its tensors are valid until the sender sends again."""
        if parcel is not None:
            path, size, self._layout = parcel
            if path:
                self._buffer = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        return unpack(self._layout, self._buffer, keep)


class _Memory:
    """Bytes that another process of the same user can map by a path.

    Where the system can, they have no name: nothing stays behind, however the processes end.
    """

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self._handle = os.memfd_create("dovetail")
            self.path = f"/proc/{os.getpid()}/fd/{self._handle}"
        else:
            self._handle, self.path = tempfile.mkstemp(prefix="dovetail-")
        os.truncate(self._handle, size)
        self.bytes = torch.from_file(self.path, shared=True, size=size, dtype=torch.uint8)

    def close(self) -> None:
        os.close(self._handle)
        if not self.path.startswith("/proc/"):
            os.unlink(self.path)
