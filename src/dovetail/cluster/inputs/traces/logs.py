"""Logs of clusters that say when a job came, how many GPUs it had and how long it ran, but not what it trained.

- Philly: timestamp, duration, num_gpus, gpu_time, cluster. The cluster becomes the entity.
- Helios: gpu_num, submit_time, duration, and where there are any job_id, vc (the entity), state. Jobs without a GPU are
  left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cluster.inputs.csv_rows import CsvRow, read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading, timestamp_s
from dovetail.cluster.inputs.workload import Job


def _philly(reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        yield from _job(reading, row, "num_gpus", "timestamp", f"{row.line}", row.text("cluster", ""))


def _helios(reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        yield from _job(reading, row, "gpu_num", "submit_time", row.text("job_id", f"{row.line}"), row.text("vc", ""))


def _job(reading: TraceReading, row: CsvRow, gpus: str, arrival: str, key: str, entity: str) -> Iterator[Job]:
    width = row.whole(gpus, least=0)
    duration_s = row.number("duration", least=0)
    if not width:
        reading.leave_out("jobs without a GPU")
    elif not duration_s:
        reading.leave_out("jobs that took no time")
    else:
        yield reading.job(
            row,
            model=reading.draw(row, key, width),
            width=width,
            duration_s=duration_s,
            arrival_s=timestamp_s(row, arrival),
            entity=entity,
            name=key,
        )


FORMATS = (
    TraceFormat("philly", "Philly CSV", ("timestamp", "duration", "num_gpus"), _philly),
    TraceFormat("helios", "Helios CSV", ("gpu_num", "submit_time", "duration"), _helios),
)
