"""The level's request files, validated whole before anything runs, then given as arrivals in order of time.

A JSON-lines file is read twice, once to validate and once to run, so that a million requests need little memory.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.core.files.document import Document, Source, as_path, explain
from dovetail.core.files.reading import is_json_lines, parse, read_bytes, skip_bom
from dovetail.workflow.choices import Mode, OnError
from dovetail.workflow.inputs.growth.request import Later
from dovetail.workflow.inputs.request_entries import UNKNOWN_TIME, EntryReader, RequestEntry
from dovetail.workflow.inputs.system import System

_SMALL = 1 << 22  # bytes up to which a line is looked up for an error
_IN_MEMORY = 1 << 26  # bytes of JSON lines that are kept as arrivals instead of being read twice


class RequestDocument(Struct, forbid_unknown_fields=True):
    requests: list[Any]
    metadata: Any = None


class JsonRequestDocument(Struct, forbid_unknown_fields=True):
    requests: list[msgspec.Raw]
    metadata: Any = None


class Requests:
    """All requests of a file, or of lists, dicts or a frame in its place. `forecast` is GPU-seconds per model,
    `estimates` how many durations came from where. A subclass may have other rules."""

    file_type: type[RequestDocument] = RequestDocument
    json_type: type[JsonRequestDocument] = JsonRequestDocument
    reader_type: type[EntryReader] = EntryReader

    def __init__(self, requests: Source, system: System, mode: Mode = "offline", on_error: OnError = "fail") -> None:
        given = isinstance(requests, str | os.PathLike)
        self.path = path = as_path(requests, "requests") if given else Path("requests")
        self.digest = ""
        self.total = 0
        self._source = requests
        self._online = mode == "online"
        self._base_us = 0
        self._kept: list[tuple[float, Arrived]] | None = None
        self._index: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._entries = entries = self.reader_type(path, system, self._online, on_error)
        broken = path.suffix == ".jsonl" and path.is_file()  # whose first line may be
        self._is_lines = given and (is_json_lines(path) or broken)
        if not given:
            self._take(requests)
        elif self._is_lines:
            self._read_lines()
        else:
            self._read_document()
        entries.finish()
        if faults := entries.faults():
            raise InputError(faults)
        self.skipped, self.skipped_count = entries.skipped, entries.skipped_count
        self.forecast, self.estimates, self.warnings = entries.forecast, entries.estimates, entries.warnings
        self.tenants = entries.tenants

    def __len__(self) -> int:
        """Requests that arrive, the faulty ones that will be rejected included."""
        return self.total - self.skipped_count

    def arrivals(self) -> Iterator[tuple[float, Arrived]]:
        """Arrival time in seconds and the request, earliest first, file order on ties."""
        if self._kept is not None:
            yield from self._kept
            return
        assert self._index is not None
        places, offsets, stamps = self._index
        self._entries.later.clear()
        decode = msgspec.json.Decoder(self._entries.entry_type).decode
        for i, stamp, line in zip(places.tolist(), stamps.tolist(), self._lines_at(offsets), strict=True):
            request, _ = self._entries.arrival(decode, line, i, count=False)
            if request is not None:
                yield self._arrival_s(stamp), request

    def entries(self) -> Iterator[RequestEntry]:
        """The requests as they stand in the file, in its order, as far as they can be read: with their inputs."""
        decode: Callable[[Any], RequestEntry]
        if self._is_lines:
            decode, rows = msgspec.json.Decoder(self._entries.entry_type).decode, self.path.read_bytes().splitlines()
        else:
            decode = partial(msgspec.convert, type=self._entries.entry_type)
            doc = Document.of(self._source, str(self.path))
            rows = doc.convert(doc.data, self.file_type).requests if isinstance(doc.data, dict) else doc.data
        for raw in rows:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield decode(raw)

    def later(self, request: str) -> Later:
        """What its file says of nodes that a request may be given while it runs."""
        known = self._entries.later
        return known[request] if self._kept is not None else known.pop(request)

    # --- reading ----------------------------------------------------------------------------------

    def _read_document(self) -> None:
        text = read_bytes(self.path)
        self.digest = hashlib.sha256(text).hexdigest()
        doc = Document(self.path, text, None)
        rows: list[Any]
        try:
            rows = msgspec.json.decode(text, type=self.json_type).requests
            decode: Callable[[Any], RequestEntry] = msgspec.json.Decoder(self._entries.entry_type).decode
        except msgspec.ValidationError as error:
            keys, message = explain(error, self.file_type)
            raise doc.error(keys, message) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            doc.data = parse(self.path, text)
            rows = doc.convert(doc.data, self.file_type).requests
            decode = partial(msgspec.convert, type=self._entries.entry_type)
        self._entries.doc = doc if len(text) <= _SMALL else None
        self._keep(rows, decode)

    def _take(self, requests: Source) -> None:
        """Requests that are not in a file."""
        doc = Document.of(requests, str(self.path))
        if isinstance(doc.data, dict):
            doc.data = doc.convert(doc.data, self.file_type).requests
        else:
            self._entries.at = ()
        self._entries.doc = doc
        self.digest = hashlib.sha256(msgspec.json.encode(doc.data, enc_hook=str)).hexdigest()
        self._keep(doc.data, partial(msgspec.convert, type=self._entries.entry_type))

    def _keep(self, rows: Sequence[Any], decode: Callable[[Any], RequestEntry]) -> None:
        stamps = array("q")
        requests: list[Arrived] = []
        for i, raw in enumerate(rows):
            request, stamp = self._entries.arrival(decode, raw, i)
            if request is not None:
                requests.append(request)
                stamps.append(stamp)
        self.total = len(rows)
        order, when = self._in_time(stamps)
        self._kept = [
            (self._arrival_s(stamp), requests[i]) for i, stamp in zip(order, when[order].tolist(), strict=True)
        ]

    def _read_lines(self) -> None:
        """First pass over JSON lines: validate, and remember only where each line begins and when it arrives."""
        keep = self.path.stat().st_size <= _IN_MEMORY
        requests: list[Arrived] | None = [] if keep else None
        self._entries.begin(None if keep else frozenset())
        places, offsets, stamps = self._scan(requests)
        if suspects := self._find_suspects():
            self._entries.begin(suspects)
            places, offsets, stamps = self._scan(None)
        order, when = self._in_time(stamps)
        if requests is not None:
            sorted_stamps = when[order].tolist()
            self._kept = [(self._arrival_s(stamp), requests[i]) for i, stamp in zip(order, sorted_stamps, strict=True)]
        else:
            self._index = _int64(places)[order], _int64(offsets)[order], when[order]

    def _scan(self, requests: list[Arrived] | None) -> tuple[array[int], array[int], array[int]]:
        """Each request's number in the file, where its line begins, and its time; they themselves only into a list."""
        self.total = 0
        digest = hashlib.sha256()
        decode = msgspec.json.Decoder(self._entries.entry_type).decode
        places, offsets, stamps = array("q"), array("q"), array("q")
        with self.path.open("rb") as file:
            offset = skip_bom(file)
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    request, stamp = self._entries.arrival(decode, line, self.total, number)
                    if request is not None:
                        places.append(self.total)
                        offsets.append(offset)
                        stamps.append(stamp)
                        if requests is not None:
                            requests.append(request)
                    self.total += 1
                offset += len(line)
        self.digest = digest.hexdigest()
        return places, offsets, stamps

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
        hashes = np.sort(_int64(self._entries.hashes))
        self._entries.hashes = array("q")
        return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    def _in_time(self, stamps: array[int]) -> tuple[np.ndarray, np.ndarray]:
        """The order in which requests arrive, and their times; those that have none come first."""
        when = _int64(stamps)
        known = when[when != UNKNOWN_TIME]
        if len(known):
            self._base_us = self.first_us(known)
        when = np.where(when == UNKNOWN_TIME, self._base_us, when)
        return self.order(when) if self._online else np.arange(len(when)), when

    def first_us(self, known: np.ndarray) -> int:
        """The instant that is 0 s."""
        return int(known.min())

    def order(self, when: np.ndarray) -> np.ndarray:
        """The order in which requests arrive online."""
        return np.argsort(when, kind="stable")

    def _arrival_s(self, stamp: int) -> float:
        return (stamp - self._base_us) / 10**6 if self._online else 0.0


def _int64(values: array[int]) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)
