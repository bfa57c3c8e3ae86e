"""Datasets that are larger than memory, as ranges of items that are read one at a time: each becomes a shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, default_collate

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.batch import Pieces, as_source
from dovetail.dispatch.inputs.kinds import rows_of
from dovetail.dispatch.inputs.size_search import UNLIMITED
from dovetail.dispatch.inputs.trees import leaves
from dovetail.dispatch.live.mapping.fingerprint import fingerprint, name_of
from dovetail.dispatch.live.mapping.shard_files import FORMATS, read_rows, size_of

_BYTES = 64 << 20  # of a shard's items, unless their number is given
MANIFEST = "manifest.json"


class ShardRange(Struct, frozen=True, forbid_unknown_fields=True):
    """The items that one shard is made of, counted from the first of the dataset, or of the file they are in."""

    number: int
    start: int
    stop: int
    file: str = ""

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        where = f" of {self.file}" if self.file else ""
        return f"shard {self.number} (items {self.start:,} to {self.stop:,}{where})"


class MapDataset(Protocol):
    """Something to map over. `about` says what it is; `ranges` is None when only the end will tell."""

    about: dict[str, Any]
    items: int

    @property
    def ranges(self) -> list[ShardRange] | None: ...

    def contents(self, done: Container[int]) -> Iterator[tuple[ShardRange, Any]]:
        """Range after range with what is in it, but for those that are done."""


def as_dataset(dataset: Any, items: int | None) -> MapDataset:
    """What a user gave to map over, in shards of so many items."""
    if isinstance(dataset, str | os.PathLike):
        return FileDataset(_files(Path(dataset)), items)
    if isinstance(dataset, DataLoader):
        return _of_loader(dataset, items)
    if isinstance(dataset, dict | tuple) or rows_of(dataset, 0) is not None:
        source = as_source(dataset)
        assert source.total is not None
        found = IndexedDataset(name_of(type(dataset)), source.total, source.slice, items)
        found.about["all of them"] = fingerprint(dataset)
        return found
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return IteratedDataset(dataset, items)
    if not hasattr(dataset, "__len__"):
        raise InputError(f"dataset: {name_of(dataset)} has no length")
    return IndexedDataset(name_of(dataset), len(dataset), _Collated(dataset, default_collate), items)


# -- files


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix[1:] not in FORMATS:
            raise InputError(f"{path}: expected a file of {_suffixes()}")
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: expected a folder of shards, found nothing")
    if _is_half_done(path / MANIFEST):
        raise InputError(f"{path}: holds the shards of a map that has not come to its end yet")
    found = sorted(each for each in path.iterdir() if each.suffix[1:] in FORMATS and not each.name.startswith("."))
    kinds = sorted({each.suffix for each in found})
    if len(kinds) != 1:
        raise InputError(f"{path}: expected files of one kind of {_suffixes()}, found {' and '.join(kinds) or 'none'}")
    return found


def _is_half_done(manifest: Path) -> bool:
    """Whether a map is, or was, writing to the folder; a file of that name may be somebody else's."""
    try:
        found = msgspec.json.decode(manifest.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(found, dict) and "dovetail" in found and found.get("complete") is False


def _suffixes() -> str:
    return ", ".join(f".{name}" for name in FORMATS)


class FileDataset:
    """Files of rows; a shard never spans two of them."""

    def __init__(self, files: Sequence[Path], items: int | None) -> None:
        sizes = [size_of(path) for path in files]
        rows, size = sum(n for n, _ in sizes), sum(n for _, n in sizes)
        self.items = items or _items(size / rows if rows else 1)
        self.folder = files[0].absolute().parent
        stats = [path.stat() for path in files]
        self.about = {
            "files": [
                [path.name, n, stat.st_size, stat.st_mtime_ns]
                for path, (n, _), stat in zip(files, sizes, stats, strict=True)
            ]
        }
        spans = [(path.name, start, n) for path, (n, _) in zip(files, sizes, strict=True) for start in self._cuts(n)]
        self.ranges = [
            ShardRange(i, start, min(start + self.items, n), name) for i, (name, start, n) in enumerate(spans)
        ]

    def _cuts(self, rows: int) -> range:
        return range(0, rows, self.items)

    def read(self, shard: ShardRange) -> Any:
        return read_rows(self.folder / shard.file, shard.start, shard.stop)

    def contents(self, done: Container[int]) -> Iterator[tuple[ShardRange, Any]]:
        return ((shard, self.read(shard)) for shard in self.ranges if shard.number not in done)


# -- what can be asked for any item


class _Collated:
    """Items of a dataset put together as a DataLoader does it: so many at a time, which are joined then."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], size: int = UNLIMITED) -> None:
        self.dataset, self.collate, self.size = dataset, collate, size

    def __call__(self, start: int, stop: int) -> Any:
        groups = (range(at, min(at + self.size, stop)) for at in range(start, stop, self.size))
        pieces = Pieces(self.collate([self.dataset[i] for i in group]) for group in groups)
        pieces.fetch(0, stop - start)
        return pieces.slice(0, stop - start)


class IndexedDataset:
    """A dataset with a length whose items can be read in any order, by the processes of a DataLoader if it had one."""

    def __init__(
        self, name: str, total: int, read: Callable[[int, int], Any], items: int | None, loader: Any = None
    ) -> None:
        self._read, self._loader = read, loader
        rows = [read(i, i + 1) for i in sorted({0, total // 2, total - 1})] if total else []
        if rows and fingerprint(rows[0]) != fingerprint(read(0, 1)):
            raise InputError(f"dataset {name}: its first item differs from one reading to the next; expected the same")
        self.items = items or _items(_size(rows[0]) if rows else 1)
        self.about = {"name": name, "items": total, "some of them": fingerprint(rows)}
        self.ranges = [
            ShardRange(i, start, min(start + self.items, total)) for i, start in enumerate(range(0, total, self.items))
        ]

    def read(self, shard: ShardRange) -> Any:
        return self._read(shard.start, shard.stop)

    def contents(self, done: Container[int]) -> Iterator[tuple[ShardRange, Any]]:
        left = [shard for shard in self.ranges if shard.number not in done]
        if self._loader is None or not self._loader.num_workers:
            yield from ((shard, self.read(shard)) for shard in left)
            return
        size = self._loader.batch_size
        batches = [
            list(range(at, min(at + size, shard.stop))) for shard in left for at in range(shard.start, shard.stop, size)
        ]
        loaded = iter(_reordered(self._loader, batches))
        for shard in left:
            pieces = Pieces(loaded)
            pieces.fetch(0, len(shard))
            yield shard, pieces.slice(0, len(shard))


def _of_loader(loader: DataLoader[Any], items: int | None) -> MapDataset:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return IteratedDataset(loader, items)
    if type(loader.sampler) is not SequentialSampler:
        kind = type(loader.sampler).__name__
        raise InputError(f"dataset: a DataLoader with a {kind} has another order each time; expected shuffle=False")
    data: Any = loader.dataset
    total = len(data) - (len(data) % loader.batch_size if loader.drop_last else 0)
    return IndexedDataset(name_of(data), total, _Collated(data, loader.collate_fn, loader.batch_size), items, loader)


def _reordered(loader: DataLoader[Any], batches: list[list[int]]) -> DataLoader[Any]:
    same = ("collate_fn", "num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
    return DataLoader(loader.dataset, batch_sampler=batches, **{name: getattr(loader, name) for name in same})


# -- what can only be read from its beginning


class IteratedDataset:
    """Pieces in the order in which they come. What is done already is read again, but not computed."""

    def __init__(self, pieces: Iterable[Any], items: int | None) -> None:
        self._ranges: list[ShardRange] | None = None
        if not isinstance(pieces, Iterable):
            raise InputError(f"dataset: expected a folder, a Dataset or an iterable, found {type(pieces).__name__}")
        self._pieces = iter(pieces)
        self._first = [piece for _, piece in zip(range(1), self._pieces, strict=False)]
        some = as_source(self._first[0]) if self._first else None
        self.items = items or _items(_size(self._first[0]) / max(some.total or 1, 1) if some else 1)
        self.about = {"name": name_of(pieces), "first of them": fingerprint(self._first)}

    def _all(self) -> Iterator[Any]:
        while self._first:
            yield self._first.pop()
        yield from self._pieces

    def contents(self, done: Container[int]) -> Iterator[tuple[ShardRange, Any]]:
        pieces, found = Pieces(self._all()), list[ShardRange]()
        while n := pieces.fetch(start := len(found) * self.items, self.items):
            found.append(ShardRange(len(found), start, start + n))
            if found[-1].number not in done:
                yield found[-1], pieces.slice(start, start + n)
            pieces.forget(start + n)
        self._ranges = found

    @property
    def ranges(self) -> list[ShardRange] | None:
        """None until all of them have come."""
        return self._ranges


def _items(size: float) -> int:
    return max(1, int(_BYTES / max(size, 1)))


def _size(tree: Any) -> int:
    """Bytes of the tensors and arrays in a tree."""
    return sum(getattr(leaf, "nbytes", 8) for _, leaf in leaves(tree))
