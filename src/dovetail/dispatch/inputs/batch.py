"""A batch seen as a range of items: a tensor, a tree of tensors, slices of anything, or what a generator yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, cat

from dovetail.core.errors import InputError

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
        if not -tensor.ndim <= dim < tensor.ndim:
            raise InputError(f"a tensor of shape {list(tensor.shape)} has no dimension {dim} to cut")
        self.tensor = tensor
        self.dim = dim
        self.total = tensor.shape[dim]

    def slice(self, start: int, stop: int) -> Tensor:
        return self.tensor.narrow(self.dim, start, stop - start)


class TreeBatch(WholeBatch):
    """Dicts, tuples and lists of tensors, nested. Entries of size 1, or without the dimension, go whole to every chunk.

    >>> import torch
    >>> batch = TreeBatch({"strain": torch.ones(5, 100, 6), "temperature": torch.ones(5, 1, 6)}, dim=1)
    >>> batch.total, {name: list(part.shape) for name, part in batch.slice(90, 100).items()}
    (100, {'strain': [5, 10, 6], 'temperature': [5, 1, 6]})
    """

    __slots__ = ("_cut", "dim", "total", "tree")

    def __init__(self, tree: Any, dim: int = 0) -> None:
        self.tree = tree
        self.dim = dim
        sizes: dict[str, int] = {}
        for place, leaf in leaves(tree):
            if isinstance(leaf, Tensor) and -leaf.ndim <= dim < leaf.ndim:
                sizes[place] = leaf.shape[dim]
            elif type(leaf).__module__ == "numpy" and leaf.ndim:
                raise InputError(f"{place}: expected a tensor, found an array; torch.from_numpy makes one of it")
        if not sizes:
            raise InputError(f"no tensor of the batch has the dimension {dim} to cut")
        total = next((size for size in sizes.values() if size != 1), 1)
        for place, size in sizes.items():
            if size not in (1, total):
                raise InputError(f"sizes along dimension {dim} differ: expected 1 or {total}, found {size} for {place}")
        self.total = total
        self._cut = _cutter(tree, dim, total)

    def whole(self) -> list[Tensor]:
        """The tensors that go whole to every chunk."""
        found = [leaf for _, leaf in leaves(self.tree) if isinstance(leaf, Tensor)]
        return [leaf for leaf in found if _goes_whole(leaf, self.dim, self.total)]

    def slice(self, start: int, stop: int) -> Any:
        return self._cut(start, stop - start)


def leaves(tree: Any, place: str = "batch") -> Iterator[tuple[str, Any]]:
    """Everything in a tree that is no dict, tuple or list, with the way to it."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{place}.{key}")
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{place}.{i}")
    else:
        yield place, tree


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with every leaf replaced.

    >>> mapped(abs, {"a": -1, "b": (2, [-3])})
    {'a': 1, 'b': (2, [3])}
    """
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [mapped(function, value) for value in tree]
        return parts if isinstance(tree, list) else _like(tree, parts)
    return function(tree)


def handed_over(tree: Any) -> None:
    """Made on a worker's stream, used on the caller's from now on: the memory must live until that is done."""
    from torch import cuda

    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            leaf.record_stream(cuda.current_stream(leaf.device))


def _like(tree: tuple[Any, ...], parts: list[Any]) -> Any:
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def _goes_whole(leaf: Tensor, dim: int, total: int) -> bool:
    return not -leaf.ndim <= dim < leaf.ndim or (leaf.shape[dim] == 1 and total != 1)


def _cutter(tree: Any, dim: int, total: int) -> Cut:
    """A function that cuts a range out of a tree; what is decided once is not decided per chunk."""
    if isinstance(tree, Tensor):
        if _goes_whole(tree, dim, total):
            return lambda start, n: tree
        narrow = tree.narrow
        return lambda start, n: narrow(dim, start, n)
    if isinstance(tree, dict):
        named = [(key, _cutter(value, dim, total)) for key, value in tree.items()]
        return lambda start, n: {key: cut(start, n) for key, cut in named}
    if isinstance(tree, list | tuple):
        cuts = [_cutter(value, dim, total) for value in tree]
        if isinstance(tree, list):
            return lambda start, n: [cut(start, n) for cut in cuts]
        return lambda start, n: _like(tree, [cut(start, n) for cut in cuts])
    return lambda start, n: tree


class Slices(WholeBatch):
    """Ranges of whole numbers, for functions that find their data themselves: the work of a chunk is a `slice`.

    >>> Slices(50, 2000).slice(0, 3)
    slice(50, 53, 1)
    """

    def __init__(self, start: int, stop: int) -> None:
        if start >= stop:
            raise InputError(f"slices from {start} to {stop}: expected start < stop")
        self.start = start
        self.total = stop - start

    def slice(self, start: int, stop: int) -> slice:
        return slice(self.start + start, self.start + stop, 1)


class Pieces:
    """Trees of tensors that an iterable yields, each with some items, regrouped into chunks of any size.

    Sized if `total` is given, else the end is found by reaching it. Only what is not yet done is kept.
    """

    def __init__(self, pieces: Iterable[Any], dim: int = 0, total: int | None = None) -> None:
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
                raise InputError(f"expected tensors or trees of them from the iterable, found {type(piece).__name__}")
            self._held.append((self._read, self._read + size, batch))
            self._read += size
        return max(0, min(n, self._read - start))

    def slice(self, start: int, stop: int) -> Any:
        parts = []
        for first, last, batch in list(self._held):
            if first < stop and last > start:
                parts.append(batch.slice(max(start, first) - first, min(stop, last) - first))
        return parts[0] if len(parts) == 1 else joined(parts, self.dim)

    def forget(self, stop: int) -> None:
        while self._held and self._held[0][1] <= stop:
            del self._held[0]


def grouped(function: Callable[[list[Any]], Any], trees: list[Any]) -> Any:
    """A tree of the form that all of them have; each leaf is made of theirs.

    >>> grouped(sum, [{"a": 1, "b": (2, [3])}, {"a": 10, "b": (20, [30])}])
    {'a': 11, 'b': (22, [33])}
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: grouped(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        parts = [grouped(function, list(group)) for group in zip(*trees, strict=True)]
        return parts if isinstance(first, list) else _like(first, parts)
    return function(trees)


def joined(parts: list[Any], dim: int) -> Any:
    """Trees of the same form, put together leaf by leaf; what is no tensor with that dimension is the first's."""

    def join(group: list[Any]) -> Any:
        first = group[0]
        return cat(group, dim) if isinstance(first, Tensor) and -first.ndim <= dim < first.ndim else first

    return grouped(join, parts)


def as_source(batch: Any, dim: int = 0) -> Source:
    """A source for whatever was given as a batch."""
    if isinstance(batch, Tensor):
        return TensorBatch(batch, dim)
    if isinstance(batch, dict | list | tuple):
        return TreeBatch(batch, dim)
    if isinstance(batch, Source):
        return batch
    if isinstance(batch, range) and batch.step == 1:
        return Slices(batch.start, batch.stop)
    if hasattr(batch, "__array__"):
        raise InputError("expected a tensor, found an array; torch.from_numpy makes one of it")
    if isinstance(batch, Iterable) and not isinstance(batch, str | bytes):
        return Pieces(batch, dim)
    raise InputError(f"expected a tensor, a tree of tensors or an iterable of them, found {type(batch).__name__}")


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


def tensor_form(tensor: Tensor, dim: int) -> Any:
    """The form of a batch that is one tensor."""
    shape = tensor.shape
    return (tensor.dtype, shape[1:]) if dim == 0 else (tensor.dtype, shape[:dim], shape[dim + 1 :] if dim != -1 else ())


def form_of(source: Source, dim: int) -> Any:
    """What a batch looks like but for its number of items: curves hold for one form."""
    if isinstance(source, TensorBatch):
        return tensor_form(source.tensor, dim)
    if isinstance(source, TreeBatch):
        return tuple(tensor_form(leaf, dim) for _, leaf in leaves(source.tree) if isinstance(leaf, Tensor))
    return type(source).__name__
