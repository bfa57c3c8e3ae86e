"""What a live run came to, counted from the records of its journal while they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, inf
from statistics import fmean, median
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core.events import Arrived, Complete, Decided, Finished, Observed, Start
from dovetail.core.rates import Link, Rate, RateTable, Switch
from dovetail.pipeline.hardware import BUSY, Carrier
from dovetail.pipeline.inputs.problem import MIB
from dovetail.pipeline.live.generation import DecodingFigures, TokenStream
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.route import DATA_HOST, Route

_WARM_UP = 2  # microbatches of a stage that medians leave out


class StageResult(Struct, frozen=True, kw_only=True):
    """A stage as planned and as measured: medians for one microbatch, and how long it was busy of all the time."""

    host: str
    replicas: list[str]
    layers: tuple[int, int]
    predicted_compute_s: float
    compute_s: float | None
    predicted_send_s: float
    send_s: float | None
    send_bits: int
    utilisation: float


class PlanChange(Struct, frozen=True):
    """A new plan during the run."""

    at_s: float  # since the first microbatch was fed
    why: str


class LiveResult(Struct, kw_only=True):
    """What a run came to. The steady rate leaves out filling and draining, and is that of the longest-lived plan. Of
    generation, items are tokens.

    `hardware` says what carried each host. The difference from the prediction is given only if every host ran on what
    the plan was made for, and nothing speaks against judging it: `cannot_be_judged` says what does.
    """

    microbatches: int
    completed: int
    items: int
    elapsed_s: float
    throughput_items_s: float
    steady_items_s: float | None
    predicted_items_s: float | None  # None: the plan was not made for generation, and that ran
    difference_percent: float | None
    hardware: dict[str, str]
    as_planned: bool
    cannot_be_judged: str
    plans: int
    changes: list[PlanChange]
    stages: list[StageResult]
    rates: RateTable = field(default_factory=RateTable)  # what other levels may read of it
    outputs: list[Any] = field(default_factory=list)  # only if they were asked for
    generation: DecodingFigures | None = None


class _Passes(Struct):
    """A station under one plan."""

    seconds: list[float] = field(default_factory=list)
    bits: int = 0
    sizes: list[int] = field(default_factory=list)


class ResultCounter:
    """An observer of the journal's records, in whatever order they are written."""

    def __init__(self) -> None:
        self.first_s, self.last_s, self.completed = inf, 0.0, 0
        self.arrivals: dict[int, list[float]] = {}  # when microbatches came out, by plan
        self.changes: list[tuple[float, str]] = []
        self.launched_s: float | None = None
        self.ready_s: dict[int, float] = {}  # when each plan was ready to be fed
        self._jobs: dict[str, int] = {}
        self._begun: dict[tuple[str, str], tuple[float, int]] = {}
        self._busy: dict[int, float] = {}
        self._passes: dict[tuple[int, str], _Passes] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        sent: Observed | None = None
        for event in events:
            if isinstance(event, Arrived):
                self.first_s = min(self.first_s, t)
                self._jobs[event.job] = event.facts["plan"]
            elif isinstance(event, Start):
                self._begun[event.job, event.task] = (t, event.devices[0])
            elif isinstance(event, Observed) and event.what == "transfer":
                sent = event
            elif isinstance(event, Finished):
                self._finish(t, event, sent)
            elif isinstance(event, Complete):
                self.last_s = max(self.last_s, t)
                self.completed += 1
                self.arrivals.setdefault(self._jobs.pop(event.job), []).append(t)
            elif isinstance(event, Decided):
                self._decided(t, event)

    def _finish(self, t: float, event: Finished, sent: Observed | None) -> None:
        start_s, device = self._begun.pop((event.job, event.task))
        self._busy[device] = self._busy.get(device, 0.0) + t - start_s
        passes = self._passes.setdefault((self._jobs.get(event.job, 0), event.task), _Passes())
        passes.seconds.append(t - start_s)
        if sent is not None:
            passes.bits = sent.facts["bits"]
            passes.sizes.append(sent.facts["bytes"])

    def _decided(self, t: float, event: Decided) -> None:
        if event.what == "launch" and self.launched_s is None:
            self.launched_s = t
        elif event.what == "feed":
            self.ready_s[event.facts["plan"]] = t
        elif event.what == "halt":
            self.changes.append((t, event.why))

    def rates(
        self, plans: dict[int, Plan], carried: Mapping[str, Carrier], per_s: dict[int, float], unit: str
    ) -> RateTable:
        """What was measured, for other levels: the pipeline's rate in a unit, its links, and what it takes to start it.

        A chain of stages is one device, called by what really carried them.
        """
        table = RateTable()
        halts = [at_s for at_s, _ in self.changes]
        for generation, plan in plans.items():
            ready_s = self.ready_s.get(generation)
            if ready_s is None:
                continue
            types = {host: c.device if c.how == "mapped" else c.type for host, c in carried.items()}
            chain = msgspec.structs.replace(
                plan, stages=[msgspec.structs.replace(s, type=types.get(s.host, s.type)) for s in plan.stages]
            ).chain
            began_s = self.launched_s if generation == 1 else halts[generation - 2]
            previous = "" if generation == 1 else plan.model
            switches = [] if began_s is None else [Switch(plan.model, ready_s - began_s, previous, chain, "measured")]
            pace = per_s.get(generation)
            rates = [Rate(plan.model, chain, pace, source="measured", unit=unit)] if pace else []
            table |= RateTable(rates, switches, self._links(generation, plan))
        return table

    def _links(self, generation: int, plan: Plan) -> Iterator[Link]:
        hosts = [DATA_HOST, *(stage.host for stage in plan.stages), DATA_HOST]
        for (sender, to), station in zip(pairwise(hosts), Route.connected(plan, {}).stations[::2], strict=True):
            passes = self._passes.get((generation, station.name))
            if passes is not None and (seconds := median(passes.seconds)) > 0 and (size := median(passes.sizes)) > 0:
                yield Link(sender, to, size / seconds / MIB, source="measured")

    def stages(self, generation: int, plan: Plan, ids: dict[str, int]) -> list[StageResult]:
        """The stages of a plan; `ids` are the devices' numbers by name."""
        stations = Route.connected(plan, {}).stations
        elapsed_s = self.last_s - self.first_s
        found = []
        for x, stage in enumerate(plan.stages):
            computed = self._passes.get((generation, stations[2 * x + 1].name), _Passes())
            link = stations[2 * x + 2]
            sent = self._passes.get((generation, link.name), _Passes())
            busy_s = [self._busy.get(ids[host], 0.0) for host in stage.hosts]
            found.append(
                StageResult(
                    host=stage.host,
                    replicas=stage.replicas,
                    layers=stage.layers,
                    predicted_compute_s=stations[2 * x + 1].seconds,
                    compute_s=_typical(computed.seconds),
                    predicted_send_s=link.seconds,
                    send_s=_typical(sent.seconds),
                    send_bits=sent.bits,
                    utilisation=fmean(busy_s) / elapsed_s if elapsed_s > 0 else 0.0,
                )
            )
        return found


def _typical(seconds: list[float]) -> float | None:
    later = seconds[_WARM_UP:] or seconds
    return median(later) if later else None


def evaluate(
    counter: ResultCounter,
    plans: dict[int, Plan],
    ids: dict[str, int],
    carried: dict[str, Carrier],
    total: int,
    items: int,
    busy: float = 0.0,
    tokens: TokenStream | None = None,
) -> LiveResult:
    """The figures of a run; `plans` are those that were carried out, by generation, the first one being asked for.
    `busy` is what other programs took of all cores meanwhile; `tokens` is what was generated, if that was asked for."""
    arrivals = counter.arrivals
    main = max(plans, key=lambda generation: len(arrivals.get(generation, ())))
    used = plans[main]
    elapsed_s = max(counter.last_s - counter.first_s, 0.0)
    steady = _steady(arrivals.get(main, []), len(used.stages) + 1, used.batch_size)
    predicted: float | None = used.throughput_items_s
    generated = None if tokens is None else tokens.figures(main, plans[1], used)
    if generated is not None:  # microbatches of prompts give a token, of lanes one of each sequence
        steady, predicted = generated.steady_tokens_s, generated.predicted_tokens_s
    as_planned = all(carried[host].how == "matched" for host in used.hosts)
    why_not = _not_judged(used, busy)
    judged = as_planned and not why_not
    return LiveResult(
        microbatches=total,
        completed=counter.completed,
        items=items,
        elapsed_s=elapsed_s,
        throughput_items_s=items / elapsed_s if elapsed_s else 0.0,
        steady_items_s=steady,
        predicted_items_s=predicted,
        difference_percent=100 * (steady / predicted - 1) if steady and predicted and judged else None,
        hardware={host: carried[host].hardware for host in used.hosts},
        as_planned=as_planned,
        cannot_be_judged=why_not,
        plans=len(plans),
        changes=[PlanChange(at_s - min(counter.first_s, at_s), why) for at_s, why in counter.changes],
        stages=counter.stages(main, used, ids),
        rates=counter.rates(
            plans, carried, {main: steady} if steady else {}, "items/s" if tokens is None else "tokens/s"
        ),
        generation=generated,
    )


def _not_judged(plan: Plan, busy: float) -> str:
    """Why the difference between plan and run says nothing about the plan; empty if it does."""
    classes = plan.problem.classes if plan.problem else []
    for device in classes:
        if device.busy and set(device.hosts) & set(plan.hosts):
            return f"other programs took {100 * device.busy:.0f} % of the time when {device.name} was profiled"
    return f"other programs took {100 * busy:.0f} % of all cores during the run" if busy > BUSY else ""


def _steady(arrivals_s: list[float], fill: int, batch_size: int) -> float | None:
    """Items per second after the first few microbatches.

    >>> _steady([9.0, 9.5, 10.0, 11.0, 12.0], 2, 8)
    8.0
    """
    fill = min(fill, ceil(len(arrivals_s) / 2))
    if len(arrivals_s) - fill < 2:
        return None
    span_s = arrivals_s[-1] - arrivals_s[fill]
    return (len(arrivals_s) - 1 - fill) * batch_size / span_s if span_s > 0 else None
