"""Rows of a trace, one after the other whatever their number: CSV with a header, JSON lines, or a JSON array."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

import msgspec

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.reading import check_rereadable, is_json_lines, open_bytes, parse, read_bytes, skip_bom
from dovetail.workflow.inputs.system import MOST

TimeUnit = Literal["s", "ms", "us", "ns"]
UNITS: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class RowFault(Exception):  # noqa: N818
    """What is wrong with one row, and under which key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)


class TraceRow:
    """One row: its fields by the names that an importer has for them, and where it stands."""

    __slots__ = ("_data", "_keys", "place")

    def __init__(self, place: str, data: Any, keys: Mapping[str, str]) -> None:
        self.place = place
        self._data = data
        self._keys = keys

    def get(self, name: str) -> Any:
        """A field, or None where the row has nothing there. A key with dots leads inside, unless one is called so."""
        key, found = self._keys.get(name, ""), self._data
        if not key:
            return None
        if not isinstance(found, dict):
            raise found if isinstance(found, RowFault) else _no_row(found)
        if key not in found:
            for step in key.split("."):
                found = found.get(step) if isinstance(found, dict) else None
            return found
        return found[key] if found[key] != "" else None

    def text(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | int):
            raise RowFault(self._keys[name], f"expected text, found {value!r}")
        return str(value)

    def tokens(self, name: str) -> int | None:
        """A number of tokens."""
        value = self.get(name)
        if value is None:
            return None
        number = _number(value)
        if number is None or number != int(number) or not 0 <= number <= MOST:
            raise RowFault(self._keys[name], f"expected a whole number of tokens, found {value!r}")
        return int(number)

    def blocks(self, name: str) -> list[int | str]:
        """A list of blocks of a prefix, or its name; nothing where the row has none."""
        value = self.get(name)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(block, int | str) and not isinstance(block, bool) for block in found):
            raise RowFault(self._keys[name], f"expected a list of numbers or names, found {value!r}")
        return found

    def seconds(self, name: str, unit: TimeUnit = "s") -> float | None:
        """A time: a number of `unit`, or an ISO 8601 time (as UTC, if it names no zone), which becomes Unix seconds."""
        value = self.get(name)
        if value is None:
            return None
        number = _number(value)
        if number is not None and abs(number) / UNITS[unit] < MOST:
            return round(number / UNITS[unit], 6)
        try:
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
        except (TypeError, ValueError, OverflowError):
            expected = f"expected a number of {unit} or an ISO 8601 time"
            raise RowFault(self._keys[name], f"{expected}, found {value!r}") from None

    def need(self, name: str, value: Any) -> Any:
        """A value that may not be missing."""
        if value is None:
            raise RowFault(self._keys.get(name, name), "missing")
        return value


def _no_row(found: Any) -> RowFault:
    return RowFault("", f"expected a row with keys, found {type(found).__name__}")


def _number(value: Any) -> float | None:
    """What is a number, or the text of one; never one that is none (inf, nan)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number - number == 0 else None


def read_rows(path: Path, keys: Mapping[str, str], required: Sequence[str] = ()) -> Iterator[TraceRow]:
    """The rows of a file. `keys` says what the fields are called there; a table must have columns for those `required`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "calls.csv"
    >>> _ = file.write_text("when,in\\n2.5,300\\n")
    >>> [(row.seconds("at"), row.tokens("input")) for row in read_rows(file, {"at": "when", "input": "in"})]
    [(2.5, 300)]
    """
    check_rereadable(path)
    with open_bytes(path) as file:
        skip_bom(file)
        begin = file.read(64).lstrip()[:1]
    if begin == b"[":
        data = parse(path, read_bytes(path, "CSV or JSON lines"))
        if not isinstance(data, list):
            raise InputError(f"{path}: expected a list of rows, found {type(data).__name__}")
        yield from (TraceRow(f"{path}: {i}", item, keys) for i, item in enumerate(data))
    elif begin == b"{":
        yield from (TraceRow(place, data, keys) for place, data in read_objects(path))
    else:
        yield from _table(path, keys, required)


def read_objects(path: Path) -> Iterator[tuple[str, Any]]:
    """JSON objects and where they stand: one per line, or one that is the whole file."""
    check_rereadable(path)
    if not is_json_lines(path) and path.suffix != ".jsonl":
        yield str(path), parse(path, read_bytes(path, "JSON"))
        return
    decode = msgspec.json.Decoder().decode
    with open_bytes(path) as file:
        skip_bom(file)
        for number, line in enumerate(file, start=1):
            if line.strip():
                place = f"{path}:{number}"
                try:
                    yield place, decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    yield place, RowFault("", f"not JSON: {error}")


def _table(path: Path, keys: Mapping[str, str], required: Sequence[str]) -> Iterator[TraceRow]:
    with open_bytes(path) as file, TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
        rows = csv.reader(text)
        try:
            header = [name.strip() for name in next(rows, [])]
            if not any(header):
                raise InputError(f"{path}: is empty; expected CSV or JSON lines")
            for name in required:
                if keys[name] not in header:
                    hint = did_you_mean(keys[name], header)
                    raise InputError(f"{path}:1: expected a column {keys[name]!r}{hint}")
            for cells in rows:
                if cells:
                    place, data = f"{path}:{rows.line_num}", dict(zip(header, cells, strict=False))
                    yield TraceRow(place, data if len(cells) == len(header) else _uneven(header, cells), keys)
        except csv.Error as error:
            raise InputError(f"{path}:{rows.line_num}: not CSV: {error}") from None


def _uneven(header: Sequence[str], cells: Sequence[str]) -> RowFault:
    return RowFault("", f"expected {len(header)} cells, found {len(cells)}")
