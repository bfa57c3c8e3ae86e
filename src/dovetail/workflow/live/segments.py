"""The journal of a live service, in segments that are valid journals each.

A segment goes on over restarts of the service, as long as the same decisions are made again from what it holds. Where
they are not, by another version or another configuration, and where it has become long, a new one begins: there, what
is open arrives anew, less the nodes that have finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError
from dovetail.core.journal import Header
from dovetail.core.service.service_journal import ServiceJournal, last_line, whole_bytes
from dovetail.core.service.store import Store
from dovetail.workflow.live.figures import LiveFigures
from dovetail.workflow.live.values import MIB


class SegmentRecord(Struct):
    """The segment that is being written: when it began, in seconds since the service did, and what decided there."""

    number: int
    began_s: float
    decided_by: str


class _Stamp(Struct):
    t: float = 0.0  # the header has none


class JournalSegment(ServiceJournal):
    """One journal, and the figures of all that it holds."""

    def __init__(self, path: Path, record: SegmentRecord, header: Header | None, sync: bool) -> None:
        """A new one, with its header; or without, one that goes on."""
        super().__init__(path, header, sync)
        self.record = record
        self._figures = LiveFigures(self.reader.header, path)

    def _note(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._figures.step(n, t, events)
        super()._note(n, t, events)

    def finish(self) -> None:
        """All has ended: the last line, with the figures."""
        self.end(self._figures.summary())


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
            return record.began_s + msgspec.json.decode(last_line(self.path(record.number)), type=_Stamp).t
        return record.began_s

    def resume(self, decided_by: str) -> JournalSegment | None:
        """The segment that was being written, if it can go on under what decides now."""
        record = self.last()
        if record is None or record.decided_by != decided_by:
            return None
        path = self.path(record.number)
        try:
            ended = b'"k":"ended"' in last_line(path)[:200]
            return None if ended else JournalSegment(path, record, None, self._sync)
        except (DovetailError, OSError):  # it is not there, or damaged: what is open stands in the book
            return None

    def begin(self, header: Header, decided_by: str, began_s: float) -> JournalSegment:
        """The next segment."""
        last = self.last()
        number = 1 if last is None else last.number + 1
        while whole_bytes(self.path(number)):  # else somebody was killed before its header was written
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
