"""A plan in virtual time: microbatches through stages and links, with bounded buffers between them.

Every stage and every link is a device of its own, and a microbatch is a job whose tasks visit them in turn: the core's
engine, guard and journal serve as for any other level.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.core.charts import as_fact
from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.core.executor import SimExecutor
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.tasks import TaskGraphRecord
from dovetail.pipeline.explain import curves_of
from dovetail.pipeline.plan import Plan
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
    steps, _ = simulate(scheduler, pool, {graph.name: graph}, arrivals, SimExecutor(), [metrics, *observers])
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
            "plan": msgspec.to_builtins(plan),
            "devices": list(route.devices),
            "lanes": {station.name: lanes for station, lanes in zip(route.stations, route.lanes, strict=True)},
            "bound_makespan_s": route.least_s(microbatches),
        }
        | as_fact(curves_of(plan)),
    )


def record(plan: Plan, microbatches: int, buffers: int, journal: Path | None) -> SimulationResult:
    """Simulate a plan, and write its journal if a path is given."""
    if journal is None:
        return run(plan, microbatches, buffers)
    with Writer(journal, header(plan, microbatches, buffers)) as writer:
        outcome = run(plan, microbatches, buffers, [writer])
        writer.end(outcome.steps + 1, outcome.makespan_s, recount(outcome.figures))
    return outcome
