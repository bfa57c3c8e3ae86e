"""Tab-separated traces without a header: Gavel's with 10 columns, its older ones with 7, and Shockwave's with 12.

A job without a command of its own is written with that of its template. A job of Shockwave's may change its batch while
it runs (`batch_changes.py`); its steps are counted at the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from dovetail.cluster.inputs.csv_rows import LEAST_WEIGHT, MOST_WEIGHT, read_rows
from dovetail.cluster.inputs.templates import BY_MODEL
from dovetail.cluster.inputs.traces.batch_changes import MODES, phases_of
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.mapping import ONLY_ON
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.output import written_whole

_STARTS = ("command", "folder", "steps flag", "needs data")
_COLUMNS = {
    "gavel": ("model", *_STARTS, "steps", "width", "weight", "slack", "arrival"),
    "gavel-7": ("model", "command", "steps flag", "needs data", "steps", "arrival", "width"),
    "shockwave": ("model", *_STARTS, "steps", "width", "mode", "weight", "slack", "duration", "arrival"),
}


def _reader(name: str) -> TraceFormat:
    columns = _COLUMNS[name]

    def read(reading: TraceReading) -> Iterator[Job]:
        for row in read_rows(reading.path, columns, delimiter="\t"):
            slack = row.number("slack", -1.0)
            model, width, steps = row.text("model"), row.whole("width"), row.number("steps", least=0)
            mode = row.text("mode", "static")
            if mode not in MODES:
                raise row.error("mode", f"unknown {mode!r}{did_you_mean(mode, MODES)}")
            try:
                phases = phases_of(model, width, mode, steps, partial(reading.mapper.rescaled, model, width))
            except InputError as error:
                raise row.error("steps", str(error)) from None
            yield reading.job(
                row,
                model=model,
                width=width,
                steps=steps,
                phases=phases,
                arrival_s=row.number("arrival", least=0),
                weight=row.number("weight", 1.0, least=LEAST_WEIGHT, most=MOST_WEIGHT),
                slack=slack if slack >= 0 else None,
                duration_s=row.number("duration", least=0) if "duration" in row else None,
                start=reading.start(row, _STARTS),
            )

    what = f"{len(columns)} columns with tabs between, no header: {', '.join(columns)}"
    return TraceFormat(name, what, columns, read, header=False, widths="error", from_zero=False)


FORMATS = tuple(_reader(name) for name in _COLUMNS)


def job_words(job: Job) -> str:
    """Which job it is, for people.

    >>> job_words(Job(id=3, model="A3C", steps=1, arrival_s=0.0, name="train"))
    "job 3 ('train')"
    """
    return f"job {job.id}" + (f" ({job.name!r})" if job.name else "")


def gavel_line(job: Job) -> str:
    """A job in the 10 columns. Steps are cut to whole ones, and a deadline needs the job's duration, as ever there.

    >>> gavel_line(Job(id=0, model="A3C", steps=7.5, arrival_s=60.0)).split("\\t")[4:]
    ['0', '7', '1', '1', '-1.000000', '60.000000']
    """
    start = job.start or BY_MODEL.get(job.model)
    if start is None:
        hint = did_you_mean(job.model, BY_MODEL)
        if job.model.partition(ONLY_ON)[0] in BY_MODEL:
            hint = "; the format cannot say on which types a job runs (--map type= lets those of a log run on any)"
        raise InputError(f"{job_words(job)}: {job.model!r}: no command is known for it{hint}")
    if job.due_s is None:
        slack = -1.0
    elif job.duration_s:
        slack = job.due_s / job.duration_s
    else:
        raise InputError(f"{job_words(job)}: due after {job.due_s} s, but the format needs its duration")
    begin = (job.model, start.command, start.folder, start.steps_flag, f"{start.needs_data:d}")
    if any(sign in cell for cell in begin for sign in "\t\r\n"):
        raise InputError(f"{job_words(job)}: a tab or the end of a line in {begin}, which the format cannot hold")
    end = (f"{int(job.steps)}", f"{job.width}", f"{job.weight:g}", f"{slack:f}", f"{job.arrival_s:f}")
    return "\t".join((*begin, *end))


def write_gavel(jobs: Iterable[Job], path: Path, source: str = "") -> int:
    """Write a trace in the 10 columns, line by line; gives how many jobs there were. `source` is the file that they
    are from, for errors."""
    written = 0
    with written_whole(path) as file:
        for job in jobs:
            try:
                line = gavel_line(job)
            except InputError as error:
                raise InputError(f"{source}: {error}" if source else str(error)) from None
            file.write(line.encode() + b"\n")
            written += 1
    return written
