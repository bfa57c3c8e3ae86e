"""Rows of text files with columns, each cell read as what it should be; an error names file, line and column.

Rows may also be given as dicts, as a user of Python has them; an error then names the row.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.reading import open_bytes

MOST = 1e12  # seconds, steps or money: more than that is a slip, and no solver would cope with it
LEAST = 1e-9  # of what is not 0
MOST_WHOLE = 10_000_000  # accelerators: every one has its place in the simulator's tables
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6


class GivenRows(Struct, frozen=True):
    """Rows in the place of a file, and what errors call them.

    >>> header_of(GivenRows("trace", [{"model": "LM"}, {"model": "LM", "width": 2}]))
    ['model', 'width']
    """

    name: str
    rows: list[dict[str, Any]]

    def __str__(self) -> str:
        return self.name


Source = Path | GivenRows


def given_rows(name: str, data: Any) -> GivenRows:
    """Rows as a user gave them: a list of dicts."""
    for i, row in enumerate(data if isinstance(data, list) else [data]):
        if not isinstance(row, Mapping):
            raise InputError(f"{name}[{i}]: expected a dict with columns, found {row!r}")
    if not isinstance(data, list):
        raise InputError(f"{name}: expected a path, a list of dicts or a frame, found {data!r}")
    return GivenRows(name, [{str(key): value for key, value in row.items()} for row in data])


def _place(source: Source, line: int) -> str:
    """
    >>> _place(Path("jobs.csv"), 7), _place(GivenRows("trace", []), 1), _place(GivenRows("trace", []), 7)
    ('jobs.csv:7', 'trace', 'trace[5]')
    """
    if isinstance(source, Path):
        return f"{source}:{line}"
    return source.name + (f"[{line - 2}]" if line > 1 else "")


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

    __slots__ = ("_at", "cells", "columns", "line", "path", "untouched")

    def __init__(self, path: Source, columns: Collection[str]) -> None:
        self.path = path
        self.columns = list(columns)
        self.line = 1
        self.cells: list[str] = []
        self.untouched: list[str] = []  # cells with the blanks around them
        self._at = {name: i for i, name in enumerate(self.columns)}

    def __contains__(self, column: str) -> bool:
        """Whether the row has something in this column."""
        at = self._at.get(column)
        return at is not None and bool(self.cells[at])

    def error(self, column: str, message: str) -> InputError:
        return InputError(f"{_place(self.path, self.line)}: {column + ': ' if column else ''}{message}")

    def text(self, column: str, default: str | None = None) -> str:
        at = self._at.get(column)
        found = self.cells[at] if at is not None else ""
        if found:
            return found
        if default is None:
            raise self.error(column, "expected something, found nothing")
        return default

    def verbatim(self, column: str) -> str:
        """What the cell holds with the blanks around it; nothing if there is no such column."""
        at = self._at.get(column)
        return self.untouched[at] if at is not None else ""

    def number(self, column: str, default: float | None = None, *, least: float = -MOST, most: float = MOST) -> float:
        found = self.text(column, None if default is None else "")
        if not found:
            assert default is not None
            return default
        try:
            value = float(found)
        except ValueError:
            raise self.error(column, f"expected a number, found {found!r}") from None
        if not least <= value <= most:
            wanted = f"<= {most:g}" if value > most else f">= {least:g}"
            raise self.error(column, f"expected a number {wanted}, found {found!r}")
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
        if not least <= value <= MOST_WHOLE or value != int(value):
            wanted = f"<= {MOST_WHOLE}" if value > MOST_WHOLE else f">= {least}"
            raise self.error(column, f"expected a whole number {wanted}, found {found!r}")
        return int(value)


def read_rows(path: Source, columns: Collection[str] | None = None, *, delimiter: str = ",") -> Iterator[CsvRow]:
    """The rows of a file, one after another in the same object; the first line names the columns if they are not given.

    Every row must have as many cells as there are columns. Empty lines are passed over.
    """
    if isinstance(path, GivenRows):
        given = CsvRow(path, header_of(path))
        for given.line, found in enumerate(path.rows, start=2):
            given.untouched = ["" if found.get(name) is None else str(found[name]) for name in given.columns]
            given.cells = [cell.strip() for cell in given.untouched]
            yield given
        return
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
                row.untouched, row.cells = cells, [cell.strip() for cell in cells]
                if len(cells) != len(row.columns):
                    raise row.error("", f"expected {len(row.columns)} columns, found {len(cells)}")
                yield row
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}:{reader.line_num + 1}: not a text file with columns: {error}") from None


def header_of(path: Source, *, delimiter: str = ",") -> list[str]:
    """The cells of the first line that is not empty; none if the file is empty or not text."""
    if isinstance(path, GivenRows):
        return list(dict.fromkeys(name for row in path.rows for name in row)) if delimiter == "," else []
    with open_bytes(path) as file:
        for line in file:
            if line.strip():
                try:
                    return [cell.strip() for cell in next(csv.reader([line.decode("utf-8-sig")], delimiter=delimiter))]
                except (UnicodeDecodeError, csv.Error):
                    return []
    return []


def check_columns(path: Source, found: Collection[str], needed: Collection[str], known: Collection[str]) -> None:
    """Refuse a table that lacks a column, or has one that nobody would read.

    >>> check_columns(Path("jobs.csv"), ["model", "wieght"], ["model"], ["model", "weight"])
    Traceback (most recent call last):
    dovetail.core.errors.InputError: jobs.csv:1: unknown column 'wieght'; did you mean 'weight'?
    """
    for name in found:
        if name not in known:
            raise InputError(f"{_place(path, 1)}: unknown column {name!r}{did_you_mean(name, known)}")
    for name in needed:
        if name not in found:
            raise InputError(f"{_place(path, 1)}: missing column {name!r}; found {', '.join(found) or 'nothing'}")
    for name in found:
        if list(found).count(name) > 1:
            raise InputError(f"{_place(path, 1)}: column {name!r} is given twice")
