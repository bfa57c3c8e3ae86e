"""Pollux's workloads: name, time, application, num_replicas, batch_size. They do not say how much work a job is.

Its size class does: applications were chosen for classes of GPU-hours (small below 1, medium to 10, large to 100, extra
large to 1,000); a job gets its class's geometric middle, divided by its replicas. An application stands for the nearest
known model family.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cluster.inputs.csv_rows import read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import did_you_mean

GPU_HOURS = {
    "cifar10": 0.32,
    "ncf": 0.32,
    "bert": 3.2,
    "deepspeech2": 3.2,
    "yolov3": 32.0,
    "imagenet": 320.0,
}


def _read(reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        application, width, name = row.text("application"), row.whole("num_replicas"), row.text("name")
        if application not in GPU_HOURS:
            raise row.error("application", f"unknown {application!r}{did_you_mean(application, GPU_HOURS)}")
        yield reading.job(
            row,
            model=reading.draw(row, name, width, application),
            width=width,
            duration_s=3600 * GPU_HOURS[application] / width,
            arrival_s=row.number("time", least=0),
            name=name,
        )


FORMATS = (
    TraceFormat("pollux", "Pollux workload CSV", ("time", "application", "num_replicas"), _read, from_zero=False),
)
