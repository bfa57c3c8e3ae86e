"""How many bytes of tensors are alive while a function runs: what it needs, without what the process needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, until they die, and the bytes that operations read and write.

    A view shares its storage, and costs nothing.

    What an operation allocates and frees inside itself is not seen.

    >>> with LiveBytes() as live:
    ...     kept = (torch.ones(256) * 2 + 1).view(16, 16)
    >>> live.highest
    2048
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.highest = self.moved = self.operations = 0
        self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage()._cdata for t in given}
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        fresh = [t for t in made if t.untyped_storage()._cdata not in storages]
        for tensor in fresh:
            self._add(tensor)
        if fresh or func._schema.is_mutable:  # type: ignore[attr-defined]
            self.operations += 1
            self.moved += sum(t.numel() * t.element_size() for t in (*given, *made))
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self._now += size
        self.highest = max(self.highest, self._now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size
