"""The keys and values of a batch whose sequences come and go.

Sequences end at the same place and begin wherever they must: what is before one is zero, and masked. So every step
writes one column, for all of them. Memory grows by more than is asked for, so that a step copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_ROOM = 256  # tokens that are asked for ahead, or
_SPARE = 8  # this part of those there are, if that is more: room that is never used must not be much of the memory


def _with_room(length: int) -> int:
    return length + max(_ROOM, length // _SPARE)


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer of a cache that has room for tokens to come. With `at`, a column that a tensor tells, a token is written
    there and all columns are given: whatever they hold, places and sizes stay the same."""

    length = 0
    at: Tensor | None = None
    keys: Any
    values: Any

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.at is not None:
            self.keys.index_copy_(2, self.at, key_states)
            self.values.index_copy_(2, self.at, value_states)
            return self.keys, self.values
        length = self.length + key_states.shape[-2]
        if not self.is_initialized or length > self.keys.shape[-2]:
            self._make_room(key_states, value_states, length)
        self.keys[:, :, self.length : length] = key_states
        self.values[:, :, self.length : length] = value_states
        self.length = length
        return self.keys[:, :, :length], self.values[:, :, :length]

    def _make_room(self, keys: Tensor, values: Tensor, length: int) -> None:
        room = _with_room(length)
        new = [one.new_zeros((*one.shape[:2], room, one.shape[-1])) for one in (keys, values)]
        if self.is_initialized:
            for one, old in zip(new, (self.keys, self.values), strict=True):
                one[:, :, : self.length] = old[:, :, : self.length]
        self.keys, self.values = new
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def get_seq_length(self) -> int:
        return self.length


class SequenceCache(Cache):
    """The cache of one sequence or of several, with as many layers as a model asks for."""

    layers: Any

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RoomyLayer)

    @property
    def length(self) -> int:
        return int(self.layers[0].length) if self.layers else 0

    def back_to(self, length: int) -> None:
        """Forget what came behind so many tokens."""
        for layer in self.layers:
            layer.length = length

    @contextmanager
    def in_place(self, at: Tensor) -> Iterator[None]:
        """Tokens are written at a column that a tensor tells, and all columns are given."""
        for layer in self.layers:
            layer.at = at
        try:
            yield
        finally:
            for layer in self.layers:
                layer.at = None

    def keep(self, rows: Sequence[int], length: int) -> None:
        """Only these sequences are left, the longest of which has so many tokens."""
        for layer in self.layers:
            start = layer.length - length
            layer.keys = layer.keys[list(rows), :, start:]
            layer.values = layer.values[list(rows), :, start:]
            layer.length = length

    def join(self, other: SequenceCache) -> None:
        """The sequence of another cache comes as the last one."""
        length = max(self.length, other.length)
        for layer, joining in zip(self.layers, other.layers, strict=True):
            for name in ("keys", "values"):
                old, new = (getattr(one, name)[:, :, : one.length] for one in (layer, joining))
                both = old.new_zeros((len(old) + len(new), old.shape[1], _with_room(length), old.shape[-1]))
                both[: len(old), :, length - layer.length : length] = old
                both[len(old) :, :, length - joining.length : length] = new
                setattr(layer, name, both)
            layer.length = length


def lengths_mask(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """Which columns are of a sequence, with the one to come; None if all are."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    before = longest - torch.tensor(lengths, device=device)
    return (torch.arange(longest + 1, device=device) >= before[:, None]).long()
