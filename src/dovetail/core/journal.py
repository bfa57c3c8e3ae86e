"""The versioned, append-only record of everything that happened: JSON lines, one header, then one line per event.

A line is `{"n": step, "t": seconds, "k": kind, ...}`. One step is one turn of the loop: what was seen, then what was
decided. Steps are written in blocks of some 1 MiB, and the rest when the run ends, also by an error or Ctrl-C. A
process that is killed outright loses what was not yet written, up to 1 MiB; what is on disk is whole but for its last
step, which may be torn: the reader says so and goes on with what is whole.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, PolicyError, cannot_write
from dovetail.core.events import (
    Added,
    Event,
    Failed,
    Finished,
    Grew,
    Instruction,
    Pause,
    Resize,
    Resume,
    Rows,
    Start,
    Stimulus,
    Stop,
)
from dovetail.core.files import open_bytes
from dovetail.core.resources import Pool
from dovetail.core.rows import Unroller
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.core.words import Words
from dovetail.version import __version__

VERSION = 2
_BUFFER = 1 << 20


class Clock(Struct, frozen=True):
    """Which clock stamped the records, and by how many seconds two stamps may be wrong against each other.

    Virtual time has no error. On one host everybody reads one monotonic clock, or the system's where a run outlives a
    restart of the machine; between hosts the offset was measured.
    """

    source: Literal["virtual", "monotonic", "system", "measured offset"] = "virtual"
    error_s: float = 0.0


class Header(Struct, frozen=True, kw_only=True):
    """The journal's first line: what ran, on what, decided by whom. `facts` holds what only the level understands.

    `hardware` tells what really carried each type of device, where that was not simulated. Records are in the order of
    their steps, or, where they were written by whoever saw them, in the order of writing.
    """

    journal: int = VERSION
    made_by: str = f"dovetail {__version__}"
    level: str
    policy: str
    options: dict[str, Any] = {}
    mode: str = ""
    seed: int = 0
    pool: Pool
    graphs: tuple[TaskGraphRecord, ...] = ()
    facts: dict[str, Any] = {}
    clock: Clock = Clock()
    order: Literal["step", "written"] = "step"
    hardware: dict[str, str] = {}
    words: Words = Words()

    def __repr__(self) -> str:
        return f"<Header of a {self.level} run: {self.policy} on {len(self.pool)} devices>"

    @property
    def asked(self) -> int | None:
        """How many jobs the run was to complete, where its level knew before they came: `facts.asked`."""
        count = self.facts.get("asked")
        return count if type(count) is int and count >= 0 else None

    def unfinished(self, completed: int, open_jobs: int) -> int:
        """How many jobs a run that did not end left undone."""
        return open_jobs if self.asked is None else max(self.asked - completed, 0)

    def build_graphs(self) -> dict[str, TaskGraph]:
        return {record.name: record.build() for record in self.graphs}


class Ended(Event, frozen=True, tag="ended"):
    """The last line of a run that came to its end, with the figures it claims."""

    summary: dict[str, Any] = msgspec.field(default_factory=dict)


Recorded = Stimulus | Instruction | Rows | Ended


Step = tuple[int, float, list[Recorded]]


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


class _Version(Struct):
    journal: int


def _plain(value: Any) -> Any:
    """A NumPy number as a number, an array as a list: whoever computes with arrays need not convert what it decides."""
    numpy = sys.modules.get("numpy")  # who has not imported it has no such numbers
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{value!r} is not a number")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_lines = msgspec.json.Encoder(enc_hook=_plain).encode_lines
_stamp = msgspec.json.Decoder(_Stamp).decode
_event = msgspec.json.Decoder(Recorded).decode
_STAMP = re.compile(rb'\{"n":\d+,"t":[-+.\deE]+,').match
_version = msgspec.json.Decoder(_Version).decode
_header = msgspec.json.Decoder(Header).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SENSELESS = (ValueError, msgspec.ValidationError)


_MOST_S = {"virtual": 0.0, "monotonic": 0.1, "system": 0.1, "measured offset": 1.0}  # by which clocks can be wrong


def check_header(header: Header, path: Path) -> Header:
    """The same header, if a run can be followed with it."""
    try:
        header.build_graphs()
        if [device.id for device in header.pool.devices] != list(range(len(header.pool))):
            raise ValueError("devices are not numbered from 0")
        if unknown := {device.type for device in header.pool.devices} - header.pool.types.keys():
            raise ValueError(f"there is no device type {min(unknown)!r}")
        if any(not speed > 0 for speed in header.pool.speeds):
            raise ValueError("a device type has no speed")
        if any(task.width < 0 for graph in header.graphs for task in graph.tasks):
            raise ValueError("a task has a negative width")
        if not 0 <= header.clock.error_s <= _MOST_S[header.clock.source]:
            raise ValueError(f"the error of the clock is {header.clock.error_s} s ({header.clock.source})")
        if header.clock.source == "measured offset" and not header.hardware:
            raise ValueError("clocks whose offset was measured, but no hardware that they were read on")
    except ValueError as error:
        raise InputError(f"{path}:1: not a usable header: {error}") from None
    return header


class Writer:
    """Appends steps to a file. With `resume`, it first proves that what stands there is how this run begins.

    A journal is determined by its inputs, so one that was cut anywhere is a prefix of the whole. It is compared as the
    run goes, and stays as it is until it has been proven to its last byte.
    """

    def __init__(self, path: Path, header: Header, resume: bool = False) -> None:
        self.path = path
        self._buffer = bytearray()
        self._failed: InputError | None = None
        try:
            self._proving = resume and path.exists()
            plain = not path.exists() or path.is_file()
            self._file: BinaryIO = path.open("r+b" if path.is_file() else "wb")
        except OSError as error:
            raise cannot_write(path, error) from error
        if plain and not _lock(self._file):
            self._file.close()
            raise InputError(f"{path}: another run is writing it; give this one another --out folder")
        if plain and not self._proving:
            self._file.truncate()
        if not self._put(_encode(header) + b"\n"):
            self._file.close()
            raise InputError(f"{path}: cannot resume: its header differs from this run's (inputs, pool or policy)")

    @classmethod
    def reopen(cls, path: Path, size: int) -> Writer:
        """Go on behind the first `size` bytes of a journal: what a checkpoint knows of. The rest is cut off."""
        writer = cls.__new__(cls)
        writer.path, writer._buffer, writer._failed, writer._proving = path, bytearray(), None, False
        try:
            writer._file = path.open("r+b")
        except OSError as error:
            raise cannot_write(path, error) from error
        if not _lock(writer._file):
            writer._file.close()
            raise InputError(f"{path}: another run is writing it; give this one another --out folder")
        if writer._file.seek(0, 2) < size:
            writer._file.close()
            raise InputError(f"{path}: cannot resume: it is shorter than the checkpoint says")
        writer._file.truncate(size)
        writer._file.seek(size)
        return writer

    def written(self) -> int:
        """How many bytes the journal has, all of them on their way to the disk."""
        self.flush()
        return self._file.tell()

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        stamp = b'{"n":%d,"t":%b,' % (n, _encode(float(t)))
        try:
            lines = _encode_lines(events)
            # Text within JSON has no line breaks of its own, so every brace after one begins an event.
            lines = (b"\n" + lines).replace(b"\n{", b"\n" + stamp)[1:]
            if b"null" in lines:  # JSON has no numbers that are none: they may have become what cannot be read
                for line in lines.splitlines():
                    _stamp(line), _event(line)
        except (TypeError, NotImplementedError, ValueError) as error:
            raise PolicyError(f"{self.path}: step {n} at {t} s cannot be written: {error}") from error
        if not self._put(lines):
            raise InputError(f"{self.path}: cannot resume: step {n} at {t} s differs from the recorded one")
        if len(self._buffer) > _BUFFER:
            self.flush()

    def _put(self, lines: bytes) -> bool:
        """Write, or compare while there is something to compare with; False if it differs."""
        if self._proving:
            found = self._file.read(len(lines))
            if found == lines:
                return True
            if not lines.startswith(found):
                return False
            self._proving = False  # it ends here: go on behind its last byte
            lines = lines[len(found) :]
        self._buffer += lines
        return True

    def flush(self) -> None:
        lines, self._buffer = self._buffer, bytearray()  # what cannot be written is not tried twice
        if not lines:
            return
        if self._failed is not None:
            raise self._failed
        try:
            self._file.write(lines)
            self._file.flush()
        except OSError as error:
            self._failed = cannot_write(self.path, error)  # nothing may follow a line that is not whole
            raise self._failed from error

    def sync(self) -> None:
        """What was flushed is on the disk, and outlives a power cut, when this returns."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def end(self, n: int, t: float, summary: dict[str, Any]) -> None:
        self.step(n, t, [Ended(summary)])
        if self._proving and self._file.read(1):
            raise InputError(f"{self.path}: cannot resume: it goes on after the end of this run")

    def close(self) -> None:
        try:
            self.flush()
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(file: BinaryIO) -> bool:
    """Whether the file is ours alone until it is closed; where files cannot be locked it is taken to be."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


class Reader:
    """Streams a journal: `header` at once, single events as asked for; `torn` tells of an unfinished last line.

    Rows are told as single events, and what several wrote comes in the order of time. `rows` gives the steps as they
    were written, for those who read columns or decide again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self.odd: list[tuple[int, float, float]] = []
        with open_bytes(path) as file:
            first = file.readline()
        try:
            version = _version(first).journal
            if version > VERSION:
                raise InputError(f"{path}:1: journal version {version}; this Dovetail reads up to {VERSION}")
            if version < VERSION:
                raise InputError(f"{path}:1: journal version {version}, of an older Dovetail; expected {VERSION}")
            self.header = check_header(_header(first), path)
        except _UNREADABLE as error:
            raise InputError(f"{path}:1: not a Dovetail journal: {error}") from None

    def __iter__(self) -> Iterator[Entry]:
        return (Entry(n, t, event) for n, t, events in self.steps() for event in events)

    def steps(self) -> Iterator[Step]:
        """What was seen and decided at one instant, in single events and in the order of time."""
        if self.header.order == "written":
            return in_time(self._told(), self.header.clock.error_s)
        return self._told()

    def _told(self) -> Iterator[Step]:
        """Single events in the order of writing; what is told later than it was comes first in its step."""
        unroller: Unroller | None = None
        at: tuple[int, float] | None = None
        events: list[Recorded] = []
        for number, n, t, event in self._lines():
            if at != (n, t):
                if at is not None:
                    yield *at, events
                at, events = (n, t), []
            if not isinstance(event, Rows):
                events.append(event)
                continue
            unroller = unroller or self._unroller()
            try:
                for at_s, told in unroller.tell(n, t, event):
                    if at_s == t:
                        events.append(told)
                    else:
                        yield n, at_s, [told]
            except _SENSELESS as error:
                raise InputError(f"{self.path}:{number}: rows that cannot be read: {error}") from None
        if at is not None:
            yield *at, events

    def _unroller(self) -> Unroller:
        try:
            return Unroller(self.header.words, self.header.facts)
        except _SENSELESS as error:
            raise InputError(f"{self.path}:1: facts that rows cannot be read with: {error}") from None

    @property
    def in_rounds(self) -> bool:
        """Whether the run is told in rows of what came, began and ended: the grain of its level is the round."""
        _, _, first = next(self.rows(), (0, 0.0, []))
        return any(isinstance(event, Rows) and event.of in ("arrived", "started") for event in first)

    def rows(self) -> Iterator[Step]:
        """The steps as they were written, one per turn of the loop; rows stay rows. What has another time than its
        step is kept in `odd`: the step and the two times."""
        self.odd.clear()
        for n, group in groupby(self._lines(), key=itemgetter(1)):
            lines = list(group)
            t = lines[0][2]
            self.odd += ((n, t, other) for _, _, other, _ in lines if other != t)
            yield n, t, [event for _, _, _, event in lines]

    def feed(self, *observers: Observer) -> None:
        """Let observers follow the recorded run as if it were running now."""
        for n, t, events in self.steps():
            for observer in observers:
                observer.step(n, t, events)

    def _lines(self) -> Iterator[tuple[int, int, float, Recorded]]:
        """The number of each line, its step, time and event."""
        self.torn = False
        n, t, head = 0, 0.0, b"\n"  # which no line begins with
        with open_bytes(self.path) as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                try:
                    if not line.startswith(head):  # most lines are of the step of the one before
                        stamp = _stamp(line)
                        n, t, head = stamp.n, stamp.t, _head(line)
                    event = _event(line)
                except _UNREADABLE as error:
                    if not line.endswith(b"\n"):
                        self.torn = True
                        return
                    raise InputError(f"{self.path}:{number}: not a journal record: {error}") from None
                yield number, n, t, event


def _head(line: bytes) -> bytes:
    """Step and time of a line as the writer puts them first; of any other line what none begins with.

    >>> _head(b'{"n":3,"t":1.5,"k":"woke"}'), _head(b'{"k":"woke","n":3,"t":1.5}')
    (b'{"n":3,"t":1.5,', b'\\n')
    """
    found = _STAMP(line)
    return found[0] if found else b"\n"


def in_time(steps: Iterable[Step], error_s: float) -> Iterator[Step]:
    """Steps in the order of time, and of writing where that is the same. At one instant what ends comes first, then
    what begins and ends, so that devices are free for what begins. What follows the end of the run stays there.

    What was written about one task stays in that order if its stamps differ by no more than the clock may be wrong.
    """
    before: list[tuple[float, Entry]] = []
    latest: dict[tuple[str, str], float] = {}
    after: list[Step] = []
    for n, t, events in steps:
        if after or any(isinstance(event, Ended) for event in events):
            after.append((n, t, events))
        else:
            for event in events:
                place = t
                about = getattr(event, "job", ""), getattr(event, "task", "")
                if about[1]:
                    known = latest.get(about, t)
                    place = known if t < known <= t + error_s else t
                    latest[about] = max(known, t)
                before.append((place, Entry(n, t, event)))
    before.sort(key=lambda placed: placed[0])
    for _, instant in groupby(before, key=lambda placed: placed[0]):
        for (n, t), group in groupby(_ends_first([entry for _, entry in instant]), key=lambda entry: entry[:2]):
            yield n, t, [entry.event for entry in group]
    yield from after


def _ends_first(instant: list[Entry]) -> list[Entry]:
    if len(instant) == 1:
        return instant
    begun = {(event.job, event.task) for _, _, event in instant if isinstance(event, Start | Resume | Resize | Stop)}
    brief = {e.job for _, _, e in instant if isinstance(e, Finished | Failed) and (e.job, e.task) in begun}

    def rank(entry: Entry) -> int:
        event = entry.event
        if isinstance(event, Added):
            return 0
        if isinstance(event, Finished | Failed | Grew | Pause) and (event.job, event.task) not in begun:
            return 0
        return 1 if getattr(event, "job", None) in brief else 2

    return sorted(instant, key=rank)


def is_journal(path: Path) -> bool:
    """Whether a file begins with a journal's header."""
    with open_bytes(path) as file:
        return file.read(16).lstrip().startswith(b'{"journal":')


def open_journal(path: Path) -> Reader:
    """A reader, or an error that says what was found instead of a journal."""
    if path.is_dir():
        inside = sorted(found.name for found in path.glob("*.jsonl"))
        more = f" and {len(inside) - 5} more" if len(inside) > 5 else ""
        hint = f" with {', '.join(inside[:5])}{more}" if inside else ""
        raise InputError(f"{path}: expected a journal, found a folder{hint}")
    if path.is_file() and not path.stat().st_size:
        raise InputError(f"{path}: expected a journal, found an empty file")
    return Reader(path)
