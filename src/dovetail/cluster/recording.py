"""A run and its journal: the header, what is written of every round, and the summary at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from dovetail.cluster.bounds import fastest, least_makespan_s
from dovetail.cluster.checkpoint import load, renewed, save
from dovetail.cluster.compat import OldClock
from dovetail.cluster.devices import Devices
from dovetail.cluster.ideal import Ideal
from dovetail.cluster.metrics import Figures, Metrics
from dovetail.cluster.problem import Allocation, Policy, Problem
from dovetail.cluster.records import WHY
from dovetail.cluster.rules import GAVEL, Rules
from dovetail.cluster.setup import Setup
from dovetail.cluster.simulation import Simulation
from dovetail.core.charts import Chart, Series, as_fact
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.resources import Device, DeviceType, Pool

Mode = Literal["changes", "summary"]


class Facts(Struct, kw_only=True):
    """What the header says beyond what all levels share: enough to check every lease."""

    types: list[str]
    counts: list[int]
    per_server: list[int]
    kinds: list[tuple[str, int]]
    alone: list[list[float]]
    spread: list[list[float]]
    pairs: list[list[list[float]]] | None = None
    restart_s: float = 0.0
    why: list[str] = field(default_factory=lambda: list(WHY))  # reasons of leases, by their numbers in the records
    window: tuple[int, int] | None = None
    mode: Mode = "changes"
    bound_makespan_s: float = 0.0
    fastest: list[float] | None = None  # by kind: the most steps per second that a job can have


def facts_of(header: Header) -> Facts:
    if header.level != "cluster":
        raise InputError(f"expected the journal of a cluster run, found one of level {header.level!r}")
    return msgspec.convert(header.facts, Facts)


def metrics_for(facts: Facts) -> Metrics:
    fastest = None if facts.fastest is None else np.array(facts.fastest)
    return Metrics(
        tuple(facts.types),
        np.array(facts.counts),
        facts.kinds,
        np.array(facts.alone),
        facts.window,
        fastest=fastest,
    )


def summary(metrics: Metrics) -> dict[str, Any]:
    """The figures that the journal's last line claims."""
    found = metrics.figures()
    return {name: getattr(found, name) for name in found.__struct_fields__}


def charts(metrics: Metrics) -> list[Chart]:
    """How fairly jobs were treated, as a distribution for reports; nothing if no job was completed."""
    rho = metrics.rho()
    if not len(rho):
        return []
    shares = np.linspace(0, 1, 101)
    points = list(zip(np.quantile(rho, shares).tolist(), (100 * shares).tolist(), strict=True))
    rho_axis, wide = "rho: completion time over that with equal shares", bool(rho.max() > 8 * rho.min())
    return [Chart("Finish-time fairness", rho_axis, "jobs with at most that, %", [Series("jobs", points)], wide)]


class Outcome(Struct, kw_only=True):
    """What a simulation gave, and what it took."""

    figures: Figures
    rounds: int
    allocations: int
    policy_s: float  # CPU seconds that the policy took
    cpu_s: float
    bound_makespan_s: float
    completion_s: dict[int, float]


class Timed:
    """A policy and the CPU time that it takes; what goes wrong in it is told by its name."""

    def __init__(self, policy: Policy, name: str = "") -> None:
        self._policy = policy
        self._name = name or type(policy).__name__
        self.agnostic, self.packs, self.strict = policy.agnostic, policy.packs, policy.strict
        self.every_round = getattr(policy, "every_round", False)
        self.elastic = getattr(policy, "elastic", False)
        self.cpu_s = 0.0

    def allocate(self, problem: Problem) -> Allocation:
        before = process_time()
        try:
            found = self._policy.allocate(problem)
        except DovetailError:
            raise
        except Exception as error:
            raise DovetailError(f"policy {self._name}: allocate failed: {type(error).__name__}: {error}") from error
        self.cpu_s += process_time() - before
        return found


class _Brief:
    """Passes on only what a summary holds."""

    def __init__(self, writer: Observer) -> None:
        self._writer = writer

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        kept = [event for event in events if not (isinstance(event, Rows) and event.of in ("started", "stopped"))]
        if kept:
            self._writer.step(n, t, kept)


def header(setup: Setup, policy: Policy, name: str, options: dict[str, Any], rules: Rules, mode: Mode) -> Header:
    """The first line of the journal."""
    found = setup.throughputs
    facts = Facts(
        types=list(setup.types),
        counts=setup.counts.tolist(),
        per_server=setup.per_server.tolist(),
        kinds=found.kinds,
        alone=setup.rates().tolist(),
        spread=found.spread.tolist(),
        pairs=found.pairs.tolist() if policy.packs and found.pairs is not None else None,
        restart_s=rules.restart_s,
        window=setup.window,
        mode=mode,
        bound_makespan_s=least_makespan_s(setup, policy),
        fastest=fastest(setup, policy)[0].tolist(),
    )
    placed = Devices(setup.counts.tolist(), setup.per_server.tolist())
    places = zip(placed.type_of, placed.server_of, strict=True)
    pool = Pool(
        tuple(Device(i, setup.types[j], server) for i, (j, server) in enumerate(places)),
        {kind: DeviceType(kind) for kind in setup.types},
    )
    return Header(
        level="cluster",
        policy=name,
        options=options | {"rules": msgspec.to_builtins(rules)},
        seed=setup.seed,
        pool=pool,
        facts=msgspec.to_builtins(facts),
    )


class Saving(Struct, frozen=True):
    """Where to keep a checkpoint, how often, and whether to go on from it if it is there."""

    path: Path
    every_rounds: int = 1000
    resume: bool = False


def run(
    setup: Setup,
    policy: Policy,
    rules: Rules | None = None,
    *,
    name: str = "",
    options: dict[str, Any] | None = None,
    journal: Path | None = None,
    mode: Mode = "changes",
    observers: Sequence[Observer] = (),
    compat: bool = False,
    ideal: bool = False,
    saving: Saving | None = None,
) -> Outcome:
    """Simulate, and write the journal if a path is given. With `compat`, the older simulator's clock and accounts; with
    `ideal`, everybody gets exactly the share that the policy allots, at every moment."""
    if (compat or ideal) and (journal is not None or saving is not None):
        raise InputError("a run by the older rules, or an ideal one, has no leases: no journal and no checkpoint")
    metrics = Metrics(
        setup.types,
        setup.counts,
        setup.throughputs.kinds,
        setup.rates(),
        setup.window,
        charge_pairs_fully=compat,
        fastest=fastest(setup, policy)[0],
    )
    timed = Timed(policy, name)
    began = process_time()
    if ideal:
        fluid = Ideal(setup, timed, [metrics, *observers])
        fluid.run()
        rounds, allocations = 0, fluid.allocations
    elif compat:
        old = OldClock(setup, timed, rules if rules is not None else GAVEL, [metrics, *observers])
        old.run()
        rounds, allocations = old.rounds, old.mechanism.allocations
    else:
        rules = rules if rules is not None else Rules()
        first = header(setup, policy, name, options or {}, rules, mode) if journal or saving else None
        simulation, size = Simulation(setup, timed, rules), None
        if saving is not None and saving.resume and saving.path.exists():
            simulation, metrics, size = load(saving.path, msgspec.json.encode(first), setup, policy)
        _simulate(simulation, metrics, first, journal, size, mode, observers, saving)
        rounds, allocations = simulation.rounds, simulation.mechanism.allocations
        assert isinstance(simulation.mechanism.policy, Timed)
        timed = simulation.mechanism.policy
    return Outcome(
        figures=metrics.figures(),
        rounds=rounds,
        allocations=allocations,
        policy_s=timed.cpu_s,
        cpu_s=process_time() - began,
        bound_makespan_s=least_makespan_s(setup, policy),
        completion_s=metrics.completion_times(),
    )


def _simulate(
    simulation: Simulation,
    metrics: Metrics,
    first: Header | None,
    journal: Path | None,
    size: int | None,
    mode: Mode,
    observers: Sequence[Observer],
    saving: Saving | None,
) -> None:
    """Run to the end; the journal is new, or goes on behind its first `size` bytes."""
    identity = msgspec.json.encode(first)
    with ExitStack() as stack:
        writer = None
        watching: list[Observer] = [metrics, *observers]
        if journal is not None:
            assert first is not None
            writer = stack.enter_context(Writer(journal, first) if size is None else Writer.reopen(journal, size))
            watching.append(writer if mode == "changes" else _Brief(writer))
        simulation.watched_by(watching)

        def pause() -> None:
            if saving is not None and simulation.rounds and simulation.rounds % saving.every_rounds == 0:
                save(saving.path, simulation, metrics, identity, writer.written() if writer else 0)
                simulation.mechanism.policy = renewed(simulation.mechanism.policy)

        try:
            simulation.run(pause)
        except Exception:
            if journal is not None and saving is None:
                journal.unlink(missing_ok=True)  # half a journal is none; with a checkpoint, it goes on
            raise
        if writer is not None:
            writer.end(simulation.steps + 1, simulation.now, summary(metrics) | as_fact(charts(metrics)))
