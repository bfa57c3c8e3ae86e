"""What is simulated: accelerators, how fast kinds of jobs run on them, prices, failures, and the jobs to come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol

import msgspec
import numpy as np

from dovetail.cluster.goodput.application import Application
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.core.errors import InputError


class PriceSource(Protocol):
    """Prices per accelerator and hour, over time."""

    def price_at(self, t: float) -> Floats: ...
    def next_change(self, t: float) -> float: ...


@dataclass(slots=True, frozen=True)
class Outage:
    """Devices that are down for a while."""

    at_s: float
    until_s: float
    devices: tuple[int, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class AdaptiveKinds:
    """By kind, which application it is (-1: none) and the total batch that its jobs ask for."""

    applications: tuple[Application, ...]
    application: Ints
    batch: Ints

    def with_restarts(self, usual_s: float) -> AdaptiveKinds:
        """Applications that do not say what a restart costs have the usual one."""
        priced = [
            msgspec.structs.replace(of, restart_s=usual_s) if of.restart_s is None else of for of in self.applications
        ]
        return replace(self, applications=tuple(priced))


@dataclass(slots=True, kw_only=True)
class ClusterSetup:
    """A cluster and its work. `throughputs` are for the cluster's types in the cluster's order.

    With `window` (first, end) only jobs with these ids are measured, and the run ends when they are done.
    """

    counts: Ints
    per_server: Ints
    throughputs: Throughputs
    prices: PriceSource
    jobs: Iterable[Job]
    window: tuple[int, int] | None = None
    entities: dict[str, float] = field(default_factory=dict)  # weight of each entity
    outages: Iterable[Outage] = ()  # in order of time, maybe without end, the same each time
    restarts: Floats | None = None  # seconds by kind and type; nan: what the rules say
    restarts_ahead: Floats | None = None  # of starts that were planned ahead; nan: what other starts cost
    adaptive: AdaptiveKinds | None = None  # jobs whose rate depends on batch, placement and progress
    phased: bool = False  # whether jobs come with lists of phases
    seed: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        return self.throughputs.types

    def accelerators(self) -> dict[str, int]:
        """How many there are of each type."""
        return dict(zip(self.types, self.counts.tolist(), strict=True))

    @property
    def in_phases(self) -> bool:
        """Whether the rate of jobs may change with their progress."""
        return self.adaptive is not None or self.phased

    def restarts_s(self, usual_s: float) -> Floats | None:
        """Seconds of a restart by whether it was planned ahead (0, 1), kind and type; None if all are the usual."""
        given, ahead = self.restarts, self.restarts_ahead
        if given is None and ahead is None:
            return None
        usual = np.full(self.throughputs.alone.shape, usual_s)
        late_s = usual if given is None else np.where(np.isnan(given), usual, given)
        return np.stack((late_s, late_s if ahead is None else np.where(np.isnan(ahead), late_s, ahead)))

    def rates(self) -> Floats:
        """Steps per second of kinds on types; a job wider than a server is always spread over several."""
        widths = np.array([width for _, width in self.throughputs.kinds])
        spread = widths[:, None] > self.per_server[None, :]
        return np.where(spread, self.throughputs.spread, self.throughputs.alone)


def begins_s(jobs: Iterable[Job]) -> float:
    """The first arrival, from which all is counted; jobs without end begin at 0 s."""
    return min(map(attrgetter("arrival_s"), jobs), default=0.0) if isinstance(jobs, list) else 0.0


class JobKinds:
    """Looks kinds and entities of arriving jobs up."""

    def __init__(self, setup: ClusterSetup) -> None:
        self._kinds = setup.throughputs.index()
        self._entities = {name: i for i, name in enumerate(setup.entities)}
        self._source = setup.throughputs

    def kind(self, job: Job) -> int:
        found = self._kinds.get((job.model, job.width))
        if found is None:
            widths = sorted(width for model, width in self._kinds if model == job.model)
            known = f"its widths are {widths}" if widths else "there is no such model"
            raise InputError(f"job {job.id}: no throughput for {job.model!r} on {job.width} accelerators ({known})")
        return found

    def phases(self, job: Job) -> list[tuple[float, int]]:
        """What is done when each phase of a job ends, and what it runs as until then."""
        return [(end, self.kind(replace(job, model=model))) for end, model in job.phases]

    def entity(self, job: Job) -> int:
        if not self._entities:
            return 0
        if job.entity not in self._entities:
            raise InputError(f"job {job.id}: entity {job.entity!r} has no weight; known are {list(self._entities)}")
        return self._entities[job.entity]
