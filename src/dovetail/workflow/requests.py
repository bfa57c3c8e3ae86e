"""The level's request files, validated whole before anything runs, then given as arrivals in order of time.

A JSON-lines file is read twice, once to validate and once to run, so that a million requests need little memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Arrived
from dovetail.core.files import Document, explain, is_json_lines, parse, read_bytes
from dovetail.core.work import Shape
from dovetail.workflow.inputs import DEFAULT_NODE_S, OnError, System

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


class _File(Struct, forbid_unknown_fields=True):
    requests: list[Any]
    metadata: Any = None


class _JsonFile(Struct, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]
    metadata: Any = None


class Requests:
    """All requests of a file. `forecast` is GPU-seconds per model, `estimates` how many durations came from where."""

    def __init__(
        self, path: Path, system: System, mode: Mode = "offline", on_error: OnError = "fail", compat: bool = False
    ) -> None:
        self.path = path
        self.total = 0
        self.skipped: list[str] = []
        self.skipped_count = 0
        self.forecast: dict[str, float] = dict.fromkeys(system.models, 0.0)
        self.estimates: Counter[str] = Counter()
        self.warnings: dict[str, int] = {}
        self._system = system
        self._shapes = system.shapes()
        self._online = mode == "online"
        self._on_error = on_error
        self._compat = compat
        self._faults: list[str] = []
        self._renamed = 0
        self._clock: tuple[str, str] | None = None  # the first timestamp's kind, and whose it was
        self._base_us = 0
        self._works: list[tuple[float, Arrived]] | None = []
        self._index: tuple[np.ndarray, np.ndarray] | None = None
        self._hints = {name: [self._guess(part.kind) for part in shape.parts] for name, shape in self._shapes.items()}
        if is_json_lines(path):
            self._read_lines()
        else:
            self._read_document()
        if self._faults:
            more = f"\n... and {len(self._faults) - _SHOWN} more" if len(self._faults) > _SHOWN else ""
            raise InputError("\n".join(self._faults[:_SHOWN]) + more)

    def __len__(self) -> int:
        """Requests that arrive, the faulty ones that will be rejected included."""
        return self.total - self.skipped_count

    def arrivals(self) -> Iterator[tuple[float, Arrived]]:
        """Arrival time in seconds and the work, earliest first, file order on ties."""
        if self._works is not None:
            yield from self._works
            return
        assert self._index is not None
        offsets, stamps = self._index
        decode = msgspec.json.Decoder(self._row_type()).decode
        for line, stamp in zip(self._lines_at(offsets), stamps, strict=True):
            work, _ = self._work(decode, line, "", count=False)
            if work is not None:
                yield self._arrival_s(int(stamp)), work

    # --- reading ----------------------------------------------------------------------------------

    def _row_type(self) -> type[Row]:
        return _LooseRow if self._compat else Row

    def _read_document(self) -> None:
        text = read_bytes(self.path)
        self.digest = hashlib.sha256(text).hexdigest()
        doc = Document(self.path, text, None)
        row_type = self._row_type()
        rows: list[Any]
        try:
            rows = msgspec.json.decode(text, type=_JsonFile).requests
            decode: Callable[[Any], Row] = msgspec.json.Decoder(row_type).decode
        except msgspec.ValidationError as error:
            keys, message = explain(error, _File)
            raise doc.error(keys, message) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            doc.data = parse(self.path, text)
            rows = doc.convert(doc.data, _File).requests
            decode = partial(msgspec.convert, type=row_type)
        small = len(text) <= _SMALL
        seen: set[str] = set()
        stamps: list[int] = []
        works: list[Arrived] = []
        for i, raw in enumerate(rows):
            work, stamp = self._work(decode, raw, (doc, i, small), seen)
            if work is not None:
                works.append(work)
                stamps.append(stamp)
        self.total = len(rows)
        self._set_base(stamps)
        timed = [(self._arrival_s(stamp), work) for stamp, work in zip(stamps, works, strict=True)]
        self._works = timed if self._compat else sorted(timed, key=lambda pair: pair[0])

    def _read_lines(self) -> None:
        """First pass over JSON lines: validate, and remember only where each line begins and when it arrives."""
        digest = hashlib.sha256()
        keep = self.path.stat().st_size <= _IN_MEMORY
        decode = msgspec.json.Decoder(self._row_type()).decode
        offsets, stamps, hashes = array("q"), array("q"), array("q")
        works: list[Arrived] = []
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    self.total += 1
                    work, stamp = self._work(decode, line, f"{self.path}:{number}")
                    if work is not None:
                        hashes.append(hash(work.work))
                        offsets.append(offset)
                        stamps.append(stamp)
                        if keep:
                            works.append(work)
                offset += len(line)
        self.digest = digest.hexdigest()
        self._refuse_doubles(hashes, offsets)
        self._set_base(stamps)
        when = np.frombuffer(stamps, dtype=np.int64) if stamps else np.zeros(0, dtype=np.int64)
        order = np.argsort(when, kind="stable") if self._online and not self._compat else np.arange(len(when))
        if keep:
            self._works = [(self._arrival_s(stamps[i]), works[i]) for i in order]
        else:
            self._works = None
            self._index = np.frombuffer(offsets, dtype=np.int64)[order], when[order]

    def _lines_at(self, offsets: np.ndarray) -> Iterator[bytes]:
        at = -1
        with self.path.open("rb") as file:
            for wanted in offsets.tolist():
                if wanted != at:
                    file.seek(wanted)
                line = file.readline()
                at = wanted + len(line)
                yield line

    def _refuse_doubles(self, hashes: array[int], offsets: array[int]) -> None:
        """Ids are compared by hash, 8 bytes each; only on a match are the lines read again."""
        if not hashes:
            return
        sorted_hashes = np.sort(np.frombuffer(hashes, dtype=np.int64))
        doubled = set(sorted_hashes[1:][sorted_hashes[1:] == sorted_hashes[:-1]].tolist())
        if not doubled:
            return
        seen: set[str] = set()
        suspects = np.array([o for h, o in zip(hashes, offsets, strict=True) if h in doubled])
        for line in self._lines_at(suspects):
            name = msgspec.json.decode(line, type=_LooseRow).request_id
            if name in seen:
                # A stream keeps no ids, so a double cannot be set aside: it stops the run whatever --on-error says.
                self._faults.append(f"{self.path}: request_id {name!r} is used twice")
            seen.add(name)

    # --- one request ------------------------------------------------------------------------------

    def _work(
        self,
        decode: Callable[[Any], Row],
        raw: Any,
        place: str | tuple[Document, int, bool],
        seen: set[str] | None = None,
        count: bool = True,
    ) -> tuple[Arrived | None, int]:
        """One request as an arrival and its time; None if it is to be skipped."""
        name, of, stamp = "", "", _UNKNOWN
        try:
            row = decode(raw)
            name, of = row.request_id, row.workflow_id
            stamp = self._timestamp(row)
            sizes = self._sizes(row, count)
            if not name:
                raise _Fault("request_id", "expected a name, found nothing")
            if seen is not None and name in seen:
                raise _Fault("request_id", f"{name!r} is used twice")
            due = row.deadline_seconds
            if due is not None and not due > 0:
                raise _Fault("deadline_seconds", f"expected a positive number, found {due}")
            if not row.priority > 0:
                raise _Fault("priority", f"expected a positive number, found {row.priority}")
            if seen is not None:
                seen.add(name)
            return Arrived(name, of, sizes, due, row.priority), stamp
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            keys, message = explain(error, Row) if isinstance(error, msgspec.ValidationError) else ([], str(error))
            fault = _Fault(".".join(map(str, keys)), message)
        except _Fault as error:
            fault = error
        if not count and self._on_error == "skip":
            return None, stamp
        if self._on_error == "reject":
            if not name or (seen is not None and name in seen):
                self._renamed += 1
                name = f"{name or 'request'}#{self._renamed}"
            return Arrived(name, of, fault=f"{fault.key}: {fault}" if fault.key else str(fault)), stamp
        text = self._describe(fault, name, place)
        if self._on_error == "fail":
            self._faults.append(text)
            return None, stamp
        self.skipped_count += 1
        if len(self.skipped) < _SHOWN:
            self.skipped.append(text)
        return None, stamp

    @staticmethod
    def _describe(fault: _Fault, name: str, place: str | tuple[Document, int, bool]) -> str:
        who = f"request {name!r}: " if name else ""
        key = f"{fault.key}: " if fault.key else ""
        if isinstance(place, str):
            return f"{place}: {who}{key}{fault}"
        doc, i, small = place
        keys: list[str | int] = ["requests", i, *(fault.key.split(".") if fault.key else [])]
        return str(doc.error(keys, f"{who}{fault}")) if small else f"{doc.path}: requests.{i}: {who}{key}{fault}"

    def _timestamp(self, row: Row) -> int:
        given = row.timestamp
        if given is None:
            if self._online:
                raise _Fault("timestamp", "missing; online mode needs the time of arrival")
            return 0
        try:
            if isinstance(given, str):
                given = datetime.fromisoformat(given)
            if isinstance(given, datetime):
                aware = given.tzinfo is not None
                kind = "a time with zone" if aware else "a time without zone"
                stamp = (given - (_EPOCH_UTC if aware else _EPOCH)) // _MICROSECOND
            elif isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e12:
                kind, stamp = "a number of seconds", round(given * 1e6)
            else:
                raise ValueError
        except ValueError:
            raise _Fault("timestamp", f"{row.timestamp!r} is not an ISO 8601 time or a number of seconds") from None
        if self._clock is None:
            self._clock = (kind, row.request_id)
        elif self._clock[0] != kind and not (self._compat and not self._online):
            first, who = self._clock
            raise _Fault("timestamp", f"{row.timestamp!r} is {kind}, but that of {who!r} is {first}: do not mix them")
        return stamp

    def _guess(self, model: str) -> tuple[float, str]:
        return (DEFAULT_NODE_S, "default") if self._compat else self._system.models[model].estimate_s()

    def _sizes(self, row: Row, count: bool) -> tuple[float, ...]:
        shape = self._shapes.get(row.workflow_id)
        if shape is None:
            fault = self._system.faults.get(row.workflow_id)
            if fault:
                raise _Fault("workflow_id", f"workflow {row.workflow_id!r} cannot run: {fault}")
            hint = did_you_mean(row.workflow_id, self._system.workflows)
            raise _Fault("workflow_id", f"unknown workflow {row.workflow_id!r}{hint}")
        times = row.node_execution_times
        sizes = tuple([times.get(part.name) for part in shape.parts])
        complete = self._complete(shape, times, sizes, count)
        low = 0.0 if not self._compat else -1e-300
        for size, part in zip(complete, shape.parts, strict=True):
            if not low < size < inf:
                raise _Fault(f"node_execution_times.{part.name}", f"expected a positive number, found {size}")
            if count and part.width:
                self.forecast[part.kind] += size * part.width
        return complete

    def _complete(
        self, shape: Shape, times: Mapping[str, float], sizes: tuple[float | None, ...], count: bool
    ) -> tuple[float, ...]:
        """Durations that the request gives, and the model's estimate for those it does not."""
        missing = sizes.count(None)
        if not missing and len(times) == len(sizes):
            if count:
                self.estimates["given"] += len(sizes)
            return sizes  # type: ignore[return-value]
        unknown = [name for name in times if name not in shape.index]
        if unknown and missing and not self._compat:
            lacking = [part.name for part, size in zip(shape.parts, sizes, strict=True) if size is None]
            hint = did_you_mean(unknown[0], lacking)
            raise _Fault(f"node_execution_times.{unknown[0]}", f"not a node of workflow {shape.name!r}{hint}")
        if count and unknown:
            text = f"node_execution_times names {unknown[0]!r}, which is not a node of workflow {shape.name!r}: ignored"
            self.warnings[text] = self.warnings.get(text, 0) + 1
        guesses = self._hints[shape.name]
        if count:
            self.estimates["given"] += len(sizes) - missing
            for (_, rule), size in zip(guesses, sizes, strict=True):
                if size is None:
                    self.estimates[rule] += 1
        return tuple([guess[0] if size is None else size for guess, size in zip(guesses, sizes, strict=True)])

    def _set_base(self, stamps: list[int] | array[int]) -> None:
        known = (stamp for stamp in stamps if stamp != _UNKNOWN)
        self._base_us = next(known, 0) if self._compat else min(known, default=0)

    def _arrival_s(self, stamp: int) -> float:
        return (stamp - self._base_us) / 10**6 if self._online and stamp != _UNKNOWN else 0.0


class _Fault(Exception):  # noqa: N818
    """What is wrong with one request, and under which key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
