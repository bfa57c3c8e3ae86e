"""The versioned, append-only record of everything that happened: JSON lines, one header, then one line per event.

A line is `{"n": step, "t": seconds, "k": kind, ...}`. One step is one turn of the loop: what was seen, then what was
decided. Steps are written in blocks of some 1 MiB, and the rest when the run ends, also by an error or Ctrl-C. A
process that is killed outright loses what was not yet written, up to 1 MiB; what is on disk is whole but for its last
step, which may be torn: the reader says so and goes on with what is whole.
"""

from __future__ import annotations

from dovetail.core.journal.reader import Reader, in_time, is_journal, open_journal
from dovetail.core.journal.records import (
    VERSION,
    Clock,
    Ended,
    Entry,
    Header,
    Observer,
    Recorded,
    Step,
    check_header,
)
from dovetail.core.journal.writer import Writer

__all__ = [
    "VERSION",
    "Clock",
    "Ended",
    "Entry",
    "Header",
    "Observer",
    "Reader",
    "Recorded",
    "Step",
    "Writer",
    "check_header",
    "in_time",
    "is_journal",
    "open_journal",
]
