"""Trees of tensors as flat bytes: how they go to another process or machine, and back."""

from __future__ import annotations

import os
import tempfile
from math import prod
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from dovetail.dispatch.inputs.batch import leaves, mapped

_ALIGN = 64  # bytes; enough for any element, and for vector instructions
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})  # what is equal if it says so, and stays as it is


class TensorPlace(Struct, frozen=True):
    """A tensor's place among the bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    stop: int


def layout_of(tree: Any) -> tuple[Any, int]:
    """The same tree with places instead of tensors, and how many bytes they take. What is no tensor stays.

    >>> layout, size = layout_of({"x": torch.zeros(3, dtype=torch.float64), "scale": 2})
    >>> layout["x"].shape, layout["scale"], size
    ((3,), 2, 64)
    """
    size = 0

    def place(leaf: Any) -> Any:
        nonlocal size
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or leaf.is_quantized:
            return leaf
        offset, stop = size, size + leaf.element_size() * leaf.numel()
        size = -(-stop // _ALIGN) * _ALIGN
        return TensorPlace(leaf.dtype, tuple(leaf.shape), offset, stop)

    return mapped(place, tree), size


def pack(tree: Any, layout: Any, buffer: Tensor) -> None:
    """Copy the tensors to their places."""
    for (_, place), (_, leaf) in zip(leaves(layout), leaves(tree), strict=True):
        if isinstance(place, TensorPlace):
            _view(buffer, place).copy_(leaf.detach())


def unpack(layout: Any, buffer: Tensor) -> Any:
    """The tree again; its tensors are views of the bytes."""
    return mapped(lambda leaf: _view(buffer, leaf) if isinstance(leaf, TensorPlace) else leaf, layout)


def _view(buffer: Tensor, place: TensorPlace) -> Tensor:
    if not prod(place.shape):
        return torch.empty(place.shape, dtype=place.dtype)
    return buffer[place.offset : place.stop].view(place.dtype).view(place.shape)


Parcel = tuple[str, int, Any]  # where the bytes are if the place is new, how many, and the layout


class Sender:
    """Bytes in shared memory that another process reads; they are used again for the next tree, and grow with it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._memory: _Memory | None = None
        self._sent: Any = None  # the layout that the receiver has
        self._new = False  # it does not know of this memory yet

    def send(self, tree: Any) -> Parcel | None:
        """What to tell the receiver; None if all is as the last time but for the values."""
        layout, size = layout_of(tree)
        if size > len(self._buffer):
            self.close()
            self._memory = _Memory(size + size // 2)
            self._buffer, self._new = self._memory.bytes, True
        pack(tree, layout, self._buffer)
        others = [type(leaf) for _, leaf in leaves(layout) if type(leaf) is not TensorPlace]
        sent = (layout, others) if _PLAIN.issuperset(others) else None
        if sent is not None and sent == self._sent and not self._new:
            return None
        path = self._memory.path if self._new and self._memory is not None else ""
        self._sent, self._new = sent, False
        return path, len(self._buffer), layout

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
        self._layout: Any = None

    def receive(self, parcel: Parcel | None) -> Any:
        """The tree; its tensors are valid until the sender sends again."""
        if parcel is not None:
            path, size, self._layout = parcel
            if path:
                self._buffer = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        return unpack(self._layout, self._buffer)


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
