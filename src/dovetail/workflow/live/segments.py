"""The journal of a live service, in segments that are valid journals each.

A segment goes on over restarts of the service, as long as the same decisions are made again from what it holds. Where
they are not, by another version or another configuration, and where it has become long, a new one begins: there, what
is open arrives anew, less the nodes that have finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.journal import Header, Reader, Step, Writer
from dovetail.core.service.store import Store
from dovetail.workflow.live.figures import LiveFigures
from dovetail.workflow.live.values import MIB

_BLOCK = 1 << 16


class SegmentRecord(Struct):
    """The segment that is being written: when it began, in seconds since the service did, and what decided there."""

    number: int
    began_s: float
    decided_by: str


class _Stamp(Struct):
    t: float = 0.0  # the header has none


class JournalSegment:
    """One journal: its header and steps that were recorded before, and more of them as they come."""

    def __init__(self, path: Path, record: SegmentRecord, header: Header | None, sync: bool) -> None:
        """A new one, with its header; or without, one that goes on."""
        self.path, self.record, self._sync = path, record, sync
        if header is not None:
            self.writer = Writer(path, header)
            self.writer.flush()
        else:
            self.writer = Writer.reopen(path, _whole_bytes(path))
        self.reader = Reader(path)
        self._figures = LiveFigures(self.reader.header, path)
        self.lines = 0
        self._last = (0, 0.0)
        self._size = self.writer.written()
        self._broken = False

    def history(self) -> Iterator[Step]:
        """The steps that were recorded before; nothing may be written until they have been gone through."""
        for n, t, events in self.reader.rows():
            self._figures.step(n, t, events)
            self.lines, self._last = self.lines + len(events), (n, t)
            yield n, t, events

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Write a step: when this returns, it outlives the process. What could not be written may be tried again."""
        if self._broken:
            self.writer = Writer.reopen(self.path, self._size)
            self._broken = False
        try:
            self.writer.step(n, t, events)
            self._size = self.writer.written()
            if self._sync:
                self.writer.sync()
        except InputError:
            self._broken = True
            with suppress(InputError):
                self.writer.close()
            raise
        self._figures.step(n, t, events)
        self.lines, self._last = self.lines + len(events), (n, t)

    def end(self) -> None:
        """All has ended: the last line, with the figures."""
        n, t = self._last
        self.writer.end(n + 1, t, self._figures.summary())

    def close(self) -> None:
        self.writer.close()


class JournalSegments:
    """The segments of a service, numbered, in a folder."""

    def __init__(self, folder: Path, store: Store, sync: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self._store, self._sync = folder, store, sync

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.jsonl"

    def last(self) -> SegmentRecord | None:
        return self._store.get("segment", SegmentRecord)

    def last_s(self) -> float:
        """When the last step was, in seconds since the service began, as far as that can be read."""
        record = self.last()
        if record is None:
            return 0.0
        with suppress(OSError, msgspec.DecodeError):
            return record.began_s + msgspec.json.decode(_last_line(self.path(record.number)), type=_Stamp).t
        return record.began_s

    def resume(self, decided_by: str) -> JournalSegment | None:
        """The segment that was being written, if it can go on under what decides now."""
        record = self.last()
        if record is None or record.decided_by != decided_by:
            return None
        path = self.path(record.number)
        try:
            ended = b'"k":"ended"' in _last_line(path)[:200]
            return None if ended else JournalSegment(path, record, None, self._sync)
        except (DovetailError, OSError):  # it is not there, or damaged: what is open stands in the book
            return None

    def begin(self, header: Header, decided_by: str, began_s: float) -> JournalSegment:
        """The next segment."""
        last = self.last()
        number = 1 if last is None else last.number + 1
        while self.path(number).exists():
            number += 1
        record = SegmentRecord(number, began_s, decided_by)
        facts = header.facts | {"segment": number, "began_s": began_s}
        segment = JournalSegment(self.path(number), record, msgspec.structs.replace(header, facts=facts), self._sync)
        self._store.set("segment", record)
        return segment

    def tidy(self, keep_mib: float) -> None:
        """Remove the oldest segments beyond so much."""
        files = sorted(self.folder.glob("*.jsonl"))
        size = sum(file.stat().st_size for file in files)
        for file in files[:-1]:
            if size <= keep_mib * MIB:
                return
            size -= file.stat().st_size
            file.unlink()


def fingerprint(header: Header, leave_out: Sequence[str] = ("rates",)) -> str:
    """What decides, in short: the same as long as the past may be decided again. What was learned may differ."""
    facts = {key: value for key, value in header.facts.items() if key not in leave_out}
    known: Mapping[str, Any] = {
        "policy": header.policy,
        "options": header.options,
        "pool": header.pool,
        "graphs": header.graphs,
        "facts": facts,
    }
    return hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()


def _whole_bytes(path: Path) -> int:
    """How much of a file is whole lines."""
    return _line_before(path, path.stat().st_size) if path.is_file() else 0


def _last_line(path: Path) -> bytes:
    """The last whole line of a file."""
    size = _whole_bytes(path)
    begin = _line_before(path, size - 1)
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(size - begin)


def _line_before(path: Path, size: int) -> int:
    """Where the last line break within the first `size` bytes ends; 0 if there is none."""
    with path.open("rb") as file:
        while size > 0:
            begin = max(0, size - _BLOCK)
            file.seek(begin)
            found = file.read(size - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            size = begin
    return 0
