"""The level's request files, validated whole before anything runs, then given as arrivals in order of time.

A JSON-lines file is read twice, once to validate and once to run, so that a million requests need little memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Arrived
from dovetail.core.files import Document, explain, is_json_lines, parse, read_bytes
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.system import DEFAULT_NODE_S, MOST, System

Mode = Literal["offline", "online"]
_SHOWN = 20  # faults shown at once
_SMALL = 1 << 22  # bytes up to which a line is looked up for an error
_IN_MEMORY = 1 << 26  # bytes of JSON lines that are kept as arrivals instead of being read twice
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNKNOWN = -(1 << 62)  # the time of a request whose timestamp cannot be read: it counts as the earliest


class Row(Struct, forbid_unknown_fields=True):
    """One request as it stands in a file; `deadline_seconds` (after arrival) and `priority` are our additions."""

    request_id: str
    workflow_id: str
    timestamp: Any = None
    node_execution_times: dict[str, float] = field(default_factory=dict)
    input_data: Any = None
    node_configs: Any = None
    metadata: Any = None
    deadline_seconds: float | None = None
    priority: float = 1.0


class _LooseRow(Row, forbid_unknown_fields=False):
    """As the older scheduler read it: unknown keys are ignored."""


class _Name(Struct):
    """What a request is called, whatever else is wrong with it."""

    request_id: str = ""
    workflow_id: str = ""


class _File(Struct, forbid_unknown_fields=True):
    requests: list[Any]
    metadata: Any = None


class _LooseFile(_File, forbid_unknown_fields=False):
    pass


class _JsonFile(Struct, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]
    metadata: Any = None


class _LooseJsonFile(_JsonFile, forbid_unknown_fields=False):
    pass


class Requests:
    """All requests of a file. `forecast` is GPU-seconds per model, `estimates` how many durations came from where."""

    def __init__(
        self, path: Path, system: System, mode: Mode = "offline", on_error: OnError = "fail", compat: bool = False
    ) -> None:
        self.path = path
        self.digest = ""
        self._system = system
        self._shapes = system.shapes()
        self._online = mode == "online"
        self._on_error = on_error
        self._compat = compat
        self._row_type: type[Row] = _LooseRow if compat else Row
        self._hints = {name: [self._guess(part.kind) for part in shape.tasks] for name, shape in self._shapes.items()}
        self._doc: Document | None = None  # where a small file's lines are looked up
        self._base_us = 0
        self._works: list[tuple[float, Arrived]] | None = None
        self._index: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._begin(None)
        if is_json_lines(path) or (path.suffix == ".jsonl" and path.is_file()):  # whose first line may be broken
            self._read_lines()
        else:
            self._read_document()
        self._doc = None
        self._seen.clear()
        if self._fault_counts:
            raise InputError(self._all_faults())

    def _begin(self, suspects: frozenset[int] | None) -> None:
        """Nothing has been read. `suspects` are the hashes of the ids that may occur twice; None: any may."""
        self.total = 0
        self.skipped: list[str] = []
        self.skipped_count = 0
        self.forecast: dict[str, float] = dict.fromkeys(self._system.models, 0.0)
        self.estimates: Counter[str] = Counter()
        self.warnings: dict[str, int] = {}
        self._fault_counts: dict[str, int] = {}
        self._fault_lines: list[tuple[str, str]] = []
        self._suspects = suspects
        self._hashes = array("q")  # of all ids: 8 bytes each, where the ids themselves would be too much
        self._seen: set[str] = set()
        self._doubles: set[int] = set()  # which requests have an id that was used before
        self._clock: tuple[str, str] | None = None  # the first timestamp's kind, and whose it was

    def __len__(self) -> int:
        """Requests that arrive, the faulty ones that will be rejected included."""
        return self.total - self.skipped_count

    def arrivals(self) -> Iterator[tuple[float, Arrived]]:
        """Arrival time in seconds and the work, earliest first, file order on ties."""
        if self._works is not None:
            yield from self._works
            return
        assert self._index is not None
        order, offsets, stamps = self._index
        decode = msgspec.json.Decoder(self._row_type).decode
        for i, stamp, line in zip(order.tolist(), stamps.tolist(), self._lines_at(offsets), strict=True):
            work, _ = self._work(decode, line, i, count=False)
            if work is not None:
                yield self._arrival_s(stamp), work

    # --- reading ----------------------------------------------------------------------------------

    def _read_document(self) -> None:
        text = read_bytes(self.path)
        self.digest = hashlib.sha256(text).hexdigest()
        doc = Document(self.path, text, None)
        rows: list[Any]
        try:
            rows = msgspec.json.decode(text, type=_LooseJsonFile if self._compat else _JsonFile).requests
            decode: Callable[[Any], Row] = msgspec.json.Decoder(self._row_type).decode
        except msgspec.ValidationError as error:
            keys, message = explain(error, _File)
            raise doc.error(keys, message) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            doc.data = parse(self.path, text)
            rows = doc.convert(doc.data, _LooseFile if self._compat else _File).requests
            decode = partial(msgspec.convert, type=self._row_type)
        self._doc = doc if len(text) <= _SMALL else None
        stamps = array("q")
        works: list[Arrived] = []
        for i, raw in enumerate(rows):
            work, stamp = self._work(decode, raw, i)
            if work is not None:
                works.append(work)
                stamps.append(stamp)
        self.total = len(rows)
        order, when = self._in_time(stamps)
        self._works = [(self._arrival_s(stamp), works[i]) for i, stamp in zip(order, when[order].tolist(), strict=True)]

    def _read_lines(self) -> None:
        """First pass over JSON lines: validate, and remember only where each line begins and when it arrives."""
        keep = self.path.stat().st_size <= _IN_MEMORY
        works: list[Arrived] | None = [] if keep else None
        self._begin(None if keep else frozenset())
        offsets, stamps = self._scan(works)
        if suspects := self._find_suspects():
            self._begin(suspects)
            offsets, stamps = self._scan(None)
        order, when = self._in_time(stamps)
        if works is not None:
            sorted_stamps = when[order].tolist()
            self._works = [(self._arrival_s(stamp), works[i]) for i, stamp in zip(order, sorted_stamps, strict=True)]
        else:
            self._index = order, _int64(offsets)[order], when[order]

    def _scan(self, works: list[Arrived] | None) -> tuple[array[int], array[int]]:
        """Where each line begins, and its time; the works themselves only if a list is given."""
        digest = hashlib.sha256()
        decode = msgspec.json.Decoder(self._row_type).decode
        offsets, stamps = array("q"), array("q")
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    work, stamp = self._work(decode, line, self.total, number)
                    self.total += 1
                    if work is not None:
                        offsets.append(offset)
                        stamps.append(stamp)
                        if works is not None:
                            works.append(work)
                offset += len(line)
        self.digest = digest.hexdigest()
        return offsets, stamps

    def _lines_at(self, offsets: np.ndarray) -> Iterator[bytes]:
        at = -1
        with self.path.open("rb") as file:
            for wanted in offsets.tolist():
                if wanted != at:
                    file.seek(wanted)
                line = file.readline()
                at = wanted + len(line)
                yield line

    def _find_suspects(self) -> frozenset[int]:
        """Hashes that occur twice."""
        hashes = np.sort(_int64(self._hashes))
        self._hashes = array("q")
        return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    def _in_time(self, stamps: array[int]) -> tuple[np.ndarray, np.ndarray]:
        """The order in which requests arrive, and their times; those that have none come first."""
        when = _int64(stamps)
        known = when[when != _UNKNOWN]
        if len(known):
            self._base_us = int(known[0] if self._compat else known.min())
        when = np.where(when == _UNKNOWN, self._base_us, when)
        in_file_order = self._compat or not self._online
        return np.arange(len(when)) if in_file_order else np.argsort(when, kind="stable"), when

    def _arrival_s(self, stamp: int) -> float:
        return (stamp - self._base_us) / 10**6 if self._online else 0.0

    # --- one request ------------------------------------------------------------------------------

    def _work(
        self, decode: Callable[[Any], Row], raw: Any, i: int, line: int = 0, count: bool = True
    ) -> tuple[Arrived | None, int]:
        """The i-th request as an arrival and its time; None if it is to be left out."""
        name, of, kind, stamp = "", "", "", _UNKNOWN
        try:
            row = decode(raw)
            name, of = row.request_id, row.workflow_id
            kind, stamp = self._timestamp(row)
            if self._is_double(name, i, count):
                raise _Fault("request_id", f"{name!r} is used twice")
            if not name:
                raise _Fault("request_id", "expected a name, found nothing")
            shape, sizes = self._sizes(row)
            due = row.deadline_seconds
            if due is not None and not 0 < due <= MOST:
                raise _Fault("deadline_seconds", f"expected a positive number up to {MOST:g}, found {due}")
            if not 0 < row.priority <= MOST:
                raise _Fault("priority", f"expected a positive number up to {MOST:g}, found {row.priority}")
            self._check_clock(kind, row)
            if count:
                self._count(row, shape, sizes)
            return Arrived(name, of, sizes, due, row.priority), stamp
        except _Fault as error:
            fault = error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            keys, message = explain(error, Row) if isinstance(error, msgspec.ValidationError) else ([], str(error))
            if keys[-1:] == ["*"]:  # the error does not say which
                keys[-1] = _not_a_number(raw)
            fault = _Fault(".".join(map(str, keys)), message)
            known = _name_of(raw)
            name, of = known.request_id, known.workflow_id
            self._is_double(name, i, count)
        if self._clock is None or kind != self._clock[0]:
            stamp = _UNKNOWN  # a faulty request does not set the clock
        return self._faulty(fault, name, of, i, line, count), stamp

    def _faulty(self, fault: _Fault, name: str, of: str, i: int, line: int, count: bool) -> Arrived | None:
        """What becomes of a request that cannot run."""
        why = f"{fault.key}: {fault}" if fault.key else str(fault)
        if self._on_error == "reject":
            if not name or i in self._doubles:
                name = f"{name or 'request'}#{i + 1}"
                if count:
                    self._is_double(name, i, count)
            return Arrived(name, of, fault=why)
        if self._on_error == "skip" and count:
            self.skipped_count += 1
            if len(self.skipped) < _SHOWN:
                self.skipped.append(self._describe(fault, name, i, line))
        elif count:
            self._fault_counts[why] = self._fault_counts.get(why, 0) + 1
            if len(self._fault_lines) < _SHOWN and self._fault_counts[why] == 1:
                self._fault_lines.append((why, self._describe(fault, name, i, line)))
        return None

    def _is_double(self, name: str, i: int, count: bool) -> bool:
        """Whether an earlier request of the file has this id."""
        if not count or not name:
            return i in self._doubles
        if self._suspects is not None:
            self._hashes.append(hash(name))
            if self._hashes[-1] not in self._suspects:
                return False
        if name in self._seen:
            if self._on_error == "reject":  # the others are not looked at again
                self._doubles.add(i)
            return True
        self._seen.add(name)
        return False

    def _describe(self, fault: _Fault, name: str, i: int, line: int) -> str:
        who = f"request {name!r}: " if name else ""
        key = f"{fault.key}: " if fault.key else ""
        if line:
            return f"{self.path}:{line}: {who}{key}{fault}"
        if self._doc is None:
            return f"{self.path}: requests.{i}: {who}{key}{fault}"
        keys: list[str | int] = ["requests", i, *(fault.key.split(".") if fault.key else [])]
        return str(self._doc.error(keys, f"{who}{fault}"))

    def _all_faults(self) -> str:
        """The first faults, each with its place; those that are alike are counted."""
        lines = []
        for why, text in self._fault_lines:
            others = self._fault_counts[why] - 1
            lines.append(f"{text} (and {others} more like it)" if others else text)
        rest = sum(self._fault_counts.values()) - sum(self._fault_counts[why] for why, _ in self._fault_lines)
        return "\n".join(lines) + (f"\n... and {rest} more" if rest else "")

    def _timestamp(self, row: Row) -> tuple[str, int]:
        """What kind of time a request gives, and which, in microseconds."""
        given = row.timestamp
        if given is None:
            if self._online:
                raise _Fault("timestamp", "missing; online mode needs the time of arrival")
            return "", 0
        try:
            if isinstance(given, str):
                given = datetime.fromisoformat(given)
            if isinstance(given, date):  # as YAML reads an unquoted one
                given = given if isinstance(given, datetime) else datetime.combine(given, time())
                aware = given.tzinfo is not None
                stamp = (given - (_EPOCH_UTC if aware else _EPOCH)) // _MICROSECOND
                return "a time with zone" if aware else "a time without zone", stamp
            if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e12:
                whole = int(given)  # a large number of seconds has no room for microseconds
                return "a number of seconds", 10**6 * whole + round(1e6 * (given - whole))
        except ValueError:
            pass
        raise _Fault("timestamp", f"{row.timestamp!r} is not an ISO 8601 time or a number of seconds")

    def _check_clock(self, kind: str, row: Row) -> None:
        """All timestamps of a file must be of one kind."""
        if not kind or (self._compat and not self._online):
            return
        if self._clock is None:
            self._clock = (kind, row.request_id)
        elif kind != self._clock[0]:
            first, who = self._clock
            raise _Fault("timestamp", f"{row.timestamp!r} is {kind}, but that of {who!r} is {first}: do not mix them")

    def _guess(self, model: str) -> tuple[float, str]:
        return (DEFAULT_NODE_S, "default") if self._compat else self._system.models[model].estimate_s()

    def _sizes(self, row: Row) -> tuple[TaskGraph, tuple[float, ...]]:
        """Durations that the request gives, and the model's estimate for those it does not."""
        shape = self._shapes.get(row.workflow_id)
        if shape is None:
            fault = self._system.faults.get(row.workflow_id)
            if fault:
                raise _Fault("workflow_id", f"workflow {row.workflow_id!r} cannot run: {fault}")
            hint = did_you_mean(row.workflow_id, self._system.workflows)
            raise _Fault("workflow_id", f"unknown workflow {row.workflow_id!r}{hint}")
        times = row.node_execution_times
        given = [times.get(part.name) for part in shape.tasks]
        if None in given:
            self._check_names(row, shape)
        sizes = tuple([g[0] if s is None else s for g, s in zip(self._hints[shape.name], given, strict=True)])
        low = 0.0 if not self._compat else -1e-300
        for size, part in zip(sizes, shape.tasks, strict=True):
            if not low < size <= MOST:
                found = f"expected a positive number up to {MOST:g}, found {size}"
                raise _Fault(f"node_execution_times.{part.name}", found)
        return shape, sizes

    def _check_names(self, row: Row, shape: TaskGraph) -> None:
        """A time for a name that is not a node, while a node has no time, is a slip."""
        times = row.node_execution_times
        unknown = [name for name in times if name not in shape.index]
        if unknown and not self._compat:
            lacking = [part.name for part in shape.tasks if part.name not in times]
            hint = did_you_mean(unknown[0], lacking)
            raise _Fault(f"node_execution_times.{unknown[0]}", f"not a node of workflow {shape.name!r}{hint}")

    def _count(self, row: Row, shape: TaskGraph, sizes: Sequence[float]) -> None:
        times, given = row.node_execution_times, 0
        for part, size, (_, rule) in zip(shape.tasks, sizes, self._hints[shape.name], strict=True):
            self.forecast[part.kind] += size * part.width
            if part.name in times:
                given += 1
            else:
                self.estimates[rule] += 1
        self.estimates["given"] += given
        if given < len(times):
            name = next(name for name in times if name not in shape.index)
            text = f"node_execution_times names {name!r}, which is not a node of workflow {shape.name!r}: ignored"
            self.warnings[text] = self.warnings.get(text, 0) + 1


def _int64(values: array[int]) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def _name_of(raw: Any) -> _Name:
    """The names in a request that could not be read."""
    try:
        return (
            msgspec.json.decode(raw, type=_Name)
            if isinstance(raw, bytes | msgspec.Raw)
            else msgspec.convert(raw, _Name)
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Name()


def _not_a_number(raw: Any) -> str:
    """The node whose time is not a number."""
    times: dict[str, Any]
    if isinstance(raw, bytes | msgspec.Raw):
        number: Callable[[Any], float] = msgspec.json.Decoder(float).decode
        row = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        times = msgspec.json.decode(row["node_execution_times"], type=dict[str, msgspec.Raw])
    else:
        number, times = partial(msgspec.convert, type=float), raw["node_execution_times"]
    for node, seconds in times.items():
        try:
            number(seconds)
        except msgspec.ValidationError:
            return str(node)
    return "*"


class _Fault(Exception):  # noqa: N818
    """What is wrong with one request, and under which key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
