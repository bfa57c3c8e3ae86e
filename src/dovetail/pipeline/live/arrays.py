"""Inputs from NumPy files, cut into microbatches, and outputs into them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.core.files.output import written_whole
from dovetail.core.files.reading import open_bytes

if TYPE_CHECKING:
    import torch

    from dovetail.pipeline.models.spec import Value


class Microbatches(Sequence["Value"]):
    """Arrays with one row per item, as microbatches; numbers get the model's dtype."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]], batch_size: int, dtype: torch.dtype) -> None:
        self._arrays = arrays
        self._batch_size = batch_size
        self._dtype = dtype

    def __len__(self) -> int:
        return ceil(len(self._arrays[0]) / self._batch_size)

    def __getitem__(self, number: Any) -> Any:
        import torch

        if not 0 <= number < len(self):
            raise IndexError(number)
        rows = slice(number * self._batch_size, (number + 1) * self._batch_size)
        # A copy: the file is mapped read-only, and a tensor must be writable.
        values = tuple(torch.from_numpy(np.array(array[rows])) for array in self._arrays)
        values = tuple(value.to(self._dtype) if value.is_floating_point() else value for value in values)
        return values if len(values) > 1 else values[0]


def read_inputs(given: Any, batch_size: int, dtype: str) -> Microbatches:
    """The microbatches of a .npy file (one input) or a .npz file (several, in the file's order), or of one or several
    arrays or tensors."""
    import torch

    if isinstance(given, str | os.PathLike):
        where, arrays = str(given), _from_file(as_path(given, "input"))
    else:
        where, arrays = "input", [_array(each) for each in (given if isinstance(given, tuple) else (given,))]
    counts = {len(array) if array.ndim else 0 for array in arrays}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"{where}: expected arrays with one row per item, found {sorted(counts) or 'none'} rows")
    return Microbatches(arrays, batch_size, getattr(torch, dtype.removeprefix("torch.")))


def _from_file(path: Path) -> list[np.ndarray[Any, Any]]:
    open_bytes(path).close()
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return [loaded] if isinstance(loaded, np.ndarray) else [loaded[name] for name in loaded.files]
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: expected a .npy or .npz file of numbers: {error}") from None


def _array(given: Any) -> np.ndarray[Any, Any]:
    try:
        found: np.ndarray[Any, Any] = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except (TypeError, ValueError) as error:
        raise InputError(f"input: expected arrays of numbers: {error}") from None
    if found.dtype.kind not in "fiub":
        raise InputError(f"input: expected a file, or arrays of numbers, found {given!r:.80}")
    return found


def together(outputs: Sequence[Value]) -> Value:
    """All outputs, one row per item."""
    import torch

    rows = [value if isinstance(value, tuple) else (value,) for value in outputs]
    columns = tuple(torch.cat(column) for column in zip(*rows, strict=True))
    return columns if isinstance(outputs[0], tuple) else columns[0]


def write_outputs(path: Path, outputs: Sequence[Value]) -> None:
    """All outputs, one row per item: a .npz file if the model gives several tensors or the name says so."""
    import torch

    columns = together(outputs) if outputs else ()
    # NumPy has no bfloat16.
    arrays = [
        (c.float() if c.dtype == torch.bfloat16 else c).numpy()
        for c in (columns if isinstance(columns, tuple) else (columns,))
    ]
    with written_whole(path) as file:
        if path.suffix == ".npz" or len(arrays) > 1:
            np.savez(file, *arrays)
        else:
            np.save(file, arrays[0] if arrays else np.empty(0))
