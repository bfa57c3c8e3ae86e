"""Kinds of values that have rows: how each is cut, joined and compared. A table, which users add their own types to.

Types of other packages stand in it by name: nothing is imported for them until such a value is met.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from dovetail.core.errors import InputError, check_functions
from dovetail.dispatch.inputs.host_memory import with_large_pages


def _equal(first: Any, other: Any) -> bool:
    return bool(first == other)


class BatchKind(Struct, frozen=True):
    """What can be done with values of one type. `dim` is the dimension of the batch; frames have rows at 0 only.

    `rows`: how many items it has along `dim`; None if it has no such dimension, and goes whole to every chunk.
    `form`: what it looks like but for its number of rows. `empty` and `put`: room for all rows, and a part of them.
    """

    rows: Callable[[Any, int], int | None]
    cut: Callable[[Any, int, int, int], Any]  # value, dim, start, number of rows
    join: Callable[[list[Any], int], Any]
    form: Callable[[Any, int], Any]
    same: Callable[[Any, Any], bool] = _equal
    copy: Callable[[Any], Any] = copy.deepcopy
    fixed: Callable[[Any], bool] = lambda value: False  # it can be put into `empty` ones, part by part
    empty: Callable[..., Any] = lambda *_: None  # value, dim, total, device
    put: Callable[[Any, int, int, Any], bool] = lambda *_: False  # room, dim, start, part; False: it does not fit there


KINDS: dict[type | str, BatchKind] = {}
_FOUND: dict[type, BatchKind | None] = {}  # what was looked for


def kind_of(value: Any) -> BatchKind | None:
    """How a value is cut and joined; None if it has no rows that anybody knows of."""
    if (known := _FOUND.get(type(value), ...)) is not ...:
        return known
    found = _FOUND[type(value)] = _kind(type(value))
    return found


def _kind(value: type) -> BatchKind | None:
    for base in value.__mro__:
        found = KINDS.get(base)
        if found is None and base.__module__ != "builtins":
            found = KINDS.get(f"{base.__module__.partition('.')[0]}.{base.__name__}")
        if found is not None:
            return found
    return None


def rows_of(value: Any, dim: int) -> int | None:
    """How many items a value has along a dimension; None if it has none, and goes whole to every chunk."""
    kind = kind_of(value)
    return None if kind is None else kind.rows(value, dim)


def register_batch_type(
    kind: type,
    *,
    cut: Callable[[Any, int, int], Any],
    join: Callable[[list[Any]], Any],
    rows: Callable[[Any], int] = len,
    same: Callable[[Any, Any], bool] = _equal,
) -> None:
    """Let values of a type be batches, and results: `cut(value, start, stop)` and `join(values)` undo each other.

    >>> class Cells:
    ...     def __init__(self, names):
    ...         self.names = names
    >>> register_batch_type(
    ...     Cells,
    ...     rows=lambda cells: len(cells.names),
    ...     cut=lambda cells, start, stop: Cells(cells.names[start:stop]),
    ...     join=lambda parts: Cells([name for part in parts for name in part.names]),
    ... )
    >>> from dovetail.dispatch import Dispatcher
    >>> with Dispatcher(lambda cells: Cells([2 * name for name in cells.names]), sizes=2, cache=False) as doubled:
    ...     doubled.run(Cells(["a", "b", "c"])).names
    ['aa', 'bb', 'cc']
    """
    if not isinstance(kind, type):
        raise InputError(f"expected a type whose values have rows, found {kind!r}")
    check_functions(cut=cut, join=join, rows=rows, same=same)
    KINDS[kind] = BatchKind(
        rows=lambda value, dim: rows(value) if dim == 0 else None,
        cut=lambda value, dim, start, n: cut(value, start, start + n),
        join=lambda values, dim: join(values),
        form=lambda value, dim: type(value).__qualname__,
        same=same,
    )
    _FOUND.clear()  # now: another thread may look in between


# -- tensors


def _dim_size(value: Any, dim: int) -> int | None:
    """The size of a dimension of whatever has a shape."""
    return int(value.shape[dim]) if -value.ndim <= dim < value.ndim else None


def tensor_form(tensor: Tensor, dim: int) -> Any:
    """The form of a tensor or an array; one that is on a device already is another."""
    shape = tuple(tensor.shape)
    place = () if getattr(tensor, "is_cpu", True) else (str(tensor.device),)
    return (tensor.dtype, shape[:dim] + (shape[dim + 1 :] if dim != -1 else ()), *place)


def _narrowed(tensor: Tensor, dim: int, start: int, n: int) -> Tensor:
    if tensor.layout is torch.strided:
        return tensor.narrow(dim, start, n)
    return torch.narrow_copy(tensor, dim, start, n)


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


_LAST_DIGITS = 16  # units of the last digit, in which devices may differ


def _same_tensor(first: Tensor, other: Tensor) -> bool:
    if first is other:
        return True
    if first.shape != other.shape or first.dtype != other.dtype or first.layout != other.layout:
        return False
    if first.layout is not torch.strided:
        return _same_tensor(first.to_dense(), other.to_dense())
    other = other.to(first.device)
    if not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, other)
    return torch.allclose(first, other, rtol=_LAST_DIGITS * torch.finfo(first.dtype).eps, atol=0, equal_nan=True)


def _tensor_rows(tensor: Tensor, dim: int) -> int | None:
    if tensor.is_nested:
        raise InputError("a nested tensor is neither cut nor joined: give the list of its tensors (unbind)")
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise InputError(f"a tensor of {tensor.layout} is neither cut nor joined: give its to_sparse_coo()")
    return _dim_size(tensor, dim)


def _joined_tensors(values: list[Tensor], dim: int) -> Tensor:
    found = torch.cat(values, dim)
    if found.layout is not torch.strided and all(value.is_coalesced() for value in values):
        return found.coalesce()
    if all(isinstance(value, torch.nn.Parameter) for value in values):
        return torch.nn.Parameter(found.detach(), values[0].requires_grad)
    return found


def _room(tensor: Tensor, dim: int, total: int, device: torch.device | None) -> Tensor:
    """With its dimensions in the same order in memory."""
    shape = list(tensor.shape)
    shape[dim] = total
    where = device or tensor.device
    if tensor.is_contiguous():
        return with_large_pages(torch.empty(shape, dtype=tensor.dtype, device=where))
    dense = torch.empty_like(tensor, device="meta").stride()
    strides, step = [1] * tensor.ndim, 1
    for i in sorted(range(tensor.ndim), key=lambda i: (dense[i], -i)):
        strides[i], step = step, step * max(shape[i], 1)
    return with_large_pages(torch.empty_strided(shape, strides, dtype=tensor.dtype, device=where))


def _put(room: Tensor, dim: int, start: int, part: Tensor) -> bool:
    """Copy, but never with the silent change of shape or type that torch would make."""
    there = room.narrow(dim, start, part.shape[dim])
    if there.shape != part.shape or there.dtype is not part.dtype:
        return False
    there.copy_(part, non_blocking=True)
    return True


KINDS[Tensor] = BatchKind(
    rows=_tensor_rows,
    cut=_narrowed,
    join=_joined_tensors,
    form=tensor_form,
    same=_same_tensor,
    copy=Tensor.clone,
    fixed=lambda value: type(value) is Tensor and _is_strided(value) and not value.requires_grad,
    empty=_room,
    put=_put,
)

# -- arrays


def _along(array: Any, dim: int, start: int, stop: int) -> Any:
    return array[(slice(None),) * (dim % array.ndim) + (slice(start, stop),)]


def _same_array(first: Any, other: Any) -> bool:
    if first.shape != other.shape or first.dtype != other.dtype:
        return False
    if first.dtype.kind not in "fc":
        return bool(np.array_equal(first, other))
    return bool(np.allclose(first, other, rtol=_LAST_DIGITS * np.finfo(first.dtype).eps, atol=0, equal_nan=True))


def _room_array(array: Any, dim: int, total: int, *_: Any) -> Any:
    shape = list(array.shape)
    shape[dim] = total
    return np.empty_like(array, shape=shape)


def _put_array(room: Any, dim: int, start: int, part: Any) -> bool:
    there = _along(room, dim, start, start + part.shape[dim])
    if there.shape != part.shape or there.dtype != part.dtype:
        return False
    there[...] = part
    return True


def _joined_arrays(values: list[Any], dim: int) -> Any:
    first, types = values[0], {value.dtype for value in values}
    if isinstance(first, np.ma.MaskedArray):
        found = np.ma.concatenate(values, axis=dim)  # type: ignore[no-untyped-call]
        found.fill_value = first.fill_value
        return found.harden_mask() if first.hardmask else found
    if len(types) > 1 and any(each.kind not in "US" for each in types):
        raise TypeError(f"they are of {' and '.join(sorted(map(str, types)))}")
    # Without its type NumPy would pack a structure anew.
    found = np.concatenate(values, axis=dim, dtype=first.dtype if len(types) == 1 else None)
    found = found if type(found) is type(first) else found.view(type(first))
    found.__array_finalize__(first)  # what a subclass has beside its numbers
    return found


KINDS[np.ndarray] = BatchKind(
    rows=_dim_size,
    cut=lambda value, dim, start, n: _along(value, dim, start, start + n),
    join=_joined_arrays,
    form=tensor_form,
    same=_same_array,
    copy=lambda value: copy.deepcopy(value) if value.dtype.hasobject else value.copy(),
    # Text and objects have no fixed size: the longest of all chunks decides.
    fixed=lambda value: type(value) is np.ndarray and value.dtype.kind in "biufcmMV",
    empty=_room_array,
    put=_put_array,
)
KINDS["jaxlib.ArrayImpl"] = BatchKind(
    rows=_dim_size,
    cut=lambda value, dim, start, n: _along(value, dim, start, start + n),
    join=lambda values, dim: import_module("jax.numpy").concatenate(values, dim),
    form=tensor_form,
    same=lambda first, other: _same_array(np.asarray(first), np.asarray(other)),
    copy=lambda value: value,  # it cannot be changed
)
for _name in ("csr_array", "csr_matrix"):
    KINDS[f"scipy.{_name}"] = BatchKind(
        rows=lambda value, dim: int(value.shape[0]) if dim == 0 else None,
        cut=lambda value, dim, start, n: value[start : start + n],
        join=lambda values, dim: import_module("scipy.sparse").vstack(values, format="csr"),
        form=lambda value, dim: ("csr", value.dtype, value.shape[1:]),
        same=lambda first, other: first.shape == other.shape and not (first != other).nnz,
        copy=lambda value: value.copy(),
    )

# -- frames: rows are their first and only dimension


def _frame_rows(value: Any, dim: int) -> int | None:
    return len(value) if dim == 0 else None


def _joined_index(values: list[Any]) -> Any:
    """One that each chunk counts from the same number is one that the function made, and would have counted on."""
    pandas = import_module("pandas")
    found = values[0].append(values[1:])
    counts = [each for each in values if len(each)]
    if len(counts) < 2 or len({each[0] for each in counts}) > 1:
        return found
    if all(isinstance(each, pandas.RangeIndex) for each in counts) and len({each.step for each in counts}) == 1:
        start, step = counts[0].start, counts[0].step
        return pandas.RangeIndex(start, start + step * len(found), step, name=found.name)
    long = [each for each in counts if len(each) > 1]
    if len(long) > 1 and found.dtype.kind in "iu" and all((np.diff(each) == 1).all() for each in long):
        raise TypeError(
            f"its index counts from {counts[0][0]} in every chunk, and may be the batch's or the function's: "
            "return a RangeIndex, which is counted on, or reset the index of the batch"
        )
    return found


def _pandas_schema(value: Any) -> Any:
    return [(value.name, value.dtype)] if value.ndim == 1 else [*zip(value.columns, value.dtypes, strict=True)]


def _pandas_form(value: Any, dim: int) -> Any:
    return value.dtype if value.ndim == 1 else tuple(value.columns)  # their types take a hundred times as long


def _joined_pandas(values: list[Any], dim: int) -> Any:
    schema = _pandas_schema(values[0])
    for value in values:  # pandas would fill up and widen
        if (other := _pandas_schema(value)) != schema:
            both = (", ".join(f"{name}: {dtype}" for name, dtype in each) for each in (schema, other))
            raise TypeError(f"their columns or types differ: {' and '.join(both)}")
        if value.attrs != values[0].attrs:
            raise TypeError(f"their attrs differ: {values[0].attrs} and {value.attrs}")
    found = import_module("pandas").concat(values)
    found.index = _joined_index([each.index for each in values])
    return found


KINDS["pandas.Index"] = BatchKind(
    rows=_frame_rows,
    cut=lambda value, dim, start, n: value[start : start + n],
    join=lambda values, dim: _joined_index(values),
    form=lambda value, dim: str(value.dtype),
    same=lambda first, other: bool(first.identical(other)),
    copy=lambda value: value,  # it cannot be changed
)
for _name in ("DataFrame", "Series"):
    KINDS[f"pandas.{_name}"] = BatchKind(
        rows=_frame_rows,
        cut=lambda value, dim, start, n: value.iloc[start : start + n],
        join=_joined_pandas,
        form=_pandas_form,
        same=lambda first, other: bool(first.equals(other)),
        copy=lambda value: pickle.loads(pickle.dumps(value)),  # its own copy has the same objects in it
    )
    KINDS[f"polars.{_name}"] = BatchKind(
        rows=_frame_rows,
        cut=lambda value, dim, start, n: value.slice(start, n),
        join=lambda values, dim: import_module("polars").concat(values),
        form=lambda value, dim: str(getattr(value, "schema", getattr(value, "dtype", ""))),
        same=lambda first, other: bool(first.equals(other)),
        copy=lambda value: value.clone(),
    )


def _joined_tables(arrow: Any, values: list[Any]) -> Any:
    schema = values[0].schema
    for value in values:  # Arrow takes those of the first
        if not value.schema.equals(schema, check_metadata=True) and value.schema.equals(schema):
            raise TypeError(f"their metadata differ: {_metadata(schema)} and {_metadata(value.schema)}")
    if not isinstance(values[0], arrow.Table):
        return arrow.concat_batches(values)
    if schema:
        return arrow.concat_tables(values)
    rows = arrow.nulls(sum(map(len, values)))  # without columns Arrow would forget how many there are
    return arrow.table({"rows": rows}).replace_schema_metadata(schema.metadata).select([])


def _metadata(schema: Any) -> Any:
    return schema.metadata, *(field.metadata for field in schema)


_ARROW_JOINS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Table": _joined_tables,
    "RecordBatch": _joined_tables,
    "ChunkedArray": lambda arrow, values: arrow.chunked_array([chunk for each in values for chunk in each.chunks]),
    "Array": lambda arrow, values: arrow.concat_arrays(values),
}
for _name, _joins in _ARROW_JOINS.items():
    KINDS[f"pyarrow.{_name}"] = BatchKind(
        rows=_frame_rows,
        cut=lambda value, dim, start, n: value.slice(start, n),
        join=lambda values, dim, joins=_joins: joins(import_module("pyarrow"), values),  # type: ignore[misc]
        form=lambda value, dim: str(getattr(value, "schema", getattr(value, "type", ""))),
        same=lambda first, other: bool(first.equals(other)),
        copy=lambda value: value,  # it cannot be changed
    )

# -- NEML2's typed tensors: neither their components nor their sites are a batch


def _batch_shape(value: Any) -> tuple[int, ...]:
    return tuple(value.batch_shape if hasattr(value, "batch_ndim") else value.dynamic_batch_shape)


def _batch_dim(value: Any, dim: int) -> int:
    return int(getattr(value, "k_ndim", 0) + dim % len(_batch_shape(value)))


def _typed_rows(value: Any, dim: int) -> int | None:
    shape = _batch_shape(value)
    return shape[dim] if -len(shape) <= dim < len(shape) else None


for _name in ("TensorWrapper", "Tensor"):  # of a known form, and of any
    KINDS[f"neml2.{_name}"] = BatchKind(
        rows=_typed_rows,
        cut=lambda value, dim, start, n: dataclasses.replace(
            value, data=value.data.narrow(_batch_dim(value, dim), start, n)
        ),
        join=lambda values, dim: dataclasses.replace(
            values[0], data=torch.cat([each.data for each in values], _batch_dim(values[0], dim))
        ),
        form=lambda value, dim: (type(value).__name__, tensor_form(value.data, _batch_dim(value, dim))),
        same=lambda first, other: _same_tensor(first.data, other.data),
        copy=lambda value: dataclasses.replace(value, data=value.data.clone()),
    )
