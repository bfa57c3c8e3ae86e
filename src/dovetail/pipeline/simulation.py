"""A plan in virtual time: microbatches through stages and links, with bounded buffers between them.

Every stage and every link is a device of its own, and a microbatch is a work whose parts visit them in turn: the core's
engine, guard and journal serve as for any other level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Instruction, Start, Stimulus
from dovetail.core.executor import SimExecutor
from dovetail.core.files import Document
from dovetail.core.journal import Header, Observer, ShapeRecord, Writer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.work import Part, Shape
from dovetail.pipeline.plan import Plan

_SHAPE = "microbatch"


class Route(Struct, frozen=True):
    """The devices that a microbatch visits, stages and links in turn, and the seconds it spends on each."""

    names: list[str]
    seconds: list[float]
    types: list[str]

    @classmethod
    def of(cls, plan: Plan) -> Route:
        names, seconds, types = [], [], []
        for x, stage in enumerate(plan.stages):
            if stage.replicas:
                raise InputError("a plan with replicated stages cannot be simulated yet")
            names.append(stage.host)
            seconds.append(stage.compute_s)
            types.append(stage.type)
            if x + 1 < len(plan.stages):
                names.append(f"{stage.host} to {plan.stages[x + 1].host}")
                seconds.append(stage.send_s)
                types.append("link")
        return cls(names, seconds, types)

    @property
    def pool(self) -> Pool:
        return Pool(
            tuple(Device(i, kind) for i, kind in enumerate(self.types)), {kind: DeviceType(kind) for kind in self.types}
        )

    @property
    def shape(self) -> Shape:
        return Shape(
            _SHAPE, [Part(name, name) for name in self.names], list(zip(self.names, self.names[1:], strict=False))
        )


class PipelineScheduler:
    """First in, first out on every device; a link starts only when the stage behind it has a buffer free."""

    def __init__(self, route: Route, buffers: int) -> None:
        self._route = route
        self._buffers = buffers
        self._index = {name: i for i, name in enumerate(route.names)}
        self._waiting: list[deque[tuple[str, float]]] = [deque() for _ in route.names]
        self._busy = [False] * len(route.names)

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stimulus in stimuli:
            if isinstance(stimulus, Arrived):
                self._waiting[0].append((stimulus.work, now))
            elif isinstance(stimulus, Finished):
                i = self._index[stimulus.part]
                self._busy[i] = False
                if i + 1 < len(self._route.names):
                    self._waiting[i + 1].append((stimulus.work, now))
                else:
                    out.append(Complete(stimulus.work))
        for i in reversed(range(len(self._route.names))):  # a stage takes from its buffer before the link looks at it
            if self._waiting[i] and not self._busy[i] and self._has_room(i):
                work, ready_s = self._waiting[i].popleft()
                self._busy[i] = True
                name = self._route.names[i]
                out.append(Start(work, name, name, (i,), ready_s, self._route.seconds[i], "first in, first out"))
        return out

    def _has_room(self, i: int) -> bool:
        if i % 2 == 0:
            return True
        return len(self._waiting[i + 1]) < self._buffers

    def close(self, now: float) -> list[Instruction]:
        return []


class Outcome(Struct):
    """What the simulation gives beside what the formula predicts: latency + (microbatches - 1) x bottleneck."""

    microbatches: int
    makespan_s: float
    predicted_s: float
    throughput_items_s: float
    figures: Figures
    steps: int


def run(plan: Plan, microbatches: int, buffers: int = 1, observers: Sequence[Observer] = ()) -> Outcome:
    """Send microbatches through a plan, all ready at the start."""
    if microbatches < 1 or buffers < 1:
        raise InputError(f"expected at least 1 microbatch and 1 buffer, found {microbatches} and {buffers}")
    route = Route.of(plan)
    shapes = {_SHAPE: route.shape}
    sizes = tuple(route.seconds)
    arrivals = [(0.0, Arrived(f"microbatch {n + 1}", _SHAPE, sizes)) for n in range(microbatches)]
    metrics = Metrics(route.pool)
    scheduler = PipelineScheduler(route, buffers)
    steps, _ = simulate(scheduler, route.pool, shapes, arrivals, SimExecutor(), [metrics, *observers])
    figures = metrics.figures()
    predicted_s = sum(route.seconds) + (microbatches - 1) * max(route.seconds)
    items = microbatches * plan.batch_size
    pace = items / figures.makespan_s if figures.makespan_s else 0.0
    return Outcome(microbatches, figures.makespan_s, predicted_s, pace, figures, steps)


def header(plan: Plan, microbatches: int, buffers: int) -> Header:
    """The first line of the simulation's journal."""
    route = Route.of(plan)
    options = {"microbatches": microbatches, "buffers": buffers}
    return Header(
        level="pipeline",
        policy=plan.method,
        options=options,
        pool=route.pool,
        shapes=(ShapeRecord.of(route.shape),),
        facts={"model": plan.model, "devices": route.names},
    )


def record(plan: Plan, microbatches: int, buffers: int, journal: Path | None) -> Outcome:
    """Simulate a plan, and write its journal if a path is given."""
    if journal is None:
        return run(plan, microbatches, buffers)
    with Writer(journal, header(plan, microbatches, buffers)) as writer:
        outcome = run(plan, microbatches, buffers, [writer])
        writer.end(outcome.steps + 1, outcome.makespan_s, recount(outcome.figures))
    return outcome


def read_plan(path: Path) -> Plan:
    """A plan as `dovetail pipeline plan --format json` printed it."""
    doc = Document.read(path)
    data: Any = doc.data
    if isinstance(data, dict) and data.get("feasible") is False:
        raise doc.error(("feasible",), "holds no plan: planning found none")
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key != "what_if"}
    found = doc.convert(data, Plan)
    if not found.stages:
        raise doc.error(("stages",), "expected at least one stage")
    return found
