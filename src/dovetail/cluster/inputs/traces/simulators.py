"""Traces of the Tiresias family of simulators: job_id, num_gpu, submit_time, iterations, model_name, duration, ...

A model that the throughputs have keeps its iterations; another one stands for the nearest known family, and its steps
come from its duration. Chronus adds deadlines (`expect_time_list`, after submission, unless `best_effort`) and users,
which become entities. Muri counts in milliseconds; its per-resource times are left out, since jobs here share GPUs by
pair rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dovetail.cluster.inputs.csv_rows import read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job

_COLUMNS = ("num_gpu", "submit_time", "iterations", "model_name", "duration")


def _read(unit_s: float, reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        width = row.whole("num_gpu", least=0)
        duration_s = row.number("duration", least=0) * unit_s
        if not width or not duration_s:
            reading.leave_out("jobs that took no time" if width else "jobs without a GPU")
            continue
        name = row.text("job_id", f"{row.line}")
        theirs = row.text("model_name")
        model = reading.draw(row, name, width, theirs)
        due = row.text("expect_time_list", "") if row.text("best_effort", "0") == "0" else ""
        yield reading.job(
            row,
            model=model,
            width=width,
            steps=row.number("iterations", least=0) if model == theirs else None,
            duration_s=None if model == theirs else duration_s,
            arrival_s=row.number("submit_time", least=0) * unit_s,
            due_s=row.number("expect_time_list", least=0) if due else None,
            entity=row.text("user", ""),
            name=name,
        )


FORMATS = (
    TraceFormat("tiresias", "Tiresias CSV", _COLUMNS, partial(_read, 1.0)),
    TraceFormat("chronus", "Chronus CSV", (*_COLUMNS, "expect_time_list", "best_effort"), partial(_read, 1.0)),
    TraceFormat("muri", "Muri CSV", (*_COLUMNS, "iteration_time", "resource_time_0"), partial(_read, 0.001)),
)
