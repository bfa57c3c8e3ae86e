"""Pollux's workloads: name, time, application, num_replicas, batch_size. They do not say how much work a job is.

The application does: with its profile a job has all of its epochs to do, at the batch that the workload names. Without
profiles it has the GPU-hours that the jobs of Pollux's eight workloads take by these profiles, as they ask, on T4
(means), divided by its replicas; then an application stands for the nearest known model family.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cluster.inputs.csv_rows import read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job, at_batch
from dovetail.core.errors import did_you_mean

GPU_HOURS = {
    "cifar10": 3.39,
    "ncf": 0.019,
    "bert": 6.37,
    "deepspeech2": 9.26,
    "yolov3": 16.19,
    "imagenet": 287.0,
}


def _read(reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        application, width, name = row.text("application"), row.whole("num_replicas"), row.text("name")
        if reading.mapper.profiled:
            model = reading.draw(row, name, width, at_batch(application, row.whole("batch_size")))
            steps, duration_s = reading.mapper.whole_job(model), None
        elif application in GPU_HOURS:
            model = reading.draw(row, name, width, application)
            steps, duration_s = None, 3600 * GPU_HOURS[application] / width
        else:
            raise row.error("application", f"unknown {application!r}{did_you_mean(application, GPU_HOURS)}")
        yield reading.job(
            row,
            model=model,
            width=width,
            steps=steps,
            duration_s=duration_s,
            arrival_s=row.number("time", least=0),
            name=name,
        )


FORMATS = (
    TraceFormat("pollux", "Pollux workload CSV", ("time", "application", "num_replicas"), _read, from_zero=False),
)
