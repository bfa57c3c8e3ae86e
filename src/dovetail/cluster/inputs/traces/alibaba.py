"""Alibaba's GPU trace of 2023 (`openb_pod_list_*.csv`): pods with fractions of GPUs, some for certain GPU types only.

A pod runs from `scheduled_time` to `deletion_time`. Part of a GPU becomes a whole one for that part of the time, so the
GPU-time is the same. A pod that names types (`gpu_spec`) becomes a model that runs on these only, as far as the
throughputs know them. Left out: pods without a GPU, those that never ran, CPU and memory, and the class of service.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.cluster.inputs.csv_rows import CsvRow, read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.workload import Job

OTHER_NAMES = {"V100M16": "v100", "V100M32": "v100"}  # the trace tells them apart by their memory


def _read(reading: TraceReading) -> Iterator[Job]:
    for row in read_rows(reading.path):
        width = row.whole("num_gpu", least=0)
        if not width:
            reading.leave_out("pods without a GPU")
            continue
        if "scheduled_time" not in row:
            reading.leave_out("pods that never ran")
            continue
        ran_s = row.number("deletion_time") - row.number("scheduled_time")
        share = row.number("gpu_milli", 1000.0, least=1) / 1000
        if ran_s <= 0:
            reading.leave_out("pods that took no time")
            continue
        name = row.text("name")
        yield reading.job(
            row,
            model=_only_on(reading, row, reading.draw(row, name, width), width),
            width=width,
            duration_s=ran_s * min(share, 1.0),
            arrival_s=row.number("creation_time", least=0),
            name=name,
        )


def _only_on(reading: TraceReading, row: CsvRow, model: str, width: int) -> str:
    wanted = row.text("gpu_spec", "")
    if not wanted:
        return model
    names = wanted.split("|")
    types = {name.lower() for name in names} | {OTHER_NAMES[name] for name in names if name in OTHER_NAMES}
    return reading.only_on(model, width, types)


FORMATS = (
    TraceFormat(
        "alibaba-2023", "Alibaba GPU 2023 pods", ("num_gpu", "gpu_milli", "creation_time", "deletion_time"), _read
    ),
)
