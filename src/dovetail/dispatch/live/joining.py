"""Results of all chunks joined as one call would have returned them: by rows, or passed on if all have the same.

What is the same in all chunks may still depend on their size, as a number of rows does, or a sum of ones. So if all had
one size, the function is called once more, with fewer rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import chain
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.kinds import BatchKind, kind_of
from dovetail.dispatch.inputs.trees import OPEN, beside_of, beside_parts, grouped, list_like, opened, parts_of

Witness = Callable[[int], Any]  # what the function gives for another number of rows than this one
Join = Callable[[list[Any], list[int]], Any]  # the values of one part from all chunks, and the chunks' numbers of items
WAYS_OUT = (
    "give join=, a function of the values of such a part and the chunks' sizes (join='list': the results as they are), "
    "or reduce=, a function of all results"
)
WAYS_OUT_BESIDE = "give join='list', for the results as they are, or reduce=, a function of all results"


def joined_results(
    values: list[Any], sizes: list[int], dim: int, join: Join | None = None, witness: Witness | None = None
) -> Any:
    """What has each chunk's number of rows is joined; the rest must be the same in all chunks, or `join` joins it."""
    if len(values) == 1:
        return values[0]
    known = Constants(sizes, witness)

    def together(group: list[Any], place: str) -> Any:
        first = group[0]
        kind = kind_of(first)
        alike = all(type(value) is type(first) for value in group)
        if alike:
            beside, *others = ({place: beside_of(value)} for value in group)
            for other in others:
                refuse_other(beside, other)
            known.check_beside(beside)
        if kind is not None and alike and _have_rows(group, sizes, dim, kind):
            return _joined(kind, group, dim, place)
        if kind is None and alike and opened(first) is not None:
            items = _are_items(group, sizes, dim, place)
            return list_like(first, chain.from_iterable(group)) if items else OPEN
        same = alike and all(is_same(first, other) for other in group[1:])
        if same and (is_constant(group) or known.holds(place, first)):
            return first
        if join is not None:
            return join(group, sizes)
        raise known.sized(place, first) if same else differs(place, first)

    return grouped(together, values)


def _have_rows(group: list[Any], sizes: list[int], dim: int, kind: BatchKind) -> bool:
    return all(kind.rows(value, dim) == size for value, size in zip(group, sizes, strict=True))


def _joined(kind: BatchKind, group: list[Any], dim: int, place: str) -> Any:
    try:
        return kind.join(group, dim)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise ResultFormError(f"chunks differ in what they return: {place} cannot be joined: {text}") from error


def _are_items(group: list[Any], sizes: list[int], dim: int, place: str) -> bool:
    """Whether these are lists with an entry per row, and not such with some parts that have rows each."""
    if not all(isinstance(value, list) and len(value) == size for value, size in zip(group, sizes, strict=True)):
        return False
    if len(set(sizes)) > 1:
        return True
    parts = zip(*([part for _, part in parts_of(value)] for value in group), strict=False)
    kinds = [(kind_of(part[0]), list(part)) for part in parts]
    found = {kind is not None and _have_rows(part, sizes, dim, kind) for kind, part in kinds}
    if True in found and (False in found or sizes[0] == 1):
        raise ResultFormError(f"{place}: a list with an entry per row, or one with rows in its entries? {WAYS_OUT}")
    return True not in found


def is_same(first: Any, other: Any) -> bool:
    """Whether a part that has no rows is the same in two chunks."""
    if first is other:
        return True
    kind = kind_of(first)
    if type(first) is not type(other):
        return False
    if kind is not None:
        return kind.same(first, other)
    try:
        return is_comparable(first) and (bool(first == other) or (first != first and other != other))
    except Exception:  # it holds what cannot be compared
        return False


def _differ(first: Any, other: Any) -> bool:
    """Whether what two containers keep beside their parts is surely not the same."""
    mine, others = _inside(first), _inside(other)
    return mine.keys() != others.keys() or any(
        type(part) is not type(others[place]) or (_has_value(part) and not is_same(part, others[place]))
        for place, part in mine.items()
    )


def _inside(beside: Any) -> dict[str, Any]:
    """The parts of what a container keeps beside its own; none if it holds itself."""
    try:
        return dict(parts_of(beside))
    except RecursionError:
        return {}


def refuse_other(beside: dict[str, Any], other: dict[str, Any]) -> None:
    """An error if what containers keep beside their parts differs between two chunks."""
    for place in {**beside, **other}:
        if _differ(beside.get(place), other.get(place)):
            raise ResultFormError(f"what {place} keeps beside its parts differs between chunks; {WAYS_OUT_BESIDE}")


def may_count(value: Any) -> bool:
    """Whether a value may tell how many rows there were, but for texts."""
    return isinstance(value, Number | bytes | range | slice | frozenset) and not isinstance(value, bool)


def _has_value(part: Any) -> bool:
    """Whether such values are told apart by what they are, and not only by where; a device is where."""
    if isinstance(part, torch.device):
        return False
    return kind_of(part) is not None or (_equality(part) is not object and is_comparable(part))


def _equality(value: Any) -> type:
    """The class that says whether such a value is equal to another."""
    return next(base for base in type(value).__mro__ if "__eq__" in vars(base))


def is_constant(group: list[Any]) -> bool:
    """Whether these are surely of the function itself: the very same object, of which there may be others like it."""
    first = group[0]
    return first is None or (not isinstance(first, int | str | bytes) and all(value is first for value in group))


class Constants:
    """Tells whether what is the same in all chunks is so for another number of rows too."""

    def __init__(self, sizes: Iterable[int], witness: Witness | None) -> None:
        self._sizes, self._witness = set(sizes), witness
        self._parts: dict[str, Any] | None = None
        self._beside: dict[str, Any] = {}  # by container: what it keeps beside its parts
        self._error: Exception | None = None

    def _look(self) -> bool:
        """Whether it is known what another number of rows gives."""
        if len(self._sizes) > 1 or self._witness is None:
            return False
        if self._parts is None:
            try:
                found = self._witness(next(iter(self._sizes)))
                self._parts, self._beside = dict(parts_of(found, "result")), dict(beside_parts(found, "result"))
            except Exception as error:
                self._parts, self._error = {}, error
        return True

    def holds(self, place: str, value: Any) -> bool:
        if not self._look() or self._parts is None:
            return True
        found = self._parts.get(place, self)
        if isinstance(found, Tensor) and isinstance(value, Tensor):
            found = found.to(value.device)
        return is_same(value, found)

    def check_beside(self, beside: dict[str, Any]) -> None:
        """The same for what containers keep beside their parts: numbers and texts may depend on that of rows."""
        for place, kept in beside.items():
            counts = any(isinstance(part, str) or may_count(part) for part in _inside(kept).values())
            if counts and self._look() and _differ(kept, self._beside.get(place)):
                raise self.sized(f"what {place} keeps beside its parts", kept, WAYS_OUT_BESIDE)

    def sized(self, place: str, value: Any, ways_out: str = WAYS_OUT) -> ResultFormError:
        """The error for a part that is not, or of which it cannot be told."""
        how = f"a call with fewer fails: {self._error}" if self._error is not None else "differs with fewer rows"
        rows = next(iter(self._sizes))
        found = ResultFormError(
            f"{place}, {_what(value)}, is the same in all chunks of {rows} rows, and {how}; {ways_out}"
        )
        found.__cause__ = self._error
        return found


def differs(place: str, value: Any) -> ResultFormError:
    """A part that is not the same in all chunks, and has no rows to be joined by."""
    return ResultFormError(f"{place}, {_what(value)}, has no rows of the batch, yet differs between chunks; {WAYS_OUT}")


def _what(value: Any) -> str:
    return f"of shape {list(value.shape)}" if hasattr(value, "shape") else f"of type {type(value).__name__}"


def refuse_unjoinable(result: Any, rows: int) -> None:
    """An error, already for the first chunk, if a part can neither be joined nor be seen to be the same in all."""
    for place, part in parts_of(result, "result"):
        if kind_of(part) is None and not is_comparable(part) and not may_be_items(result, rows):
            kind = type(part).__name__
            raise ResultFormError(
                f"{place}, of type {kind}, has no rows that are known: {WAYS_OUT}; or "
                f"dispatch.register_batch_type({kind}, cut=..., join=...)"
            )


def is_comparable(value: Any) -> bool:
    """Whether two such values can be seen to be the same."""
    try:
        return (_equality(value) is not object or copy.copy(value) is value) and isinstance(
            value == value, bool | np.bool_
        )
    except Exception:  # a generator, which cannot be copied
        return False


def may_be_items(tree: Any, rows: int) -> bool:
    """Whether a list in a tree has as many entries as the chunk has rows: it may hold one for each."""
    if isinstance(tree, list) and len(tree) == rows:
        return True
    inside = opened(tree) if kind_of(tree) is None else None
    return inside is not None and any(may_be_items(part, rows) for part in inside.parts)
