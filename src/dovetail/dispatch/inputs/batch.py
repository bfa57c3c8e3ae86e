"""A batch seen as a range of items: a tensor, whatever else has rows, trees of such, or what a generator yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, strided

from dovetail.core.errors import InputError, within
from dovetail.dispatch.inputs.kinds import kind_of, rows_of, tensor_form
from dovetail.dispatch.inputs.trees import OPEN, grouped, leaves, list_like, opened, parts_of

Cut = Callable[[int, int], Any]


@runtime_checkable
class Source(Protocol):
    """Where chunks come from. Only `fetch` reads ahead, and only one thread at a time calls it."""

    @property
    def total(self) -> int | None:
        """The number of items; None when only the end will tell."""

    def fetch(self, start: int, n: int) -> int:
        """How many items there are from `start` on, up to n; a generator reads on for them."""

    def slice(self, start: int, stop: int) -> Any:
        """The work of a range, as the function takes it. Views, not copies, where it can be."""

    def forget(self, stop: int) -> None:
        """Nothing before `stop` will be asked for again."""


class WholeBatch:
    """A batch that is there as a whole."""

    __slots__ = ()
    total: int

    def fetch(self, start: int, n: int) -> int:
        return min(n, self.total - start)

    def forget(self, stop: int) -> None:
        pass


class TensorBatch(WholeBatch):
    """One tensor, cut along a dimension. A view: nothing is copied."""

    __slots__ = ("dim", "tensor", "total")

    def __init__(self, tensor: Tensor, dim: int = 0) -> None:
        if tensor.is_meta:
            raise InputError("expected a tensor with numbers, found one of the device meta")
        if not -tensor.ndim <= dim < tensor.ndim:
            raise InputError(f"a tensor of shape {list(tensor.shape)} has no dimension {dim} to cut")
        self.tensor = tensor
        self.dim = dim
        self.total = tensor.shape[dim]

    def slice(self, start: int, stop: int) -> Tensor:
        return self.tensor.narrow(self.dim, start, stop - start)


class TreeBatch(WholeBatch):
    """What has rows, alone or nested. Entries of size 1, or without the dimension, go whole to every chunk.

    >>> import torch
    >>> batch = TreeBatch({"strain": torch.ones(5, 100, 6), "temperature": torch.ones(5, 1, 6)}, dim=1)
    >>> batch.total, {name: list(part.shape) for name, part in batch.slice(90, 100).items()}
    (100, {'strain': [5, 10, 6], 'temperature': [5, 1, 6]})
    """

    __slots__ = ("_cut", "dim", "total", "tree")

    def __init__(self, tree: Any, dim: int = 0) -> None:
        self.tree = tree
        self.dim = dim
        sizes = {place: rows for place, part in parts_of(tree) if (rows := rows_of(part, dim)) is not None}
        if not sizes:
            raise InputError(f"nothing of the batch, {_told(tree)}, has the dimension {dim} to cut")
        total = next((size for size in sizes.values() if size != 1), 1)
        for place, size in sizes.items():
            if size not in (1, total):
                raise InputError(
                    f"sizes along dimension {dim} differ: expected 1 or {total}, found {size} for {place}; "
                    "what goes whole to every chunk can be bound with functools.partial"
                )
        self.total = total
        self._cut: Cut | None = None  # until it is needed

    def whole(self) -> list[Tensor]:
        """The tensors that go whole to every chunk."""
        whole = [part for _, part in parts_of(self.tree) if _goes_whole(part, self.dim, self.total)]
        return [leaf for _, leaf in leaves(whole) if isinstance(leaf, Tensor)]

    def slice(self, start: int, stop: int) -> Any:
        if self._cut is None:
            self._cut = _cutter(self.tree, self.dim, self.total)
        return self._cut(start, stop - start)


def _told(tree: Any) -> str:
    return f"a {type(tree).__name__}" + (f" of shape {list(tree.shape)}" if hasattr(tree, "shape") else "")


def handed_over(tree: Any) -> None:
    """Made on a worker's stream, used on the caller's from now on: the memory must live until that is done."""
    from torch import cuda

    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            leaf.record_stream(cuda.current_stream(leaf.device))


def _goes_whole(part: Any, dim: int, total: int) -> bool:
    rows = rows_of(part, dim)
    return rows is None or (rows == 1 and total != 1)


def _cutter(tree: Any, dim: int, total: int) -> Cut:
    """A function that cuts a range out of a tree; what is decided once is not decided per chunk."""
    kind = kind_of(tree)
    inside = opened(tree) if kind is None else None
    if inside is not None:
        cuts, closed = [_cutter(part, dim, total) for part in inside.parts], inside.closed
        return lambda start, n: closed([cut(start, n) for cut in cuts])
    if kind is None or _goes_whole(tree, dim, total):
        return lambda start, n: tree
    cut = kind.cut
    return lambda start, n: cut(tree, dim, start, n)


class ListBatch(WholeBatch):
    """A list of things that have no rows themselves, such as texts: each is an item."""

    __slots__ = ("items", "total")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.total = len(items)

    def slice(self, start: int, stop: int) -> list[Any]:
        return list_like(self.items, self.items[start:stop])


class Slices(WholeBatch):
    """Ranges of whole numbers, for functions that find their data themselves: the work of a chunk is a `slice`.

    >>> Slices(50, 2000).slice(0, 3)
    slice(50, 53, 1)
    """

    def __init__(self, start: int, stop: int) -> None:
        if start > stop:
            raise InputError(f"slices from {start} to {stop}: expected start <= stop")
        self.start = start
        self.total = stop - start

    def slice(self, start: int, stop: int) -> slice:
        return slice(self.start + start, self.start + stop, 1)


class Pieces:
    """Batches that an iterable yields, each with some items, regrouped into chunks of any size.

    Sized if `total` is given, else the end is found by reaching it. Only what is not yet done is kept.
    """

    def __init__(self, pieces: Iterable[Any], dim: int = 0, total: int | None = None) -> None:
        within("total", total, "a number of items", whole=True)
        self.total = total
        self.dim = dim
        self._pieces = iter(pieces)
        self._held: list[tuple[int, int, Any]] = []  # start, stop and a batch
        self._read = 0

    def fetch(self, start: int, n: int) -> int:
        while self._read < start + n:
            try:
                piece = next(self._pieces)
            except StopIteration:
                if self.total is not None and self._read != self.total:
                    raise InputError(f"the generator promised {self.total} items, found {self._read}") from None
                break
            batch = as_source(piece, self.dim)
            size = batch.total
            if size is None:
                raise InputError(f"expected batches of known size from the iterable, found {type(piece).__name__}")
            self._held.append((self._read, self._read + size, batch))
            self._read += size
            if self.total is not None and self._read > self.total:
                raise InputError(f"the generator promised {self.total} items, found {self._read}")
        return max(0, min(n, self._read - start))

    def slice(self, start: int, stop: int) -> Any:
        parts = []
        for first, last, batch in list(self._held):
            if first < stop and last > start:
                parts.append(batch.slice(max(start, first) - first, min(stop, last) - first))
        if len(parts) == 1:
            return parts[0]
        lists = all(isinstance(batch, ListBatch) for *_, batch in self._held)
        return list_like(parts[0], chain.from_iterable(parts)) if lists else joined(parts, self.dim)

    def forget(self, stop: int) -> None:
        while self._held and self._held[0][1] <= stop:
            del self._held[0]


def joined(parts: list[Any], dim: int) -> Any:
    """Trees of the same form, put together part by part; what goes whole to every chunk is the first's."""
    totals = [max((rows_of(each, dim) or 1 for _, each in parts_of(part)), default=1) for part in parts]

    def join(group: list[Any], place: str) -> Any:
        first = group[0]
        kind = kind_of(first)
        if kind is None:
            return first if opened(first) is None else OPEN
        try:
            rows = [kind.rows(each, dim) for each in group]
            if rows[0] is None or any(n == 1 < total for n, total in zip(rows, totals, strict=True)):
                return first
            return kind.join(group, dim)
        except Exception as error:
            raise InputError(f"pieces of the iterable differ: {place} cannot be joined: {error}") from error

    return grouped(join, parts, "piece")


def as_source(batch: Any, dim: int = 0) -> Source:
    """A source for whatever was given as a batch."""
    if isinstance(batch, Tensor) and batch.layout is strided and not batch.is_nested:
        return TensorBatch(batch, dim)
    if type(batch) is dict or kind_of(batch) is not None:
        return TreeBatch(batch, dim)
    if isinstance(batch, Source):
        return batch
    if isinstance(batch, list) and all(rows_of(part, dim) is None for _, part in parts_of(batch)):
        return ListBatch(batch)
    if opened(batch) is not None and not isinstance(batch, Iterator):
        return TreeBatch(batch, dim)
    if isinstance(batch, range) and batch.step == 1:
        return Slices(batch.start, max(batch.start, batch.stop))
    if isinstance(batch, Iterable) and not isinstance(batch, str | bytes):
        return Pieces(batch, dim)
    raise InputError(
        f"expected a tensor, an array, a frame, a tree or an iterable of them, found {type(batch).__name__}; "
        "register_batch_type adds a type"
    )


class SourceCursor:
    """A cursor over a source whose items must be fetched before they are handed out; its caller holds a lock."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.ended = False

    @property
    def remaining(self) -> float:
        if self.ended:
            return 0
        return inf if self.source.total is None else self.source.total - self.at

    def take(self, n: int) -> tuple[int, int]:
        start = self.at
        found = self.source.fetch(start, n)
        self.ended = found < n or (self.source.total is not None and start + found >= self.source.total)
        self.at = start + found
        return start, self.at


def form_of(source: Source, dim: int) -> Any:
    """What a batch looks like but for its number of items: curves hold for one form."""
    if isinstance(source, TensorBatch):
        return tensor_form(source.tensor, dim)
    if isinstance(source, TreeBatch):
        return tuple(_form(part, dim) for _, part in parts_of(source.tree) if kind_of(part) is not None)
    return type(source).__name__


def _form(part: Any, dim: int) -> Any:
    kind = kind_of(part)
    assert kind is not None
    return type(part).__name__ if kind.rows(part, dim) is None else kind.form(part, dim)
