"""The journal of a live service: written step by step as they happen, and gone on with after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.journal import Header, Reader, Step, Writer

_BLOCK = 1 << 16


class ServiceJournal:
    """One journal: its header and steps that were recorded before, and more of them as they come."""

    def __init__(self, path: Path, header: Header | None, sync: bool) -> None:
        """A new one, with its header; or without, one that goes on. With `sync` every step waits for the disk."""
        self.path, self._sync = path, sync
        if header is not None:
            self.writer = Writer(path, header)
            self.writer.flush()
        else:
            self.writer = Writer.reopen(path, whole_bytes(path))
        self.reader = Reader(path)
        self.lines = 0
        self._last = (0, 0.0)
        self.size = self.writer.written()
        self._broken = False

    def history(self) -> Iterator[Step]:
        """The steps that were recorded before; nothing may be written until they have been gone through."""
        for n, t, events in self.reader.rows():
            self._note(n, t, events)
            yield n, t, events

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Write a step: when this returns, it outlives the process. What could not be written may be tried again."""
        if self._broken:
            self.writer = Writer.reopen(self.path, self.size)
            self._broken = False
        try:
            self.writer.step(n, t, events)
            self.size = self.writer.written()
            if self._sync:
                self.writer.sync()
        except InputError:
            self._broken = True
            with suppress(InputError):
                self.writer.close()
            raise
        self._note(n, t, events)

    def _note(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.lines, self._last = self.lines + len(events), (n, t)

    def drop_step(self, n: int) -> bool:
        """Cut the last step off, which was not written whole before the process was killed. False if it is another."""
        begin, last = step_begin(self.path)
        if last != n:
            return False
        self.writer.close()
        self.writer = Writer.reopen(self.path, begin)
        self.size = begin
        return True

    def end(self, summary: dict[str, Any]) -> None:
        """All has ended: the last line, with the figures."""
        n, t = self._last
        self.writer.end(n + 1, t, summary)

    def close(self) -> None:
        self.writer.close()


def whole_bytes(path: Path) -> int:
    """How much of a file is whole lines."""
    return _line_before(path, path.stat().st_size) if path.is_file() else 0


class _Numbered(Struct):
    n: int = 0  # the header has none


def step_begin(path: Path) -> tuple[int, int]:
    """Where the last step of a journal begins, and its number; 0 if there is none."""
    begin = whole_bytes(path)
    number = None
    while begin > 0:
        before = _line_before(path, begin - 1)
        with path.open("rb") as file:
            file.seek(before)
            n = msgspec.json.decode(file.read(begin - before), type=_Numbered).n
        if number is None:
            number = n
        elif n != number:
            break
        begin = before
    return begin, number or 0


def last_line(path: Path) -> bytes:
    """The last whole line of a file."""
    size = whole_bytes(path)
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
