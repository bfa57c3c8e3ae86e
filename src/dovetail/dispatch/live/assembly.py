"""Results of chunks put together as the function would have returned them for the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.batch import grouped, leaves, mapped


class BatchOutput(Protocol):
    """Where results go. Ranges do not overlap, so several threads may write at once."""

    def write(self, start: int, stop: int, result: Any) -> None: ...

    def result(self) -> Any:
        """What was written, in the order of the batch."""


class Collected:
    """Every chunk's result is kept; the end joins them, by `reduce` if it was given, else along the dimension."""

    def __init__(self, dim: int, home: torch.device | None, reduce: Callable[[list[Any]], Any] | None = None) -> None:
        self.dim = dim
        self.home = home
        self.reduce = reduce
        self.parts: dict[int, tuple[int, Any]] = {}

    def write(self, start: int, stop: int, result: Any) -> None:
        self.parts[start] = (stop, result)

    def result(self) -> Any:
        order = sorted(self.parts)
        values = [self.parts[start][1] for start in order]
        if self.reduce is not None:
            return self.reduce(values)
        if not values or not all(isinstance(leaf, Tensor) for _, leaf in leaves(values)):
            return values
        if self.home is not None:
            values = [mapped(lambda leaf: leaf.to(self.home), value) for value in values]
        sizes = [self.parts[start][0] - start for start in order]
        return _join(values, sizes, self.dim)


def _join(values: list[Any], sizes: list[int], dim: int) -> Any:
    """Join what has each chunk's number of items along the dimension; the rest must be the same in all chunks."""

    def join(group: list[Tensor]) -> Tensor:
        if all(_is_batched(value, dim, size) for value, size in zip(group, sizes, strict=True)):
            return group[0] if len(group) == 1 else torch.cat(group, dim)
        for other in group[1:]:
            _check_same(group[0], other)
        return group[0]

    return grouped(join, values)


def _is_batched(leaf: Tensor, dim: int, size: int) -> bool:
    return -leaf.ndim <= dim < leaf.ndim and leaf.shape[dim] == size


def _check_same(first: Tensor, other: Tensor) -> None:
    """A part of the result that does not depend on the batch is passed through; one that does must not be."""
    if first.shape != other.shape or not torch.allclose(first, other.to(first.device), equal_nan=True):
        raise ResultFormError(
            f"a result of shape {list(first.shape)} has no batch dimension, yet differs between chunks; "
            "give reduce= to say how such results are put together"
        )


@dataclass(slots=True)
class _Leaf:
    """One tensor of the output: allocated for the whole batch, or passed through."""

    first: Tensor
    tensor: Tensor
    batched: bool


def _copy(leaf: Tensor, there: Tensor, name: str) -> None:
    """Copy, but never with the silent change of shape or type that torch would make."""
    if leaf.shape != there.shape or leaf.dtype != there.dtype:
        found, expected = (f"{list(x.shape)} of {x.dtype}" for x in (leaf, there))
        raise ResultFormError(f"chunks differ in what they return: {name} is {found}, expected {expected}")
    there.copy_(leaf, non_blocking=True)


class Preallocated:
    """Results are copied straight to their place in outputs whose form the first result tells.

    Results that are part of a graph of derivatives, or no tensors, are collected instead.
    """

    def __init__(self, total: int, dim: int, home: torch.device | None, pinned: bool = False) -> None:
        self.total = total
        self.dim = dim
        self.home = home
        self.pinned = pinned
        self._lock = Lock()
        self._tree: Any = None
        self._places: dict[str, None] = {}  # the way to each leaf; dictionaries of chunks may differ in their order
        self._leaves: list[_Leaf] | None = None
        self._single: Tensor | None = None
        self._collected: Collected | None = None
        self.detached = False  # a device may still write here: what is given out must be copies

    def write(self, start: int, stop: int, result: Any) -> None:
        single = self._single
        if single is not None and type(result) is Tensor:
            place = single.narrow(self.dim, start, stop - start)
            if place.shape == result.shape and place.dtype is result.dtype:
                place.copy_(result, non_blocking=True)
                return
        if self._leaves is None and self._collected is None:
            with self._lock:
                if self._leaves is None and self._collected is None:
                    self._prepare(stop - start, result)
        if self._collected is not None:
            self._collected.write(start, stop, result)
            return
        self._fill(start, stop, result)

    def _prepare(self, rows: int, result: Any) -> None:
        found = dict(leaves(result, "result"))
        if not found or not all(isinstance(leaf, Tensor) and not leaf.requires_grad for leaf in found.values()):
            self._collected = Collected(self.dim, self.home)
            return
        self._tree = mapped(lambda leaf: None, result)
        self._places = dict.fromkeys(found)
        made = [_Leaf(leaf, *self._place(leaf, rows)) for leaf in found.values()]
        if isinstance(result, Tensor) and made[0].batched and made[0].tensor is not result:
            self._single = made[0].tensor
        self._leaves = made

    def _is_home(self, leaf: Tensor) -> bool:
        return self.home is None or leaf.device == self.home

    def _place(self, leaf: Tensor, rows: int) -> tuple[Tensor, bool]:
        if not _is_batched(leaf, self.dim, rows):
            return (leaf if self._is_home(leaf) else leaf.to(self.home)), False
        if rows == self.total and self._is_home(leaf):
            return leaf, True
        shape = list(leaf.shape)
        shape[self.dim] = self.total
        device = self.home or leaf.device
        pinned = self.pinned and device.type == "cpu"
        return torch.empty(shape, dtype=leaf.dtype, device=device, pin_memory=pinned), True

    def _fill(self, start: int, stop: int, result: Any) -> None:
        assert self._leaves is not None
        found = dict(leaves(result, "result"))
        if found.keys() != self._places.keys():
            odd = min(found.keys() ^ self._places.keys())
            raise ResultFormError(f"chunks differ in what they return: {odd} is not in all of them")
        for place, mine in zip(self._places, self._leaves, strict=True):
            leaf = found[place]
            if mine.batched and _is_batched(leaf, self.dim, stop - start):
                if leaf is not mine.tensor:
                    _copy(leaf, mine.tensor.narrow(self.dim, start, stop - start), place)
                continue
            if mine.batched and leaf.shape == mine.first.shape:  # its size was the first chunk's by chance
                mine.tensor, mine.batched = mine.first.to(self.home or leaf.device), False
            if leaf is not mine.first:
                _check_same(mine.tensor, leaf)

    def result(self) -> Any:
        if self._collected is not None:
            return self._collected.result()
        if self._leaves is None:
            return None
        places = iter(self._leaves)
        return mapped(lambda _: next(places).tensor.clone() if self.detached else next(places).tensor, self._tree)
