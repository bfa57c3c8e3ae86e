"""Traces of training jobs in many formats, told apart by their shape, as jobs in order of arrival."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os import PathLike
from typing import get_args

import msgspec

from dovetail.cluster.inputs.choices import OnError, TraceKind, Widths, one_of
from dovetail.cluster.inputs.csv_rows import GivenRows, Source, check_columns, header_of
from dovetail.cluster.inputs.traces import alibaba, gavel, kubernetes, logs, pollux, ray_jobs, simulators, slurm, table
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.gavel import job_words, write_gavel
from dovetail.cluster.inputs.traces.mapping import Mapper
from dovetail.cluster.inputs.traces.table import write_table
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import as_path
from dovetail.core.files.output import need_folders
from dovetail.core.files.reading import open_bytes

__all__ = ["FORMATS", "JobTrace", "detect", "read_trace", "write_gavel", "write_table", "write_trace"]

FORMATS: dict[str, TraceFormat] = {
    each.name: each
    for module in (table, gavel, logs, pollux, alibaba, simulators, slurm, kubernetes, ray_jobs)
    for each in module.FORMATS
}

_NEARLY = (  # how files begin that somebody printed in another form, and what to do about it
    (r"\d+[\w.+\[\]-]*\|.*\|", "it looks like what sacct prints without its header: leave -n, --noheader away"),
    (
        r'\{.*"[Ss]lurm"|\{\s*"meta"\s*:.*"jobs"\s*:|\{\s*"jobs"\s*:.*"(meta|association)"\s*:',
        "it looks like what sacct --json prints: leave --json away, and give -P",
    ),
    (
        r"(---\n)?(apiVersion|kind): |(NAMESPACE|LAST SEEN|NAME) +[A-Z]",
        "it looks like what kubectl prints: give -o json",
    ),
    (r"=+ List: .* =+", "it looks like what ray list jobs prints: give --format json"),
)


@dataclass(slots=True, kw_only=True)
class JobTrace:
    """Jobs in order of arrival, numbered from 0.

    `throughputs` are those that were given, with guesses for widths that they did not have. `dropped` says what was
    left out of the file and how often, `notes` what was assumed.
    """

    format: str
    jobs: list[Job]
    throughputs: Throughputs | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


def read_trace(
    path: Source,
    throughputs: Throughputs | None = None,
    *,
    format: str = "",
    widths: Widths | None = None,
    most: int | None = None,
    timed: Throughputs | None = None,
    profiled: Mapper | None = None,
    map: Mapping[str, str] | None = None,
    model: Mapping[str, str] | None = None,
    on_error: OnError = "fail",
    elsewhere: Callable[[], Throughputs] | None = None,
) -> JobTrace:
    """Read a trace of any known format.

    Without throughputs only formats that give steps can be read. `widths` says what is done with widths that the
    throughputs do not have; a log of a real cluster is full of them, so there they are guessed by default. `most` are
    read at most: the first to arrive, so that notes tell of these alone. `timed` are throughputs of the type that
    durations are on; without it that is v100, or the first that runs most. With `profiled`, models and steps are those
    of applications' profiles.

    Of a scheduler's log, `map` says which key holds what (`model`, `steps`, `width`, `weight`, `due_s`, `entity`,
    `name`, `type`), `model` which model a name there is, by pattern or as "" for all others. `elsewhere` gives
    throughputs of types that jobs ran on and that are not among those given.
    """
    if format and format not in FORMATS:
        raise InputError(f"trace format {format!r}: unknown{did_you_mean(format, FORMATS)}")
    how = FORMATS[format] if format else detect(path)
    if format and how.looks is not None and not how.looks(begin := _beginning(path)) and (hint := _hint(begin)):
        raise InputError(f"{path}:1: expected {how.what}, found something else ({hint})")
    if not how.mapped and (map or model or on_error != "fail"):
        named = ", ".join(name for name, each in FORMATS.items() if each.mapped)
        raise InputError(f"{path}: map, model and on_error are for logs of schedulers ({named}), found {how.name}")
    mapper = profiled or Mapper(throughputs, widths or how.widths, elsewhere if how.mapped else None, timed)
    reading = TraceReading(path, mapper, map=dict(map or {}), model=dict(model or {}), on_error=on_error)
    jobs = list(how.read(reading))
    if not jobs:
        dropped = ", ".join(f"{count} x {what}" for what, count in reading.dropped(()).items())
        tell = "; --map width=KEY tells where accelerators are counted" if how.mapped else ""
        raise InputError(f"{path}: expected jobs, found none" + (f" (left out: {dropped}{tell})" if dropped else ""))
    arrivals = [job.arrival_s for job in jobs]
    start_s = min(arrivals) if how.from_zero else 0.0
    in_order = all(a <= b for a, b in pairwise(arrivals))
    jobs = (jobs if in_order else sorted(jobs, key=lambda job: job.arrival_s))[:most]
    ids = {job.id for job in jobs}
    if start_s or not in_order:
        jobs = [replace(job, id=i, arrival_s=job.arrival_s - start_s) for i, job in enumerate(jobs)]
    return JobTrace(
        format=how.name,
        jobs=jobs,
        throughputs=reading.mapper.throughputs,
        dropped=reading.dropped(ids if most is not None else ()),
        notes=reading.notes(ids, {(job.model, job.width) for job in jobs}),
    )


def write_trace(jobs: Iterable[Job], path: str | PathLike[str], to: TraceKind = "table", source: str = "") -> int:
    """Write jobs as our table, or in the older system's ten columns; gives how many there were. `source` is the file
    that they are from, for errors."""
    one_of("to", to, get_args(TraceKind))
    if getattr(jobs, "jobs", 0) is None:
        raise InputError("jobs: these are without end; give some of them, as itertools.islice(jobs, 1000)")
    jobs = list(jobs) if isinstance(jobs, Iterable) else [jobs]
    if wrong := [job for job in jobs if not isinstance(job, Job)]:
        raise InputError(f"jobs: expected some as load(...).setup.jobs has them, found {wrong[0]!r}")
    if changing := next((job for job in jobs if job.phases), None):
        raise InputError(
            f"{source + ': ' if source else ''}{job_words(changing)} changes its batch as it goes: "
            "no format that is written can say so; simulate and others take its file as it is (-t)"
        )
    place = as_path(path, "path")
    need_folders([place])
    return write_table(jobs, place) if to == "table" else write_gavel(jobs, place, source)


def detect(path: Source) -> TraceFormat:
    """The format of a file: by its header, of those that fit the one with most columns; else by how many it has."""
    if isinstance(path, GivenRows) and not path.rows:
        raise InputError(f"{path}: expected jobs, found none")
    begin = _beginning(path)
    if not begin.strip():
        raise InputError(f"{path}: expected jobs, found an empty file")
    if "\0" in begin:
        raise InputError(f"{path}: expected a text file with jobs, found a binary one")
    for each in FORMATS.values():
        if each.looks is not None and each.looks(begin):
            return each
    cells = header_of(path, delimiter="\t")
    for each in FORMATS.values():
        if not each.header and each.looks is None and len(cells) == len(each.columns):
            return each
    header = header_of(path)
    fitting = [
        each for each in FORMATS.values() if each.header and each.looks is None and set(each.columns) <= set(header)
    ]
    if fitting:
        return max(fitting, key=lambda each: len(each.columns))
    if len(set(header) & set(table.COLUMNS)) > 1:
        check_columns(path, header, table.NEEDED, table.COLUMNS)  # our own, with a slip in a column's name
    found = f"a header with {', '.join(header)[:100] or 'nothing'}"
    if len(cells) > 1:
        found = f"{len(cells)} columns with tabs between"
    if hint := _hint(begin):
        found += f" ({hint})"
    raise InputError(f"{path}:1: not a trace that is known: found {found}; known formats: {', '.join(FORMATS)}")


def _hint(begin: str) -> str:
    """What is to be done about a file that begins so; nothing if that is not known."""
    return next((hint for pattern, hint in _NEARLY if re.match(pattern, begin.lstrip(), re.DOTALL)), "")


def _beginning(path: Source) -> str:
    """The first lines of a file; of rows that were given, the first one as JSON would have it, under its names."""
    if isinstance(path, GivenRows):
        return msgspec.json.encode(path.rows[:1], enc_hook=str).decode()
    with open_bytes(path) as file:
        return file.read(65536).decode("utf-8-sig", errors="replace")
