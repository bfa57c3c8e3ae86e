"""A recorded run, and all that can be asked of it: what every level's functions give back."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from dovetail.core.check import check_journal
from dovetail.core.errors import InputError
from dovetail.core.explain import explain, sentences
from dovetail.core.files.document import as_path
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.core.findings import Findings, Report
from dovetail.core.journal import Ended, Header, Reader, open_journal
from dovetail.core.loop.replay import Agreement, replay_journal
from dovetail.core.metrics import Metrics, recount
from dovetail.core.registry import room
from dovetail.core.results.charts import Chart
from dovetail.core.results.frames import as_frame, jobs_of, tasks_of

JournalPath = str | os.PathLike[str] | Literal[False] | None
_DRAWN_BY = "dovetail.report.show"  # by name: reports read journals, and the core knows no report


class JournalFile:
    """Where a run's journal is: at the path that was asked for; without one in a temporary file, which goes when
    nobody holds this any longer. `path` is None where no journal was wanted.

    >>> file = JournalFile(None)
    >>> folder = file.path.parent
    >>> folder.exists()
    True
    >>> del file
    >>> folder.exists()
    False
    """

    def __init__(self, journal: JournalPath, content: bytes | None = None) -> None:
        self.path: Path | None = None
        self._temporary = journal is None
        if journal is None:
            folder = tempfile.mkdtemp(prefix="dovetail-")
            self.path = Path(folder, "journal.jsonl")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            if content is not None:
                self.path.write_bytes(content)
        elif journal is not False:
            self.path = as_path(journal, "journal")

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, or copied, a temporary file goes along: this one will be gone."""
        if self._temporary and self.path is not None and self.path.exists():
            return JournalFile, (None, self.path.read_bytes())
        return JournalFile, (False if self.path is None else self.path,)


class Account(Struct, frozen=True):
    """What happened to a job, and why: as sentences, and in `stories` as data."""

    text: str
    stories: list[Any]

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class Picture(Struct, frozen=True):
    """A drawing as SVG. Notebooks show it; `save` writes it."""

    svg: str

    @classmethod
    def of(cls, chart: Chart) -> Picture:
        """A line chart."""
        return cls(import_module(_DRAWN_BY).chart_of(chart))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture to a file, whose name ends in .svg."""
        place = as_path(path, "path")
        if place.suffix.lower() != ".svg":
            raise InputError(f"{place}: expected a name that ends in .svg")
        atomic_write(place, self.svg)
        return place

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg):,} bytes of SVG)"


class Run:
    """A run: its figures, and the journal behind them.

    `metrics` are the figures that the run ended with, as its command prints them with `--format json`. `notes` are what
    a user should know of the run beside them.
    """

    def __init__(
        self,
        journal: JournalFile | str | os.PathLike[str],
        metrics: dict[str, Any] | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self._file = journal if isinstance(journal, JournalFile) else JournalFile(as_path(journal, "journal"))
        if metrics is not None:
            self.metrics = metrics
        self.notes = notes or []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reader"}  # a copy has its own file

    @property
    def journal(self) -> Path:
        """The file that tells all of the run."""
        if self._file.path is None:
            raise InputError("this run was not recorded: run it without journal=False")
        return self._file.path

    @cached_property
    def _reader(self) -> Reader:
        return open_journal(self.journal)

    @property
    def header(self) -> Header:
        """What the run was of: the policy and its options, the devices, the level's own facts."""
        return self._reader.header

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The figures of a run that was read back: those at the end of its journal; recounted if it has none."""
        figures = Metrics(self.header.pool, from_first_arrival=self.header.from_first_arrival)
        end: dict[str, Any] = {}
        for n, t, events in self._reader.steps():
            figures.step(n, t, events)
            end = next((event.summary for event in events if isinstance(event, Ended)), end)
        return recount(figures.figures()) | end

    @property
    def bounds(self) -> dict[str, float]:
        """What no schedule of this work can be below, by the name of the figure."""
        facts = {} if self._file.path is None else self.header.facts
        known = {**facts, **self.metrics}
        return {
            key.removeprefix("bound_"): float(value)
            for key, value in known.items()
            if key.startswith("bound_") and isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def bound(self) -> float | None:
        """The least makespan that is possible, in seconds; None where none is known."""
        return self.bounds.get("makespan_s")

    @property
    def gap(self) -> float | None:
        """How far the makespan lies above its bound: 0.12 is 12 %."""
        makespan_s = self.metrics.get("makespan_s")
        return makespan_s / self.bound - 1 if self.bound and isinstance(makespan_s, int | float) else None

    def frame(self, of: Literal["jobs", "tasks"] = "jobs") -> Any:
        """A row per job, or per start of a task: a frame of pandas or polars where one is installed, else columns."""
        if of not in ("jobs", "tasks"):
            raise InputError(f"of {of!r}: expected jobs or tasks")
        return as_frame(jobs_of(self._reader) if of == "jobs" else tasks_of(self._reader))

    def check(self, **against: Any) -> Report:
        """Whether it is a valid schedule, by the rules of all levels and of its own; `against` are files that the
        level can hold it against."""
        return check_run(self.journal, **against)

    def explain(self, job: str, task: str | None = None) -> Account:
        """Why a job, or one task of it, waited and went where it went."""
        rules = room(self.header.level, "explain")
        if rules is not None and hasattr(rules, "account"):
            told: Account = rules.account(self._reader, job, task)
            return told
        stories = explain(self._reader, str(job), task)
        return Account("\n\n".join("\n".join(sentences(story)) for story in stories), list(stories))

    def replay(self) -> Agreement:
        """Decide the run again, from what was seen, and compare with what is recorded."""
        return replay_journal(self.journal)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep a copy of the journal."""
        place = as_path(path, "path")
        refuse_overwrite([place], [open_journal(self.journal).path])
        atomic_write(place, self.journal.read_bytes())
        return place

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page about the run: one file that needs no server."""
        place = as_path(path, "path")
        refuse_overwrite([place], [self.journal])
        atomic_write(place, import_module(_DRAWN_BY).page_of([self.journal]))
        return place

    def plot(self, what: Literal["schedule", "responses", "jobs"] = "schedule") -> Picture:
        """The schedule as bars on every device, how long jobs took from arrival to completion, or a row for each job
        with its devices over time."""
        return Picture(import_module(_DRAWN_BY).picture_of(self.journal, what))

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self._headline()}>"
        except InputError as error:  # the journal has gone since
            return f"<{type(self).__name__} {error}>"

    def _headline(self) -> str:
        metrics, words = self.metrics, [] if self._file.path is None else [self.header.policy]
        completed, arrived = metrics.get("completed"), metrics.get("arrived")
        if completed is not None:
            words.append(f"{completed:,} {'of ' + format(arrived, ',') + ' ' if arrived is not None else ''}completed")
        makespan_s = metrics.get("makespan_s")
        if isinstance(makespan_s, int | float):
            above = "" if self.gap is None else f" ({round(100 * self.gap, 1) + 0.0:.1f} % above the bound)"
            words.append(f"makespan {makespan_s:,.6g} s{above}")
        return ", ".join(words)

    def _repr_html_(self) -> str:
        told = f"<p><b>{escape(type(self).__name__)}</b> {escape(repr(self).strip('<>').partition(' ')[2])}</p>"
        return told + (self.plot().svg if self._file.path is not None and self._file.path.exists() else "")


def check_run(journal: Path, **against: Any) -> Report:
    """Check a journal by the rules of its level, or, where these are not installed, by those of all levels."""
    from inspect import signature

    reader = open_journal(journal)
    level = reader.header.level
    files = {name: value for name, value in against.items() if value is not None}
    rules = room(level, "check")
    if unknown := files.keys() - (signature(rules.check_journal).parameters if rules else {}).keys():
        raise InputError(f"{journal}: a {level} run is not checked against --{min(unknown)}")
    if rules is not None:
        found: Report = rules.check_journal(journal, **files)
        return found
    faults = Findings()
    figures = check_journal(reader, faults, exact=False)
    notes = [f"the rules of the {level} level are not known: only those of all levels were checked"]
    return Report.of(str(journal), "journal", faults, notes, recount(figures))
