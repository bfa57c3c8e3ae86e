"""Traces of training jobs in many formats, told apart by their shape, as jobs in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from dovetail.cluster.inputs.choices import Widths
from dovetail.cluster.inputs.csv_rows import header_of
from dovetail.cluster.inputs.traces import alibaba, gavel, logs, pollux, simulators, table
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.gavel import write_gavel
from dovetail.cluster.inputs.traces.mapping import Mapper
from dovetail.cluster.inputs.traces.table import write_table
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.core.errors import InputError, did_you_mean

__all__ = ["FORMATS", "Trace", "detect", "read_trace", "write_gavel", "write_table"]

FORMATS: dict[str, TraceFormat] = {
    each.name: each for module in (table, gavel, logs, pollux, alibaba, simulators) for each in module.FORMATS
}


@dataclass(slots=True, kw_only=True)
class JobTrace:
    """Jobs in order of arrival, numbered from 0.

    `throughputs` are those that were given, with guesses for widths that they did not have. `dropped` says what was
    left out of the file and how often, `notes` what was assumed.
    """

    path: Path
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
    path: Path,
    throughputs: Throughputs | None = None,
    *,
    format: str = "",
    reference: str = "",
    widths: Widths | None = None,
) -> JobTrace:
    """Read a trace of any known format.

    Without throughputs only formats that give steps can be read. `reference` is the type that durations refer to: v100
    if it is known. `widths` says what is done with widths that the throughputs do not have; a log of a real cluster is
    full of them, so there they are guessed by default.
    """
    if format and format not in FORMATS:
        raise InputError(f"trace format {format!r}: unknown{did_you_mean(format, FORMATS)}")
    how = FORMATS[format] if format else detect(path)
    reading = TraceReading(path, Mapper(throughputs, reference, widths or how.widths))
    jobs = list(how.read(reading))
    if not jobs:
        raise InputError(
            f"{path}: expected jobs, found none" + (f" ({dict(reading.dropped)})" if reading.dropped else "")
        )
    arrivals = [job.arrival_s for job in jobs]
    start_s = min(arrivals) if how.from_zero else 0.0
    if start_s or any(a > b for a, b in pairwise(arrivals)):
        jobs.sort(key=lambda job: job.arrival_s)
        jobs = [replace(job, id=i, arrival_s=job.arrival_s - start_s) for i, job in enumerate(jobs)]
    return JobTrace(
        path=path,
        format=how.name,
        jobs=jobs,
        throughputs=reading.mapper.throughputs,
        dropped=dict(reading.dropped),
        notes=reading.mapper.notes(),
    )


def detect(path: Path) -> TraceFormat:
    """The format of a file: by its header, of those that fit the one with most columns; else by how many it has."""
    cells = header_of(path, delimiter="\t")
    for each in FORMATS.values():
        if not each.header and len(cells) == len(each.columns):
            return each
    header = header_of(path)
    fitting = [each for each in FORMATS.values() if each.header and set(each.columns) <= set(header)]
    if fitting:
        return max(fitting, key=lambda each: len(each.columns))
    found = f"a header with {', '.join(header)[:100] or 'nothing'}"
    if len(cells) > 1:
        found = f"{len(cells)} columns with tabs between"
    raise InputError(f"{path}:1: not a trace that is known: found {found}; known formats: {', '.join(FORMATS)}")
