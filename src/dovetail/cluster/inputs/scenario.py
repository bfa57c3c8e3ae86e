"""What a simulation is made from, as commands name it: files and numbers in, a setup to run out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct, field

from dovetail.cluster.inputs.analytic import analytic
from dovetail.cluster.inputs.choices import CLOUDS, Widths
from dovetail.cluster.inputs.cluster_spec import ClusterSpec, parse_cluster
from dovetail.cluster.inputs.estimate import estimate
from dovetail.cluster.inputs.generate import GeneratedJobs
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.prices import Prices, constant, read_prices
from dovetail.cluster.inputs.setup import ClusterSetup, Outage
from dovetail.cluster.inputs.throughputs import (
    ThroughputsError,
    from_rates,
    overlaid,
    read_throughputs,
    restart_prices,
)
from dovetail.cluster.inputs.traces import read_trace
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Policy
from dovetail.core import registry
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.rates import RateTable

STATIC_JOBS = 40  # generated if nothing is said
CONTINUOUS_JOBS = 500
_FAILURES_UNTIL_S = 2 * 365 * 86400.0  # failures are drawn ahead, for two years of simulated time


class Scenario(Struct, frozen=True, kw_only=True):
    """A cluster and its work. The same scenario gives the same jobs, whatever policy they meet.

    Jobs come from `trace`, or are generated: `jobs` of them, or without end if there is a `window` of job ids to
    measure. `lam_s` is the mean time between arrivals, 0 for all at once.
    """

    cluster: str = "8:8:8"
    per_server: str = ""
    throughputs: Path | None = None  # None: the built-in model
    rates: Path | None = None  # a rate table: over the throughputs, or in the place of the built-in model
    trace: Path | None = None
    trace_format: str = ""
    widths: Widths | None = None
    lam_s: float = 0.0
    jobs: int | None = None
    window: tuple[int, int] | None = None
    multi_gpu: bool = False
    priorities: bool = False
    deadlines: bool = False
    duration_s: float | None = None
    steady_state: bool = False
    entities: dict[str, float] = field(default_factory=dict)  # weights
    prices: Path | None = None
    clouds: tuple[str, ...] = CLOUDS
    profiled: float = 1.0
    references: int | None = None
    seed: int = 0
    float32_pairs: bool = False

    def files(self) -> list[Path]:
        """The files it reads, for those who must not write over them or must know whether they have changed."""
        named = [self.throughputs, self.rates, self.trace, self.prices, Path(self.cluster)]
        return [path for path in named if path is not None and path.is_file()]


class LoadedScenario(Struct, kw_only=True):
    """A scenario that was read: what to run, whose pair rates policies believe in, and what a user should know."""

    setup: ClusterSetup
    believed: Throughputs | None = None
    notes: list[str] = field(default_factory=list)

    def policy(self, name: str, options: Mapping[str, str] | None = None) -> Policy:
        """A policy by name. One that packs sees the believed pair rates, not those that jobs really run at."""
        found = make(name, self.options(name, options))
        if found.packs and self.believed is not None:
            if self.believed.pairs is None:
                raise InputError("throughputs: expected pair rates to estimate from, found none")
            return LearnedRates(found, self.believed.pairs)
        return found

    def options(self, name: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """The options that a policy is made with: a policy that draws does so by the run's seed."""
        draws = name in registry.names("cluster") and "seed" in registry.options_of("cluster", name)
        return ({"seed": str(self.setup.seed)} if draws else {}) | dict(given or {})


def load(scenario: Scenario) -> LoadedScenario:
    """Read everything that a scenario names."""
    spec = parse_cluster(scenario.cluster, gpus_per_server=scenario.per_server).present()
    table = RateTable() if scenario.rates is None else RateTable.read(scenario.rates)
    known, notes = _throughputs(scenario, spec, table)
    jobs: Iterable[Job]
    if scenario.trace is not None:
        trace = read_trace(scenario.trace, known, format=scenario.trace_format, widths=scenario.widths)
        known = trace.throughputs or known
        jobs = trace.jobs
        notes += trace.notes + [f"left out: {count} x {what}" for what, count in trace.dropped.items()]
        _check_window(scenario, len(trace.jobs))
    else:
        jobs = generated(scenario, known, spec)
    rates = known.of_types(spec.types)
    prices = _prices(scenario, spec)
    if prices.missing:
        notes.append(f"no price is known for {', '.join(prices.missing)}: counted as 1 per hour")
    believed = None
    if scenario.profiled < 1 or scenario.references is not None:
        believed = estimate(
            rates, profiled=scenario.profiled, references=scenario.references, seed=scenario.seed
        ).throughputs
    setup = ClusterSetup(
        counts=np.array(spec.counts),
        per_server=np.array(spec.per_server),
        throughputs=rates,
        prices=prices,
        jobs=jobs,
        window=scenario.window,
        entities=_entities(scenario, jobs),
        outages=outages(spec, scenario.seed),
        restarts=restart_prices(table, rates.kinds, rates.types),
        seed=scenario.seed,
    )
    return LoadedScenario(setup=setup, believed=believed, notes=notes)


def generated(scenario: Scenario, known: Throughputs, spec: ClusterSpec) -> Iterable[Job]:
    """The jobs of a scenario without a trace: a list, unless they are without end."""
    jobs = scenario.jobs
    if jobs is None and scenario.lam_s == 0:
        jobs = scenario.window[1] - scenario.window[0] if scenario.window else STATIC_JOBS
    elif jobs is None and scenario.window is None:
        jobs = CONTINUOUS_JOBS
    if jobs is not None:
        _check_window(scenario, jobs)
    by_name = sorted(zip(spec.types, spec.counts, strict=True))
    made = GeneratedJobs(
        throughputs=known,
        lam_s=scenario.lam_s,
        seed=scenario.seed,
        jobs=jobs,
        multi_gpu=scenario.multi_gpu,
        priorities=scenario.priorities,
        deadlines=scenario.deadlines,
        duration_s=scenario.duration_s,
        prefill=[count for _, count in by_name] if scenario.steady_state else (),
        entities=tuple(scenario.entities),
    )
    return list(made) if jobs is not None else made


def _check_window(scenario: Scenario, jobs: int) -> None:
    if scenario.window is not None and not 0 <= scenario.window[0] < scenario.window[1] <= jobs:
        first, end = scenario.window
        raise InputError(f"window {first} to {end}: expected ids of the jobs, which are 0 to {jobs}")


def _throughputs(scenario: Scenario, spec: ClusterSpec, table: RateTable) -> tuple[Throughputs, list[str]]:
    if table.rates:
        return _from_table(scenario, spec, table), []
    if scenario.throughputs is None:
        note = "throughputs: the built-in model's estimates (--throughputs-file takes measured ones)"
        return analytic(spec.types), [note]
    return _covering(_from_file(scenario.throughputs, scenario), spec, scenario.throughputs), []


def _from_table(scenario: Scenario, spec: ClusterSpec, table: RateTable) -> Throughputs:
    """What the rate table says in absolute numbers, over what the file of throughputs says if there is one."""
    assert scenario.rates is not None
    absolute = RateTable(rate for rate in table.rates.values() if rate.unit)
    if not absolute:
        raise InputError(
            f"{scenario.rates}: its rates are relative; expected some with a unit, as steps/s "
            "(--throughputs-file takes relative ones)"
        )
    try:
        found = from_rates(absolute)
    except ThroughputsError as error:
        raise InputError(f"{scenario.rates}: {error}") from None
    if scenario.throughputs is not None:
        found = overlaid(_from_file(scenario.throughputs, scenario), found)
    return _covering(found, spec, scenario.rates)


def _covering(found: Throughputs, spec: ClusterSpec, path: Path) -> Throughputs:
    for name in spec.types:
        if name not in found.types:
            raise InputError(f"{path}: no throughputs for the type {name!r}{did_you_mean(name, found.types)}")
    return found


def _from_file(path: Path, scenario: Scenario) -> Throughputs:
    version = path.stat().st_mtime_ns if path.is_file() else 0
    return _read_throughputs(path, version, scenario.float32_pairs)


@lru_cache(maxsize=2)
def _read_throughputs(path: Path, version_ns: int, float32_pairs: bool) -> Throughputs:
    """Runs of one sweep share the file within a process, until it changes."""
    return read_throughputs(path, pairs_float32=float32_pairs)


def _prices(scenario: Scenario, spec: ClusterSpec) -> Prices:
    if scenario.prices is not None:
        return read_prices(scenario.prices, spec.types, scenario.clouds)
    return constant(spec.types, dict(zip(spec.types, spec.prices, strict=True)))


def _entities(scenario: Scenario, jobs: Iterable[Job]) -> dict[str, float]:
    """The weights of all entities: those given, and 1 for others that a trace names."""
    if scenario.trace is None:
        return scenario.entities
    named = dict.fromkeys(job.entity for job in jobs)
    if not scenario.entities and list(named) == [""]:
        return {}
    unknown = [name for name in scenario.entities if name not in named]
    if unknown:
        raise InputError(f"{scenario.trace}: no job is of the entity {unknown[0]!r}{did_you_mean(unknown[0], named)}")
    return {name: scenario.entities.get(name, 1.0) for name in named}


def outages(spec: ClusterSpec, seed: int) -> list[Outage]:
    """When servers fail and come back, drawn ahead from the means that the cluster's file gives.

    >>> outages(parse_cluster("a100=16"), seed=0)
    []
    """
    rng, found, first = Random(seed + 8), [], 0
    for at, name in enumerate(spec.types):
        for size in spec.servers(name):
            devices, now_s = tuple(range(first, first + size)), 0.0
            first += size
            while spec.failure_s[at] < inf:
                now_s += rng.expovariate(1 / spec.failure_s[at])
                back_s = now_s + (rng.expovariate(1 / spec.repair_s[at]) if spec.repair_s[at] else 0.0)
                if now_s > _FAILURES_UNTIL_S:
                    break
                found.append(Outage(now_s, back_s, devices))
                now_s = back_s
    return found
