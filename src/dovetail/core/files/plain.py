"""What users give in the place of a file, as YAML or JSON would have given it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """Structs, frames of pandas or polars, arrays and their numbers, as YAML or JSON would have given them. Cells of a
    frame that hold nothing are left out.

    >>> import numpy as np
    >>> plain({"rate": np.float64(0.5), "sizes": (1, np.int64(2))})
    {'rate': 0.5, 'sizes': [1, 2]}
    """
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, PurePath):
        return str(value)
    if is_frame(value):
        return list(_records(value))
    if hasattr(value, "tolist"):  # of numpy: an array, or one of its numbers
        return plain(value.tolist())
    return value


def scalar(value: Any) -> Any:
    """A number of numpy's as one of Python's; all else as it is.

    >>> import numpy as np
    >>> scalar(np.int64(4)), scalar("4")
    (4, '4')
    """
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def is_frame(value: Any) -> bool:
    """Whether it is a frame of pandas or polars; neither is imported to find out."""
    return hasattr(value, "columns") and hasattr(value, "shape") and len(value.shape) == 2


def _records(frame: Any) -> Iterator[dict[str, Any]]:
    """Its rows; one without any value is a blank line of the file that it was read from."""
    for row in frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records"):
        kept = {str(key): _cell(cell) for key, cell in row.items() if not _missing(cell)}
        if kept:
            yield kept


def _missing(cell: Any) -> bool:
    return cell is None or type(cell).__name__ in ("NaTType", "NAType") or (isinstance(cell, float) and cell != cell)


def _cell(cell: Any) -> Any:
    if isinstance(cell, Mapping):  # a struct of polars has the fields of all rows
        return {key: _cell(item) for key, item in cell.items() if not _missing(item)}
    return cell.to_pydatetime() if hasattr(cell, "to_pydatetime") else plain(cell)
