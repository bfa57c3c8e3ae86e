"""Rows of text files with columns, each cell read as what it should be; an error names file, line and column."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from math import inf, isfinite
from pathlib import Path

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import open_bytes


class CsvRow:
    """The row that is read now. Cells are found by the names of their columns; an empty one is as if it were not there.

    >>> row = CsvRow(Path("jobs.csv"), ["model", "width"])
    >>> row.cells, row.line = ["LM", "two"], 7
    >>> row.text("model"), row.number("weight", 1.0)
    ('LM', 1.0)
    >>> row.whole("width")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: jobs.csv:7: width: expected a whole number, found 'two'
    """

    __slots__ = ("_at", "cells", "columns", "line", "path")

    def __init__(self, path: Path, columns: Collection[str]) -> None:
        self.path = path
        self.columns = list(columns)
        self.line = 1
        self.cells: list[str] = []
        self._at = {name: i for i, name in enumerate(self.columns)}

    def __contains__(self, column: str) -> bool:
        """Whether the row has something in this column."""
        at = self._at.get(column)
        return at is not None and bool(self.cells[at])

    def error(self, column: str, message: str) -> InputError:
        return InputError(f"{self.path}:{self.line}: {column + ': ' if column else ''}{message}")

    def text(self, column: str, default: str | None = None) -> str:
        at = self._at.get(column)
        found = self.cells[at] if at is not None else ""
        if found:
            return found
        if default is None:
            raise self.error(column, "expected something, found nothing")
        return default

    def number(self, column: str, default: float | None = None, *, least: float = -inf) -> float:
        found = self.text(column, None if default is None else "")
        if not found:
            assert default is not None
            return default
        try:
            value = float(found)
        except ValueError:
            raise self.error(column, f"expected a number, found {found!r}") from None
        if not isfinite(value) or value < least:
            wanted = "a finite number" if least == -inf else f"a number >= {least:g}"
            raise self.error(column, f"expected {wanted}, found {found!r}")
        return value

    def whole(self, column: str, default: int | None = None, *, least: int = 1) -> int:
        found = self.text(column, None if default is None else "")
        if not found:
            assert default is not None
            return default
        try:
            value = int(found) if found.isdecimal() else float(found)
        except ValueError:
            raise self.error(column, f"expected a whole number, found {found!r}") from None
        if not isfinite(value) or value != int(value) or value < least:
            raise self.error(column, f"expected a whole number >= {least}, found {found!r}")
        return int(value)


def read_rows(path: Path, columns: Collection[str] | None = None, *, delimiter: str = ",") -> Iterator[CsvRow]:
    """The rows of a file, one after another in the same object; the first line names the columns if they are not given.

    Every row must have as many cells as there are columns. Empty lines are passed over.
    """
    with open_bytes(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        # Tab-separated traces hold commands as they are typed: a quote there is a quote.
        reader = csv.reader(
            text, delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        )
        row: CsvRow | None = None if columns is None else CsvRow(path, columns)
        try:
            for cells in reader:
                if not cells:
                    continue
                if row is None:
                    row = CsvRow(path, [name.strip() for name in cells])
                    continue
                row.line = reader.line_num
                row.cells = [cell.strip() for cell in cells]
                if len(cells) != len(row.columns):
                    raise row.error("", f"expected {len(row.columns)} columns, found {len(cells)}")
                yield row
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}:{reader.line_num + 1}: not a text file with columns: {error}") from None


def header_of(path: Path, *, delimiter: str = ",") -> list[str]:
    """The cells of the first line that is not empty; none if the file is empty or not text."""
    with open_bytes(path) as file:
        for line in file:
            if line.strip():
                try:
                    return [cell.strip() for cell in next(csv.reader([line.decode("utf-8-sig")], delimiter=delimiter))]
                except (UnicodeDecodeError, csv.Error):
                    return []
    return []


def check_columns(path: Path, found: Collection[str], needed: Collection[str], known: Collection[str]) -> None:
    """Refuse a table that lacks a column, or has one that nobody would read.

    >>> check_columns(Path("jobs.csv"), ["model", "wieght"], ["model"], ["model", "weight"])
    Traceback (most recent call last):
    dovetail.core.errors.InputError: jobs.csv:1: unknown column 'wieght'; did you mean 'weight'?
    """
    for name in found:
        if name not in known:
            raise InputError(f"{path}:1: unknown column {name!r}{did_you_mean(name, known)}")
    for name in needed:
        if name not in found:
            raise InputError(f"{path}:1: missing column {name!r}; found {', '.join(found) or 'nothing'}")
    for name in found:
        if list(found).count(name) > 1:
            raise InputError(f"{path}:1: column {name!r} is given twice")
