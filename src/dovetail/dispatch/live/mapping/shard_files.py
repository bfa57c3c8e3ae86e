"""Files of rows that are read a range at a time, and written whole: .npy, .safetensors and .parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import DovetailError, InputError, MissingExtraError, did_you_mean
from dovetail.core.files.output import written_whole
from dovetail.dispatch.inputs.trees import leaves


class ShardFormat(NamedTuple):
    """Rows of a file and their bytes, a range of them as the function takes it, and a result as a file."""

    size: Callable[[Path], tuple[int, int]]
    read: Callable[[Path, int, int], Any]
    write: Callable[[BinaryIO, Any], None]


def _module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtraError("shards", package, f"shards of .{package.lower()}") from None


def read_rows(path: Path, start: int, stop: int) -> Any:
    """The rows of a file from start to stop."""
    with _named(f"{path}: cannot be read as {path.suffix}"):
        return FORMATS[path.suffix[1:]].read(path, start, stop)


def size_of(path: Path) -> tuple[int, int]:
    """How many rows a file has, and about how many bytes they take in memory."""
    with _named(f"{path}: cannot be read as {path.suffix}"):
        return FORMATS[path.suffix[1:]].size(path)


def write_rows(path: Path, result: Any) -> None:
    """A result as a file of the format that its suffix names: whole on the disk before it has its name."""
    to = path.suffix[1:]
    with written_whole(path) as file:
        with _named(f"the result cannot be written as {to}", OSError):
            FORMATS[to].write(file, result)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _named(what: str, others: type[Exception] = MemoryError) -> Iterator[None]:
    """Whatever a library says of what it cannot do, in one sentence that names it; `others` are told elsewhere."""
    try:
        yield
    except (DovetailError, MemoryError, others):
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{what}: {text}") from error


def check_format(to: str) -> str:
    """The name of a format, if it is one."""
    if to not in FORMATS:
        raise InputError(f"to {to!r}: expected {', '.join(FORMATS)}{did_you_mean(to, FORMATS)}")
    return to


def named_arrays(result: Any, to: str) -> dict[str, np.ndarray[Any, Any] | Tensor]:
    """The tensors and arrays of a result by the way to each; anything else has no place in a file.

    >>> list(named_arrays({"a": np.ones(2), "b": (np.ones(2), np.ones(2))}, "parquet"))
    ['a', 'b.0', 'b.1']
    """
    found = {}
    for place, leaf in leaves(result, ""):
        if not isinstance(leaf, Tensor | np.ndarray) or isinstance(leaf, np.ma.MaskedArray):
            where = f"{place[1:]}: " if place else ""
            raise InputError(f"{where}{type(leaf).__name__} cannot be written as {to}; expected tensors or arrays")
        name = place[1:] or "result"
        if name in found:
            raise InputError(f"{name}: two parts of the result have this name in a file; rename one")
        found[name] = leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf
    return found


def _array(name: str, leaf: Any, to: str) -> np.ndarray[Any, Any]:
    try:
        return np.ascontiguousarray(leaf.numpy() if isinstance(leaf, Tensor) else leaf)
    except TypeError:
        raise InputError(f"{name}: {leaf.dtype} cannot be written as {to}; give to='safetensors'") from None


# -- one array


def _npy_size(path: Path) -> tuple[int, int]:
    array = np.load(path, mmap_mode="r")
    if not array.ndim:
        raise InputError(f"{path}: expected rows, found one number")
    return len(array), array.nbytes


def _npy_read(path: Path, start: int, stop: int) -> Tensor:
    return torch.from_numpy(np.array(np.load(path, mmap_mode="r")[start:stop]))


def _npy_write(file: BinaryIO, result: Any) -> None:
    found = named_arrays(result, "npy")
    if len(found) != 1:
        raise InputError(f"a result of {len(found)} tensors cannot be written as npy; give to='safetensors'")
    ((name, leaf),) = found.items()
    array = _array(name, leaf, "npy")
    if array.dtype == object:
        raise InputError("an array of objects cannot be written as npy; give to='parquet'")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.reshape(-1).view(np.uint8).data)  # by ourselves: numpy forgets why the system refused


# -- tensors by name


def _tensors_size(path: Path) -> tuple[int, int]:
    with _module("safetensors", "safetensors").safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: each.get_shape() for name, each in slices.items()}
        rows = {shape[0] if shape else -1 for shape in shapes.values()}
        if len(rows) != 1 or -1 in rows:
            raise InputError(f"{path}: expected tensors with as many rows each, found {shapes}")
        size = sum(prod(shapes[name][1:]) * each[0:1].element_size() for name, each in slices.items())
    (count,) = rows
    return count, count * size


def _tensors_read(path: Path, start: int, stop: int) -> dict[str, Tensor]:
    with _module("safetensors", "safetensors").safe_open(path, "pt") as file:
        return {name: file.get_slice(name)[start:stop].clone() for name in file.keys()}  # noqa: SIM118


def _tensors_write(file: BinaryIO, result: Any) -> None:
    found = named_arrays(result, "safetensors")
    tensors = {name: torch.as_tensor(leaf).contiguous() for name, leaf in found.items()}
    apart = {name: each.clone() for name, each in tensors.items()}  # two names of one memory are refused
    file.write(_module("safetensors.torch", "safetensors").save(apart))


# -- columns by name


def _columns_size(path: Path) -> tuple[int, int]:
    about = _module("pyarrow.parquet", "Parquet").read_metadata(path)
    return about.num_rows, sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))


def _columns_read(path: Path, start: int, stop: int) -> dict[str, Any]:
    """Only the groups of rows that the range touches are read."""
    with _module("pyarrow.parquet", "Parquet").ParquetFile(path) as file:
        ends = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
        first, last = np.searchsorted(ends, start, "right") - 1, np.searchsorted(ends, stop, "left")
        table = file.read_row_groups(list(range(first, last))).slice(start - ends[first], stop - start)
        return {name: _column(path, name, table.column(name).combine_chunks()) for name in table.column_names}


def _column(path: Path, name: str, column: Any) -> Any:
    """Numbers, and lists of as many numbers each, as a tensor; anything else as an array of objects."""
    if column.null_count:
        raise InputError(f"{path}: column {name} has {column.null_count} nulls in these rows; expected none")
    shape, values = [len(column)], column
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        inner = values.flatten()
        each, rest = divmod(len(inner), max(len(values), 1))
        if rest or len(set(values.value_lengths().to_pylist())) > 1 or inner.null_count:
            break
        shape, values = [*shape, each], inner
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype == object or array.dtype.kind not in "biuf":
        return column.to_numpy(zero_copy_only=False)
    return torch.from_numpy(np.array(array).reshape(shape))


def _columns_write(file: BinaryIO, result: Any) -> None:
    _module("pyarrow.parquet", "Parquet").write_table(_table(result), file)


def _table(result: Any) -> Any:
    arrow = _module("pyarrow", "Parquet")
    if isinstance(result, arrow.Table):
        return result
    if hasattr(result, "to_arrow"):
        return result.to_arrow()
    if hasattr(result, "iloc") and hasattr(result, "columns"):  # of pandas
        return arrow.Table.from_pandas(result)
    columns = {}
    for name, leaf in named_arrays(result, "parquet").items():
        array = _array(name, leaf, "parquet")
        column = arrow.array(array.reshape(-1))
        for width in reversed(array.shape[1:]):
            column = arrow.FixedSizeListArray.from_arrays(column, width)
        columns[name] = column
    return arrow.table(columns)


FORMATS = {
    "safetensors": ShardFormat(_tensors_size, _tensors_read, _tensors_write),
    "parquet": ShardFormat(_columns_size, _columns_read, _columns_write),
    "npy": ShardFormat(_npy_size, _npy_read, _npy_write),
}
