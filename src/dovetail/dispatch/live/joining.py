"""Results of all chunks joined as one call would have returned them: by rows, or passed on if all have the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.kinds import BatchKind, kind_of
from dovetail.dispatch.inputs.trees import OPEN, grouped, opened, parts_of

Join = Callable[[list[Any], list[int]], Any]  # the values of one part from all chunks, and the chunks' numbers of items
WAYS_OUT = (
    "give join=, a function of the values of such a part and the chunks' sizes (join='list': the results as they are), "
    "or reduce=, a function of all results"
)


def joined_results(values: list[Any], sizes: list[int], dim: int, join: Join | None = None) -> Any:
    """What has each chunk's number of rows is joined; the rest must be the same in all chunks, or `join` joins it."""
    if len(values) == 1:
        return values[0]

    def together(group: list[Any], place: str) -> Any:
        first = group[0]
        kind = kind_of(first)
        alike = all(type(value) is type(first) for value in group)
        if kind is not None and alike and _have_rows(group, sizes, dim, kind):
            return _joined(kind, group, dim, place)
        if kind is None and alike and opened(first) is not None:
            return list(chain.from_iterable(group)) if _are_items(group, sizes, dim, place) else OPEN
        if alike and all(is_same(first, other) for other in group[1:]):
            return first
        if join is not None:
            return join(group, sizes)
        raise differs(place, first)

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
    return is_comparable(first) and (bool(first == other) or (first != first and other != other))


def differs(place: str, value: Any) -> ResultFormError:
    """A part that is not the same in all chunks, and has no rows to be joined by."""
    what = f"of shape {list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
    return ResultFormError(f"{place}, {what}, has no rows of the batch, yet differs between chunks; {WAYS_OUT}")


def refuse_unjoinable(result: Any, rows: int) -> None:
    """An error, already for the first chunk, if a part can neither be joined nor be seen to be the same in all."""
    for place, part in parts_of(result, "result"):
        if kind_of(part) is None and not is_comparable(part) and not may_be_items(result, rows):
            kind = type(part).__name__
            raise ResultFormError(
                f"{place} is a {kind}, which has no rows that are known: {WAYS_OUT}; or "
                f"dispatch.register_batch_type({kind}, cut=..., join=...)"
            )


def is_comparable(value: Any) -> bool:
    """Whether two such values can be seen to be the same."""
    own = next(base for base in type(value).__mro__ if "__eq__" in vars(base))
    try:
        return (own is not object or copy.copy(value) is value) and isinstance(value == value, bool | np.bool_)
    except Exception:  # a generator, which cannot be copied
        return False


def may_be_items(tree: Any, rows: int) -> bool:
    """Whether a list in a tree has as many entries as the chunk has rows: it may hold one for each."""
    if isinstance(tree, list) and len(tree) == rows:
        return True
    inside = opened(tree) if kind_of(tree) is None else None
    return inside is not None and any(may_be_items(part, rows) for part in inside.parts)
