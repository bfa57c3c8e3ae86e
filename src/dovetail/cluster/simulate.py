"""A run and its journal: the header, what is written of every round, and the summary at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.cluster.bounds import fastest, least_makespan_s
from dovetail.cluster.checkpoint import load, refuse_unsavable, save
from dovetail.cluster.compat import GAVEL
from dovetail.cluster.compat.gavel import GavelSimulation
from dovetail.cluster.compat.ideal import IdealSimulation
from dovetail.cluster.header import header
from dovetail.cluster.inputs.choices import Clock, JournalMode
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.metrics import ClusterMetrics, ClusterResult, closing
from dovetail.cluster.policies.base import Allocation, Policy, Problem, by_older_rules
from dovetail.cluster.rounding.details import RunDetails
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.virtual_time import RoundsInVirtualTime, VirtualTime
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Header, Observer, Writer


class TimedPolicy:
    """A policy and the CPU time that it takes; what goes wrong in it is told by its name."""

    def __init__(self, policy: Policy, name: str = "") -> None:
        self.policy = policy
        self.name = name or type(policy).__name__
        self.agnostic, self.packs, self.strict = policy.agnostic, policy.packs, policy.strict
        self.every_round = getattr(policy, "every_round", False)
        self.wide_as_others = getattr(policy, "wide_as_others", False)
        self.elastic = getattr(policy, "elastic", False)
        self.cpu_s = 0.0

    def allocate(self, problem: Problem) -> Allocation:
        before = process_time()
        try:
            found = self.policy.allocate(problem)
        except DovetailError:
            raise
        except (Exception, SystemExit) as error:
            raise DovetailError(f"policy {self.name}: allocate failed: {type(error).__name__}: {error}") from error
        self.cpu_s += process_time() - before
        return found


class _SummaryOnly:
    """Passes on only what a summary holds."""

    def __init__(self, writer: Observer) -> None:
        self._writer = writer

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        kept = [event for event in events if not (isinstance(event, Rows) and event.of in ("started", "stopped"))]
        if kept:
            self._writer.step(n, t, kept)


class Checkpointing(Struct, frozen=True):
    """Where to keep a checkpoint, how often, and whether to go on from it if it is there."""

    path: Path
    every_rounds: int = 1000
    resume: bool = False


def run(
    setup: ClusterSetup,
    policy: Policy,
    rules: RoundRules | None = None,
    *,
    name: str = "",
    options: dict[str, Any] | None = None,
    journal: Path | None = None,
    mode: JournalMode = "changes",
    observers: Sequence[Observer] = (),
    compat: bool = False,
    ideal: bool = False,
    saving: Checkpointing | None = None,
) -> ClusterResult:
    """Simulate, and write the journal if a path is given. With `compat`, the older simulator's clock and accounts; with
    `ideal`, everybody gets exactly the share that the policy allots, at every moment. Neither has leases to record, nor
    a state that could be saved."""
    clock: Clock = "ideal" if ideal else "gavel" if compat else "rounds"
    if saving is not None and clock != "rounds":
        raise InputError(
            "a run by the older rules, or an ideal one, keeps no checkpoint: it has no rounds to go on from"
        )
    rules = (GAVEL if compat else RoundRules()) if rules is None else rules
    detailed = journal is not None and clock == "rounds"
    metrics = ClusterMetrics(
        setup.types,
        setup.counts,
        setup.throughputs.kinds,
        setup.rates(),
        setup.window,
        charge_pairs_fully=compat,
        fastest=fastest(setup, policy, anywhere=compat)[0],
        details=RunDetails(setup.types, list(setup.entities), setup.window, rules.restart_s) if detailed else None,
        from_first_arrival=not compat,
    )
    if compat:
        policy = by_older_rules(policy)
    if saving is not None:
        refuse_unsavable(policy, name or type(policy).__name__)
    timed = TimedPolicy(policy, name)
    began = process_time()
    first = header(setup, policy, name, options or {}, rules, mode, clock) if journal or saving else None
    simulation: VirtualTime = (
        IdealSimulation(setup, timed)
        if ideal
        else GavelSimulation(setup, timed, rules)
        if compat
        else RoundsInVirtualTime(setup, timed, rules)
    )
    size = None
    if saving is not None and saving.resume and saving.path.exists():
        simulation, metrics, size = load(saving.path, msgspec.json.encode(first), policy)
        if journal is not None:
            _expect(journal, msgspec.json.encode(first), size, saving.path)
    _simulate(simulation, setup, metrics, first, journal, size, observers, saving)
    used = simulation.mechanism.policy  # the one that was saved last
    assert isinstance(used, TimedPolicy)
    return ClusterResult(
        figures=metrics.figures(),
        rounds=simulation.rounds_begun,
        allocations=simulation.mechanism.allocations,
        policy_s=used.cpu_s,
        cpu_s=process_time() - began,
        bound_makespan_s=least_makespan_s(setup, policy, anywhere=compat),
        completion_s=metrics.completion_times(),
        cost_by_type=metrics.cost_by_type(),
    )


def _expect(journal: Path, header: bytes, size: int, checkpoint: Path) -> None:
    """Refuse a journal that is not the one that a checkpoint goes on with: what it has beyond that would be cut off."""
    begins = b""
    if journal.is_file():
        with journal.open("rb") as file:
            begins = file.read(len(header) + 1)
    if not size or begins != header + b"\n":
        what = f"the journal whose first {size} bytes it knows" if size else "no journal: it was saved without one"
        raise InputError(f"{journal}: {checkpoint} goes on with {what}")


def _simulate(
    simulation: VirtualTime,
    setup: ClusterSetup,
    metrics: ClusterMetrics,
    first: Header | None,
    journal: Path | None,
    size: int | None,
    observers: Sequence[Observer],
    saving: Checkpointing | None,
) -> None:
    """Run to the end; the journal is new, or goes on behind its first `size` bytes."""
    identity = msgspec.json.encode(first)
    with ExitStack() as stack:
        writer = None
        watching: list[Observer] = [metrics, *observers]
        simulation.take_up(setup, watching)  # before the journal is touched: a checkpoint of other jobs is refused
        if journal is not None:
            assert first is not None
            writer = stack.enter_context(Writer(journal, first) if size is None else Writer.reopen(journal, size))
            watching.append(writer if first.facts["mode"] == "changes" else _SummaryOnly(writer))

        def pause() -> None:
            begun, mechanism = simulation.rounds_begun, simulation.mechanism
            if saving is not None and begun and begun % saving.every_rounds == 0:
                assert isinstance(mechanism.policy, TimedPolicy)
                refuse_unsavable(mechanism.policy.policy, mechanism.policy.name)
                simulation.saved = True
                save(saving.path, simulation, metrics, identity, writer.written() if writer else 0)

        try:
            simulation.run(pause)
        except Exception:
            if journal is not None and saving is None:
                journal.unlink(missing_ok=True)  # a journal of an error is none; who interrupts a run keeps what it has
            raise
        if writer is not None:
            writer.end(simulation.steps + 1, simulation.now, closing(metrics))
