"""Reads a journal: its header at once, its steps as they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Added, Failed, Finished, Grew, Pause, Resize, Resume, Rows, Start, Stop
from dovetail.core.files.reading import open_bytes
from dovetail.core.journal.records import (
    VERSION,
    Ended,
    Entry,
    Header,
    Observer,
    Recorded,
    Step,
    check_header,
    decode_event,
    decode_stamp,
)
from dovetail.core.journal.rows import Unroller


class _Version(Struct):
    journal: int


_STAMP = re.compile(rb'\{"n":\d+,"t":[-+.\deE]+,').match
_version = msgspec.json.Decoder(_Version).decode
_header = msgspec.json.Decoder(Header).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SENSELESS = (ValueError, msgspec.ValidationError)


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
                        stamp = decode_stamp(line)
                        n, t, head = stamp.n, stamp.t, _head(line)
                    event = decode_event(line)
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
