"""The versioned, append-only record of everything that happened: JSON lines, one header, then one line per event.

A line is `{"n": step, "t": seconds, "k": kind, ...}`. One step is one turn of the loop: what was seen, then what was
decided. A crash loses at most the last, torn step; the reader says so and goes on with what is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.core.errors import InputError
from dovetail.core.events import (
    Arrived,
    Complete,
    Event,
    Failed,
    Finished,
    Reject,
    Start,
    WakeAt,
    Woke,
)
from dovetail.core.resources import Pool
from dovetail.core.work import Part, Shape

VERSION = 1
_BUFFER = 1 << 20


class ShapeRecord(Struct, frozen=True, omit_defaults=True):
    """A shape as the header keeps it."""

    name: str
    parts: tuple[Part, ...]
    edges: tuple[tuple[str, str], ...] = ()
    never: dict[str, str] = {}

    @classmethod
    def of(cls, shape: Shape) -> ShapeRecord:
        names = [part.name for part in shape.parts]
        edges = tuple((names[i], names[j]) for i, targets in enumerate(shape.before) for j in targets)
        return cls(shape.name, shape.parts, edges, {names[i]: why for i, why in shape.never.items()})

    def build(self) -> Shape:
        return Shape(self.name, self.parts, self.edges, self.never)


class Header(Struct, frozen=True, kw_only=True):
    """The journal's first line: what ran, on what, decided by whom. `facts` holds what only the level understands."""

    journal: int = VERSION
    made_by: str = f"dovetail {__version__}"
    level: str
    policy: str
    options: dict[str, Any] = {}
    mode: str = ""
    seed: int = 0
    pool: Pool
    shapes: tuple[ShapeRecord, ...] = ()
    facts: dict[str, Any] = {}

    def build_shapes(self) -> dict[str, Shape]:
        return {record.name: record.build() for record in self.shapes}


class Ended(Event, frozen=True, tag="ended"):
    """The last line of a run that came to its end, with the figures it claims."""

    summary: dict[str, Any] = msgspec.field(default_factory=dict)


Recorded = Arrived | Finished | Failed | Woke | Start | Complete | Reject | WakeAt | Ended


class Entry(NamedTuple):
    n: int
    t: float
    event: Recorded


class Observer(Protocol):
    """Whoever follows a run step by step: the writer, the metrics, a text log. The same for a live run and a file."""

    def step(self, n: int, t: float, events: Sequence[Any]) -> None: ...


class _Stamp(Struct):
    n: int
    t: float


_encode = msgspec.json.Encoder().encode
_stamp = msgspec.json.Decoder(_Stamp).decode
_event = msgspec.json.Decoder(Recorded).decode
_header = msgspec.json.Decoder(Header).decode


class Writer:
    """Appends steps to a file. With `resume`, first proves that the steps already there are the ones it is given."""

    def __init__(self, path: Path, header: Header, resume: bool = False) -> None:
        first_line = _encode(header) + b"\n"
        self._buffer = bytearray()
        self._expected = b""
        if resume and path.exists():
            whole = _whole_steps(path.read_bytes())
            if whole and not whole.startswith(first_line):
                raise InputError(f"{path}: cannot resume: its header differs from this run's (inputs, pool or policy)")
            self._expected = whole[len(first_line) :]
            os.truncate(path, len(whole))
            self._file = path.open("ab")
            if not whole:
                self._buffer += first_line
        else:
            self._file = path.open("wb")
            self._buffer += first_line
        self.path = path

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        stamp = b'{"n":%d,"t":%s,' % (n, repr(t).encode())
        lines = b"".join([stamp + _encode(event)[1:] + b"\n" for event in events])
        if self._expected:
            if not self._expected.startswith(lines):
                raise InputError(f"{self.path}: cannot resume: step {n} at {t} s differs from the recorded one")
            self._expected = self._expected[len(lines) :]
            return
        self._buffer += lines
        if len(self._buffer) > _BUFFER:
            self.flush()

    def flush(self) -> None:
        self._file.write(self._buffer)
        self._file.flush()
        self._buffer.clear()

    def end(self, n: int, t: float, summary: dict[str, Any]) -> None:
        self.step(n, t, [Ended(summary)])

    def close(self) -> None:
        self.flush()
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole_steps(text: bytes) -> bytes:
    """The longest prefix that surely ends with a whole step: all but the last step of a file that has no end."""
    text = text[: text.rfind(b"\n") + 1]
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text if lines and _is_header(lines[0]) else b""
    last = lines.pop()
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        n = _stamp(last).n
        while len(lines) > 1 and _stamp(lines[-1]).n == n:
            lines.pop()
    return b"".join(lines)


def _is_header(line: bytes) -> bool:
    try:
        _header(line)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    return True


class Reader:
    """Streams a journal: `header` at once, entries as they are asked for; `torn` tells of an unfinished last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        with path.open("rb") as file:
            first = file.readline()
        try:
            self.header = _header(first)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise InputError(f"{path}:1: not a Dovetail journal: {error}") from None
        if self.header.journal > VERSION:
            raise InputError(f"{path}:1: journal version {self.header.journal}; this Dovetail reads up to {VERSION}")

    def __iter__(self) -> Iterator[Entry]:
        self.torn = False
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                try:
                    stamp = _stamp(line)
                    entry = Entry(stamp.n, stamp.t, _event(line))
                except (msgspec.DecodeError, msgspec.ValidationError) as error:
                    if not line.endswith(b"\n"):
                        self.torn = True
                        return
                    raise InputError(f"{self.path}:{number}: not a journal record: {error}") from None
                yield entry

    def steps(self) -> Iterator[tuple[int, float, list[Recorded]]]:
        """Entries grouped as they were seen and decided: one group per turn of the loop."""
        for n, group in groupby(self, key=lambda entry: entry.n):
            entries = list(group)
            yield n, entries[0].t, [entry.event for entry in entries]

    def feed(self, *observers: Observer) -> None:
        """Let observers follow the recorded run as if it were running now."""
        for n, t, events in self.steps():
            for observer in observers:
                observer.step(n, t, events)


def is_journal(path: Path) -> bool:
    """Whether a file begins with a journal's header."""
    with path.open("rb") as file:
        return file.read(16).lstrip().startswith(b'{"journal":')


def events_of(kinds: type | tuple[type, ...], entries: Iterable[Entry]) -> Iterator[Entry]:
    """Only the entries of some kinds."""
    return (entry for entry in entries if isinstance(entry.event, kinds))
