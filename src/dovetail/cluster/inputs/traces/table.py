"""Our own table of jobs: CSV with a header. `steps` or `duration_s` is needed, all else has a default."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.cluster.inputs.csv_rows import LEAST_WEIGHT, MOST_WEIGHT, check_columns, header_of, read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job
from dovetail.core.output import written_whole

COLUMNS = ("arrival_s", "model", "width", "steps", "duration_s", "weight", "due_s", "entity", "name")
_NEEDED = ("arrival_s", "model")


def _read(reading: TraceReading) -> Iterator[Job]:
    check_columns(reading.path, header_of(reading.path), _NEEDED, COLUMNS)
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
        )


FORMATS = (
    TraceFormat("table", f"our own: CSV with {', '.join(COLUMNS)}", _NEEDED, _read, widths="error", from_zero=False),
)


def write_table(jobs: Iterable[Job], path: Path) -> int:
    """Write our table, row by row, numbers in full; gives how many jobs there were."""
    written = 0
    with written_whole(path) as file:
        out = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        out.writerow(COLUMNS)
        for job in jobs:
            out.writerow([_cell(getattr(job, name)) for name in COLUMNS])
            written += 1
    return written


def _cell(value: object) -> object:
    """A value to write. A name stays on its line: the csv module would leave a lone carriage return unquoted."""
    if isinstance(value, str):
        return value.replace("\r", " ")
    return "" if value is None else value
