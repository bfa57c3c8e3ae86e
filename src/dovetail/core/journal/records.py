"""What a journal holds: its header, its events and their end, and who follows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Event, Instruction, Rows, Stimulus
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.core.words import Words
from dovetail.version import __version__

VERSION = 2


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

    @property
    def from_first_arrival(self) -> bool:
        """Whether the run's length counts from its first arrival and not from 0 s: `facts.from_first_arrival`."""
        return self.facts.get("from_first_arrival") is True

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


decode_stamp = msgspec.json.Decoder(_Stamp).decode
decode_event = msgspec.json.Decoder(Recorded).decode
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
