"""A plan in virtual time: microbatches through stages and links, with bounded buffers between them.

Every stage and every link is a device of its own, and a microbatch is a job whose tasks visit them in turn: the core's
engine, guard and journal serve as for any other level.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.core.files.document import Source, checked
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.loop.engine import simulate as drive
from dovetail.core.loop.executor import SimExecutor
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.results.charts import as_fact
from dovetail.core.results.run import JournalFile, JournalPath
from dovetail.core.tasks import TaskGraphRecord
from dovetail.pipeline.explain import curves
from dovetail.pipeline.metrics import PipelineRun
from dovetail.pipeline.plan import Plan, read_plan
from dovetail.pipeline.route import Route
from dovetail.pipeline.scheduler import PipelineScheduler
from dovetail.pipeline.words import WORDS


class SimulationResult(Struct):
    """What the simulation gives beside what the formula predicts."""

    microbatches: int
    makespan_s: float
    predicted_s: float
    throughput_items_s: float
    uses: dict[str, float]  # the share of the time that each device was busy
    figures: Figures
    steps: int


def run(plan: Plan, microbatches: int, buffers: int = 1, observers: Sequence[Observer] = ()) -> SimulationResult:
    """Send microbatches through a plan, all ready at the start."""
    if microbatches < 1 or buffers < 1:
        raise InputError(f"expected at least 1 microbatch and 1 buffer, found {microbatches} and {buffers}")
    route = Route.planned(plan)
    graph, pool = route.graph(), route.pool
    arrivals = [
        (0.0, Arrived(f"microbatch {n}", graph.name, route.seconds, facts={"number": n}))
        for n in range(1, microbatches + 1)
    ]
    metrics = Metrics(pool)
    names, types = [station.name for station in route.stations], [device.type for device in pool.devices]
    scheduler = PipelineScheduler(names, route.lanes, types, buffers)
    steps, _ = drive(scheduler, pool, {graph.name: graph}, arrivals, SimExecutor(), [metrics, *observers])
    figures = metrics.figures()
    items = microbatches * plan.batch_size
    pace = items / figures.makespan_s if figures.makespan_s else 0.0
    uses = dict(zip(route.devices, [device.utilisation for device in figures.devices], strict=True))
    least_s = route.least_s(microbatches)
    return SimulationResult(microbatches, figures.makespan_s, least_s, pace, uses, figures, steps)


def header(plan: Plan, microbatches: int, buffers: int) -> Header:
    """The first line of the simulation's journal."""
    route = Route.planned(plan)
    options = {"microbatches": microbatches, "buffers": buffers}
    return Header(
        level="pipeline",
        words=WORDS,
        policy=plan.method,
        options=options,
        pool=route.pool,
        graphs=(TaskGraphRecord.of(route.graph()),),
        facts={
            "model": plan.model,
            "asked": microbatches,
            "plan": msgspec.to_builtins(plan),
            "devices": list(route.devices),
            "lanes": {station.name: lanes for station, lanes in zip(route.stations, route.lanes, strict=True)},
            "bound_makespan_s": route.least_s(microbatches),
        }
        | as_fact(curves(plan)),
    )


class _Options(Struct):
    microbatches: int
    buffers: int


def simulate(plan: Plan | Source, microbatches: int = 64, buffers: int = 1, journal: JournalPath = None) -> PipelineRun:
    """Send microbatches through a plan in virtual time: stages and links run side by side, each one microbatch at a
    time, with so many buffers before each stage.

    A plan may also be a file or a dict. The journal is written to a path, without one to a temporary file, and with
    False not at all.

    >>> from dovetail import pipeline
    >>> device = pipeline.DeviceClass("t", "t", ["a", "b"], bw_mbps=1000.0, mem_mib=99.0, time_s=[0.5, 0.25, 0.25])
    >>> problem = pipeline.Pipeline(model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[device],
    ...     batch_size=8, dtype="torch.float32")
    >>> run = pipeline.simulate(pipeline.plan(problem), microbatches=10)
    >>> run
    <PipelineRun exact, makespan 5.5 s (0.0 % above the bound)>
    >>> run.metrics["throughput_items_s"], run.check().valid
    (14.545454545454545, True)
    """
    made = read_plan(plan)
    asked = checked({"microbatches": microbatches, "buffers": buffers}, _Options)
    file = JournalFile(journal)
    if file.path is None:
        outcome = run(made, asked.microbatches, asked.buffers)
    else:
        if isinstance(plan, str | os.PathLike):
            refuse_overwrite([file.path], [Path(plan)])
        with Writer(file.path, header(made, asked.microbatches, asked.buffers)) as writer:
            outcome = run(made, asked.microbatches, asked.buffers, [writer])
            writer.end(outcome.steps + 1, outcome.makespan_s, recount(outcome.figures))
    metrics = {
        "microbatches": outcome.microbatches,
        "makespan_s": outcome.makespan_s,
        "predicted_s": outcome.predicted_s,
        "throughput_items_s": outcome.throughput_items_s,
        "utilisation": outcome.uses,
    }
    return PipelineRun(file, metrics)
