"""Where results of chunks go: to their place in the whole at once, or kept until all are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.batch import Source, TensorBatch, TreeBatch
from dovetail.dispatch.inputs.kinds import BatchKind, kind_of
from dovetail.dispatch.inputs.trees import beside_parts, closing, mapped, parts_of
from dovetail.dispatch.live.joining import (
    Constants,
    Join,
    Witness,
    differs,
    is_constant,
    is_same,
    joined_results,
    may_be_items,
    refuse_other,
    refuse_unjoinable,
)

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, np.generic)


class BatchOutput(Protocol):
    """Where results go. Ranges do not overlap, so several threads may write at once.

    `witness` is called if all chunks had one size, for what is the same in all of them.
    """

    witness: Witness | None

    def write(self, start: int, stop: int, result: Any) -> None: ...

    def result(self) -> Any:
        """What was written, in the order of the batch."""


class Collected:
    """Every chunk's result is kept; the end joins them, by `reduce` if it was given, else by their rows."""

    def __init__(
        self,
        dim: int,
        home: torch.device | None,
        reduce: Callable[[list[Any]], Any] | None = None,
        join: Join | Literal["list"] | None = None,
        total: int | None = None,
    ) -> None:
        self.dim = dim
        self.home = home
        self.reduce = reduce
        self.join = join
        self.total = total
        self.parts: dict[int, tuple[int, Any]] = {}
        self.witness: Witness | None = None

    def write(self, start: int, stop: int, result: Any) -> None:
        if not self.parts and self.reduce is None and self.join is None and stop - start != self.total:
            refuse_unjoinable(result, stop - start)
        self.parts[start] = (stop, result)

    def result(self) -> Any:
        order = sorted(self.parts)
        values = [self.parts[start][1] for start in order]
        if self.reduce is not None:
            return self.reduce(values)
        if self.home is not None:
            values = [mapped(self._sent_home, value) for value in values]
        if self.join == "list" or not values:
            return values or None
        sizes = [self.parts[start][0] - start for start in order]
        return joined_results(values, sizes, self.dim, self.join, self.witness)

    def _sent_home(self, leaf: Any) -> Any:
        return leaf.to(self.home) if isinstance(leaf, Tensor) else leaf


def output_for(
    source: Source,
    dim: int,
    home: torch.device | None,
    reduce: Callable[[list[Any]], Any] | None,
    join: Join | Literal["list"] | None,
    kept: bool,
) -> BatchOutput:
    """Where the results of a batch go; `kept`: they stay where a hook has put them."""
    if (
        source.total is None
        or not isinstance(source, TensorBatch | TreeBatch)
        or reduce is not None
        or join is not None
    ):
        return Collected(dim, home, reduce, join, source.total)
    return Preallocated(source.total, dim, None if kept else home)


@dataclass(slots=True)
class _Part:
    """One part of the result: with room for the whole batch, or passed through."""

    first: Any
    whole: Any
    kind: BatchKind | None  # if it has rows
    surely: bool = True  # if it has none: it is the function's own


def _has_rows(part: Any, dim: int, rows: int, kind: BatchKind | None) -> bool:
    return kind is not None and kind.rows(part, dim) == rows


class Preallocated:
    """Results are copied straight to their place in outputs whose form the first result tells.

    Results that are part of a graph of derivatives, or have no place of a known size, are collected instead.
    """

    def __init__(self, total: int, dim: int, home: torch.device | None) -> None:
        self.total = total
        self.dim = dim
        self.home = home
        self.on_host = home is not None and home.type == "cpu"
        self._lock = Lock()
        self._closed: Callable[[Iterator[Any]], Any] = next
        self._places: dict[str, None] = {}  # the way to each part; dictionaries of chunks may differ in their order
        self._beside: dict[str, Any] = {}  # what containers keep beside their parts
        self._parts: list[_Part] | None = None
        self._single: Tensor | None = None
        self._collected: Collected | None = None
        self.detached = False  # a device may still write here: what is given out must be copies
        self.witness: Witness | None = None
        self._sizes: set[int] = set()  # of chunks

    def write(self, start: int, stop: int, result: Any) -> None:
        if self._parts is None and self._collected is None:
            with self._lock:
                if self._parts is None and self._collected is None:
                    self._prepare(stop - start, result)
        single = self._single
        if single is not None and type(result) is Tensor:
            place = single.narrow(self.dim, start, stop - start)
            if place.shape == result.shape and place.dtype is result.dtype:
                place.copy_(result, non_blocking=True)
                return
        if self._collected is not None:
            self._collected.write(start, stop, result)
            return
        self._fill(start, stop, result)

    @property
    def copies(self) -> bool:
        """Whether what is written from now on is copied, so that nobody need keep it."""
        return self._parts is not None

    def places(self, start: int, stop: int, result: Any) -> list[tuple[Tensor, Tensor]] | None:
        """Each part of a result beside its place; None unless these are all that it takes to write it."""
        found = dict(parts_of(result, "result"))
        if self._parts is None or found.keys() != self._places.keys():
            return None
        if self._beside or any(beside_parts(result, "result")):  # this is compared as well
            return None
        pairs = []
        for place, mine in zip(self._places, self._parts, strict=True):
            part, whole = found[place], mine.whole
            if mine.kind is None or type(part) is not Tensor or type(whole) is not Tensor or part.dtype != whole.dtype:
                return None
            pairs.append((part, whole.narrow(self.dim, start, stop - start)))
        return pairs if all(part.shape == there.shape for part, there in pairs) else None

    def _prepare(self, rows: int, result: Any) -> None:
        found = dict(parts_of(result, "result"))
        if may_be_items(result, rows) or not all(map(_has_place, found.values())):
            self._collected = Collected(self.dim, self.home, total=self.total)
            return
        self._sizes.add(rows)
        self._closed = closing(result)
        self._places = dict.fromkeys(found)
        self._beside = dict(beside_parts(result, "result"))
        made = [self._place(part, rows) for part in found.values()]
        if type(result) is Tensor and made[0].kind is not None and made[0].whole is not result:
            self._single = made[0].whole
        self._parts = made

    def _place(self, part: Any, rows: int) -> _Part:
        kind = kind_of(part)
        if not _has_rows(part, self.dim, rows, kind):
            return _Part(part, self._at_home(part), None)
        assert kind is not None
        if rows == self.total and self._at_home(part) is part:
            return _Part(part, part, kind)
        return _Part(part, kind.empty(part, self.dim, self.total, self.home), kind)

    def _at_home(self, part: Any) -> Any:
        return part.to(self.home) if isinstance(part, Tensor) and self.home is not None else part

    def _fill(self, start: int, stop: int, result: Any) -> None:
        assert self._parts is not None
        found = dict(parts_of(result, "result"))
        if found.keys() != self._places.keys():
            odd = min(found.keys() ^ self._places.keys())
            raise ResultFormError(f"chunks differ in what they return: {odd} is not in all of them")
        refuse_other(self._beside, dict(beside_parts(result, "result")))
        self._sizes.add(stop - start)
        for place, mine in zip(self._places, self._parts, strict=True):
            part = found[place]
            if mine.kind is not None and _has_rows(part, self.dim, stop - start, kind_of(part)):
                if part is not mine.whole:
                    _copy(part, mine, self.dim, start, place)
                continue
            # If it had as many rows as the first chunk by chance, it may still be the same in all.
            if mine.kind is not None and getattr(part, "shape", None) == mine.first.shape:
                mine.whole, mine.kind = self._at_home(mine.first), None
            if part is not mine.first and not (mine.kind is None and is_same(mine.whole, part)):
                raise differs(place, part)
            mine.surely = mine.surely and is_constant([mine.first, part])

    def result(self) -> Any:
        if self._collected is not None:
            self._collected.witness = self.witness
            try:
                return self._collected.result()
            finally:
                self._collected.witness = None  # as here, it would keep the batch alive
        if self._parts is None:
            return None
        known = Constants(self._sizes, None if self._sizes == {self.total} else self.witness)
        known.check_beside(self._beside)
        for place, mine in zip(self._places, self._parts, strict=True):
            if mine.kind is None and not mine.surely and not known.holds(place, mine.whole):
                raise known.sized(place, mine.whole)
        return self._closed(map(self._given, self._parts))

    def _given(self, part: _Part) -> Any:
        kind = kind_of(part.whole) if self.detached else None
        return part.whole if kind is None else kind.copy(part.whole)


def _has_place(part: Any) -> bool:
    kind = kind_of(part)
    return isinstance(part, _CONSTANTS) if kind is None else kind.fixed(part)


def _copy(part: Any, mine: _Part, dim: int, start: int, name: str) -> None:
    assert mine.kind is not None
    if type(part) is type(mine.whole) and mine.kind.put(mine.whole, dim, start, part):
        return
    shape = list(mine.whole.shape)
    shape[dim] = part.shape[dim]
    found, expected = f"{list(part.shape)} of {part.dtype}", f"{shape} of {mine.whole.dtype}"
    raise ResultFormError(f"chunks differ in what they return: {name} is {found}, expected {expected}")
