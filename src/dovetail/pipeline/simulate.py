"""A plan in virtual time: microbatches through stages and links, with bounded buffers between them.

Every stage and every link is a device of its own, and a microbatch is a work whose parts visit them in turn: the core's
engine, guard and journal serve as for any other level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from msgspec import Struct

from dovetail.core.charts import as_fact
from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Finished, Instruction, Start, Stimulus
from dovetail.core.executor import SimExecutor
from dovetail.core.journal import Header, Observer, TaskGraphRecord, Writer
from dovetail.core.metrics import Figures, Metrics, recount
from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.pipeline.explain import curves_of
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.words import WORDS

DATA_HOST = "data host"
_SHAPE = "microbatch"


class Station(Struct, frozen=True):
    """Where a microbatch passes: a stage or a link, with the seconds it takes there and the devices that take turns."""

    name: str
    seconds: float
    type: str
    devices: list[str]


class Route(Struct, frozen=True):
    """The places that a microbatch visits, stages and links in turn; links to a data host at the ends if it has any.

    A link has as many lanes as the smaller of the stages at its ends has replicas.
    """

    places: list[Station]

    @classmethod
    def of(cls, plan: Plan) -> Route:
        places = []
        if plan.enter_s:
            places.append(_link(DATA_HOST, plan.stages[0].host, plan.enter_s, 1))
        for x, stage in enumerate(plan.stages):
            hosts = [stage.host, *stage.replicas]
            places.append(Station(" + ".join(hosts), stage.compute_s * len(hosts), stage.type, hosts))
            if x + 1 < len(plan.stages):
                following = plan.stages[x + 1]
                lanes = min(len(hosts), 1 + len(following.replicas))
                places.append(_link(stage.host, following.host, stage.send_s * lanes, lanes))
            elif stage.send_s:
                places.append(_link(stage.host, DATA_HOST, stage.send_s, 1))
        return cls(places)

    @property
    def devices(self) -> list[str]:
        """Names of the pool's devices."""
        return [device for place in self.places for device in place.devices]

    @property
    def lanes(self) -> list[list[int]]:
        """For each place, the pool's devices that take turns at it."""
        ends = list(accumulate(len(place.devices) for place in self.places))
        return [list(range(a, b)) for a, b in zip([0, *ends], ends, strict=False)]

    @property
    def pool(self) -> Pool:
        kinds = [place.type for place in self.places for _ in place.devices]
        return Pool(tuple(Device(i, kind) for i, kind in enumerate(kinds)), {kind: DeviceType(kind) for kind in kinds})

    @property
    def shape(self) -> TaskGraph:
        names = [place.name for place in self.places]
        return TaskGraph(_SHAPE, [Task(name, name) for name in names], list(pairwise(names)))

    def predicted_s(self, microbatches: int) -> float:
        """The makespan by formula: the latency of one, and what the others add at most.

        A place adds its seconds for every round of its devices; of several places, the mix that adds most counts.
        Without replicas that is the bottleneck for each further microbatch.
        """
        latency_s = sum(place.seconds for place in self.places)
        rounds = {len(place.devices) for place in self.places}
        slowest = {n: max(place.seconds for place in self.places if len(place.devices) == n) for n in rounds}
        if rounds == {1}:
            return latency_s + (microbatches - 1) * slowest[1]
        added_s = [0.0]
        for n in range(1, microbatches):
            added_s.append(max([added_s[-1], *(added_s[n - r] + s for r, s in slowest.items() if r <= n)]))
        return latency_s + added_s[-1]


def _link(source: str, target: str, seconds: float, lanes: int) -> Station:
    name = f"{source} to {target}"
    return Station(name, seconds, "link", [name] if lanes == 1 else [f"{name} ({n + 1})" for n in range(lanes)])


class PipelineScheduler:
    """First in, first out everywhere; devices of a place take turns: microbatch n is for device n modulo their number.

    Each replica of a stage has so many buffers for what it has received, and so many for what it has to send. Nothing
    starts before the buffer that it fills has room.
    """

    def __init__(self, route: Route, buffers: int) -> None:
        self._route = route
        self._lanes = route.lanes
        self._buffers = buffers
        self._index = {place.name: i for i, place in enumerate(route.places)}
        self._waiting: list[deque[tuple[str, float]]] = [deque() for _ in route.places]
        self._busy = [False] * len(route.devices)
        self._began = [0] * len(route.places)  # how many microbatches have started there
        # The buffers in front of a place belong to the stage before or after it, whichever of the two is no link.
        self._replicas = [
            len(place.devices if place.type != "link" else route.places[i - 1].devices)
            for i, place in enumerate(route.places)
        ]

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stimulus in stimuli:
            if isinstance(stimulus, Arrived):
                self._waiting[0].append((stimulus.job, now))
            elif isinstance(stimulus, Finished):
                out += self._end(stimulus, now)
        for i in reversed(range(len(self._waiting))):  # who takes from a buffer goes before who fills it
            while (device := self._free(i)) is not None:
                work, ready_s = self._waiting[i].popleft()
                self._busy[device] = True
                self._began[i] += 1
                place = self._route.places[i]
                out.append(
                    Start(work, place.name, place.name, (device,), ready_s, place.seconds, "first in, first out")
                )
        return out

    def _end(self, finished: Finished, now: float) -> list[Instruction]:
        i = self._index[finished.task]
        lanes = self._lanes[i]
        number = self._began[i] - sum(
            self._busy[device] for device in lanes
        )  # all take equally long, so the oldest ends
        self._busy[lanes[number % len(lanes)]] = False
        if i + 1 == len(self._waiting):
            return [Complete(finished.job)]
        self._waiting[i + 1].append((finished.job, now))
        return []

    def _free(self, i: int) -> int | None:
        """The device that takes the next microbatch at a place, if there is one and everything is free."""
        if not self._waiting[i]:
            return None
        device = self._lanes[i][self._began[i] % len(self._lanes[i])]
        if self._busy[device]:
            return None
        if i + 1 == len(self._waiting):
            return device
        # What is on its way to the next place is consecutive: a replica's share of it is every so-manieth.
        on_its_way = self._began[i] - self._began[i + 1]
        return device if on_its_way < self._buffers * self._replicas[i + 1] else None

    def close(self, now: float) -> list[Instruction]:
        return []


class SimulationResult(Struct):
    """What the simulation gives beside what the formula predicts."""

    microbatches: int
    makespan_s: float
    predicted_s: float
    throughput_items_s: float
    figures: Figures
    steps: int


def run(plan: Plan, microbatches: int, buffers: int = 1, observers: Sequence[Observer] = ()) -> SimulationResult:
    """Send microbatches through a plan, all ready at the start."""
    if microbatches < 1 or buffers < 1:
        raise InputError(f"expected at least 1 microbatch and 1 buffer, found {microbatches} and {buffers}")
    route = Route.of(plan)
    shapes = {_SHAPE: route.shape}
    sizes = tuple(place.seconds for place in route.places)
    arrivals = [(0.0, Arrived(f"microbatch {n + 1}", _SHAPE, sizes)) for n in range(microbatches)]
    metrics = Metrics(route.pool)
    scheduler = PipelineScheduler(route, buffers)
    steps, _ = simulate(scheduler, route.pool, shapes, arrivals, SimExecutor(), [metrics, *observers])
    figures = metrics.figures()
    items = microbatches * plan.batch_size
    pace = items / figures.makespan_s if figures.makespan_s else 0.0
    return SimulationResult(microbatches, figures.makespan_s, route.predicted_s(microbatches), pace, figures, steps)


def header(plan: Plan, microbatches: int, buffers: int) -> Header:
    """The first line of the simulation's journal."""
    route = Route.of(plan)
    options = {"microbatches": microbatches, "buffers": buffers}
    return Header(
        level="pipeline",
        words=WORDS,
        policy=plan.method,
        options=options,
        pool=route.pool,
        graphs=(TaskGraphRecord.of(route.shape),),
        facts={
            "model": plan.model,
            "devices": route.devices,
            "lanes": {place.name: lanes for place, lanes in zip(route.places, route.lanes, strict=True)},
            "bound_makespan_s": route.predicted_s(microbatches),
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
