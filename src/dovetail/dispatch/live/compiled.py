"""Functions that are compiled for every size anew: which they are, who compiles, and rows that fill a chunk up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.batch import Source, TreeBatch
from dovetail.dispatch.inputs.kinds import kind_of, rows_of
from dovetail.dispatch.inputs.size_search import LEAST_COMPILED
from dovetail.dispatch.inputs.trees import beside_of, closing, list_like, opened, parts_of, place_in
from dovetail.dispatch.live.joining import may_count


def is_compiled(function: Any) -> bool:
    """Whether a function is compiled for every form of its input anew: by torch.compile or jax.jit.

    >>> is_compiled(len)
    False
    """
    if hasattr(function, "_torchdynamo_orig_callable") or hasattr(function, "_orig_mod"):
        return True
    return type(function).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(function, "lower")


class CompiledSizes:
    """The sizes that were called, of whatever form. One thread at a time compiles, and nobody calls meanwhile: two
    would do the same twice, and a call beside a compiler does not always find its own size again."""

    def __init__(self, dim: int, padded: bool) -> None:
        self._dim, self._padded = dim, padded
        self._called: set[int] = set()
        self._whole: dict[tuple[str, ...], set[str]] = {}  # by all parts: which of them went whole to every chunk
        self._gate = _Gate()

    def call(self, function: Callable[[Any], Any], source: Source, rows: int, work: Any) -> Any:
        """The function's result for a chunk of so many rows; with copies of the last one if they are too few."""
        if not self._padded or (whole := self._parts_whole(source, work)) is None or rows >= LEAST_COMPILED:
            return self._call(function, work, rows)
        result = self._call(function, filled(work, rows, self._dim, whole), LEAST_COMPILED)
        return cut(result, rows, self._dim)

    def _parts_whole(self, source: Source, work: Any) -> set[str] | None:
        """What goes whole to every chunk; None if nothing has rows, or none of one row tells or has told before."""
        tree = source.tree if isinstance(source, TreeBatch) else work
        sizes = {place: rows for place, part in parts_of(tree) if (rows := rows_of(part, self._dim)) is not None}
        if max(sizes.values(), default=1) == 1:
            return set() if len(sizes) == 1 else self._whole.get(tuple(sizes))
        self._whole[tuple(sizes)] = whole = {place for place, rows in sizes.items() if rows == 1}
        return whole

    def _call(self, function: Callable[[Any], Any], work: Any, rows: int) -> Any:
        with self._gate.held(alone=rows not in self._called):
            result = function(work)
        self._called.add(rows)
        return result


class _Gate:
    """Many at once, or one alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside, self._alone = 0, False

    @contextmanager
    def held(self, alone: bool) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = alone  # who comes later waits
            try:
                if alone:
                    self._changed.wait_for(lambda: not self._inside)
            except BaseException:  # an interrupt
                self._alone = False
                self._changed.notify_all()
                raise
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside, self._alone = self._inside - 1, self._alone and not alone
                self._changed.notify_all()


def filled(work: Any, rows: int, dim: int, whole: Collection[str] = ()) -> Any:
    """A chunk with copies of its last row; not in the parts, named by their places, that are the same in every chunk.

    >>> import torch
    >>> [list(part.shape) for part in filled((torch.ones(1, 2), torch.ones(1, 2)), 1, 0, {"batch.1"})]
    [[256, 2], [1, 2]]
    """

    def fill(place: str, part: Any) -> Any:
        kind = kind_of(part)
        if kind is None or place in whole or kind.rows(part, dim) != rows:
            return part
        return kind.join([part] + [kind.cut(part, dim, rows - 1, 1)] * (LEAST_COMPILED - rows), dim)

    return closing(work)(iter([fill(place, part) for place, part in parts_of(work)]))


def cut(result: Any, rows: int, dim: int, place: str = "result") -> Any:
    """The first rows of what was made of a chunk that was filled up; what else there is could count the copies.

    >>> cut({"y": list(range(256)), "unit": "MPa"}, 2, 0)
    {'y': [0, 1], 'unit': 'MPa'}
    """
    if _counts(beside_of(result)):
        raise _uncut(f"what {place} keeps beside its parts has no rows")
    kind = kind_of(result)
    if kind is not None and (found := kind.rows(result, dim)) != LEAST_COMPILED:
        raise _uncut(f"{place} has {'no' if found is None else found} rows")
    if kind is not None:
        return kind.cut(result, dim, 0, rows)
    inside = opened(result)
    if inside is None:
        if not _is_constant(result):
            raise _uncut(f"{place}, of type {type(result).__name__}, has no rows")
        return result
    parts = list(inside.parts)
    if len(parts) == LEAST_COMPILED:
        deep = any(rows_of(part, dim) == LEAST_COMPILED for _, part in parts_of(result))
        if isinstance(result, list) or type(result) is tuple:
            if deep:
                raise _uncut(f"{place} has an entry per row, or rows in its entries")
            return list_like(result, result[:rows]) if isinstance(result, list) else result[:rows]
        if not deep:
            raise _uncut(f"{place}, of type {type(result).__name__}, has {len(parts)} parts, and no rows")
    named = zip(inside.names, parts, strict=True)
    return inside.closed([cut(part, rows, dim, place_in(place, name)) for name, part in named])


def _is_constant(value: Any) -> bool:
    """Whether a value that has no parts tells nothing of the number of rows, as far as can be seen."""
    try:
        return not isinstance(value, bool) and not may_count(value) and copy.copy(value) is value
    except Exception:  # a generator, a lock
        return False


def _counts(beside: Any) -> bool:
    """Whether something that is beside the parts of a container may count the copies, or have an entry for each."""
    if kind_of(beside) is not None or may_count(beside):
        return True
    try:
        parts = [] if (inside := opened(beside)) is None else list(inside.parts)
        return len(parts) == LEAST_COMPILED or any(map(_counts, parts))
    except RecursionError:  # it holds itself
        return True


def _uncut(what: str) -> ResultFormError:
    return ResultFormError(
        f"{what} for a chunk that was filled up to {LEAST_COMPILED}: expected one per item; "
        "shapes='few' fills nothing up"
    )
