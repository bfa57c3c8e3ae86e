"""Memory of the host for results: few large pages for many small ones, and there before it is written to."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

from torch import Tensor

_MUCH = 1 << 20  # bytes, below which memory comes soon enough by itself
_LARGE_PAGES = 4 << 20  # bytes, from which NumPy asks for them too
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HUGEPAGE, _POPULATE_WRITE = 14, 23  # of Linux' madvise


def with_large_pages(tensor: Tensor) -> Tensor:
    """The tensor, which is new: where the system can, its memory comes, and goes, in pages of 2 MiB.

    >>> import torch
    >>> with_large_pages(torch.empty(1 << 21)).shape
    torch.Size([2097152])
    """
    if tensor.is_cpu and _bytes(tensor) >= _LARGE_PAGES:
        _advise(tensor, _HUGEPAGE)
    return tensor


def populate(place: Tensor) -> None:
    """Have the system give a tensor of the host its memory now, while one waits anyway, and not at the first write.

    What is there already stays as it is; where the system cannot do it, nothing happens.
    """
    if place.is_contiguous() and _bytes(place) >= _MUCH:
        _advise(place, _POPULATE_WRITE)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _advise(tensor: Tensor, what: int) -> None:
    if (madvise := _madvise()) is None:
        return
    start = -(-tensor.data_ptr() // _PAGE) * _PAGE
    stop = (tensor.data_ptr() + _bytes(tensor)) // _PAGE * _PAGE
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), what)


@cache
def _madvise() -> Any:
    return getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
