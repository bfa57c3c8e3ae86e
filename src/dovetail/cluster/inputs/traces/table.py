"""Our own table of jobs: CSV with a header. `steps` or `duration_s` is needed, all else has a default."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.cluster.inputs.csv_rows import LEAST_WEIGHT, MOST_WEIGHT, check_columns, header_of, read_rows
from dovetail.cluster.inputs.traces.format import START, TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job
from dovetail.core.files.output import written_whole

COLUMNS = ("arrival_s", "model", "width", "steps", "duration_s", "weight", "due_s", "entity", "name", *START)
NEEDED = ("arrival_s", "model")


def _read(reading: TraceReading) -> Iterator[Job]:
    header = header_of(reading.path)
    check_columns(reading.path, header, NEEDED, COLUMNS)
    started = not set(START).isdisjoint(header)
    for row in read_rows(reading.path):
        yield reading.job(
            row,
            model=row.text("model"),
            width=row.whole("width", 1),
            steps=row.number("steps", least=0) if "steps" in row else None,
            duration_s=row.number("duration_s", least=0) if "duration_s" in row else None,
            arrival_s=row.number("arrival_s", least=0),
            weight=row.number("weight", 1.0, least=LEAST_WEIGHT, most=MOST_WEIGHT),
            due_s=row.number("due_s", least=0) if "due_s" in row else None,
            entity=row.text("entity", ""),
            name=row.text("name", ""),
            start=reading.start(row) if started else None,
        )


FORMATS = (
    TraceFormat("table", f"our own: CSV with {', '.join(COLUMNS)}", NEEDED, _read, widths="error", from_zero=False),
)


def write_table(jobs: Iterable[Job], path: Path) -> int:
    """Write our table, numbers in full, with commands where any job has one; gives how many jobs there were."""
    jobs = list(jobs)
    started = any(job.start is not None for job in jobs)
    columns = COLUMNS[: -len(START)]
    with written_whole(path) as file:
        out = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        out.writerow(COLUMNS if started else columns)
        for job in jobs:
            cells = [_cell(getattr(job, name)) for name in columns]
            out.writerow([*cells, *map(_cell, job.start or ("",) * len(START))] if started else cells)
    return len(jobs)


def _cell(value: object) -> object:
    """A value to write. A name stays on its line: the csv module would leave a lone carriage return unquoted."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return value.replace("\r", " ")
    return "" if value is None else value
