"""What a simulation is made from: files, or what stands in their place, and numbers in, a setup to run out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.cluster.inputs.accelerators import ACCELERATORS
from dovetail.cluster.inputs.analytic import analytic
from dovetail.cluster.inputs.choices import CLOUDS, OnError, Widths, one_of
from dovetail.cluster.inputs.cluster_spec import ClusterSpec, parse_cluster
from dovetail.cluster.inputs.csv_rows import LEAST, LEAST_WEIGHT, MOST_WEIGHT, MOST_WHOLE, given_rows
from dovetail.cluster.inputs.estimate import estimate
from dovetail.cluster.inputs.failures import RandomFailures
from dovetail.cluster.inputs.fits import spread_note
from dovetail.cluster.inputs.generate import GeneratedJobs
from dovetail.cluster.inputs.generate import jobs_per_hour as between_arrivals_s
from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.inputs.prices import GCP, Prices, constant, read_prices
from dovetail.cluster.inputs.profiles import ProfileMapper, read_profiles
from dovetail.cluster.inputs.setup import ClusterSetup, begins_s
from dovetail.cluster.inputs.throughputs import (
    REFERENCE,
    ThroughputsError,
    check_rates,
    from_rates,
    overlaid,
    read_throughputs,
    reference_type,
    restart_prices,
)
from dovetail.cluster.inputs.traces import read_trace
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.cluster.policies import make
from dovetail.cluster.policies.base import Policy
from dovetail.core import registry
from dovetail.core.errors import InputError, did_you_mean, within
from dovetail.core.files.document import checked
from dovetail.core.files.plain import plain, scalar
from dovetail.core.rates import RateTable

STATIC_JOBS = 40  # generated if nothing is said
CONTINUOUS_JOBS = 500
_LONGEST_S = 1e8  # of one job on its fastest type: some three years, and nearly 300,000 rounds


class Scenario(Struct, frozen=True, kw_only=True):
    """A cluster and its work. The same scenario gives the same jobs, whatever policy they meet.

    Jobs come from `trace`, `jobs` of them at most, or are generated: `jobs` of them, or without end if there is a
    `window` of job ids to measure. `lam_s` is the mean time between arrivals, 0 for all at once. In the place of a file
    may stand what it would hold: rows of a table, or a mapping.
    """

    cluster: str | dict[str, Any] = "8:8:8"
    per_server: str = ""
    throughputs: Path | dict[str, Any] | list[Any] | None = None  # None: the built-in model
    rates: Any = None  # a rate table: over the throughputs, or in the place of the built-in model
    profiles: Path | None = None  # a folder of applications' profiles, in the place of throughputs
    throughput_params: Path | list[Any] | None = None  # seven numbers for types without a profile
    trace: Path | list[Any] | None = None
    trace_format: str = ""
    widths: Widths | None = None
    map: dict[str, str] = field(default_factory=dict)  # of a scheduler's log: which key holds what
    model: dict[str, str] = field(default_factory=dict)  # which model a name there is; "": all others
    on_error: OnError = "fail"
    lam_s: float = 0.0
    jobs: int | None = None
    window: tuple[int, int] | None = None
    multi_gpu: bool = False
    priorities: bool = False
    deadlines: bool = False
    duration_s: float | None = None
    durations_on: str = ""  # the type that durations are on; "": v100, or of throughputs without it their first
    steady_state: bool = False
    entities: dict[str, float] = field(default_factory=dict)  # weights
    prices: Path | list[Any] | None = None
    clouds: tuple[str, ...] = CLOUDS
    profiled: float = 1.0
    references: int | None = None
    seed: int = 0

    def files(self) -> list[Path]:
        """The files it reads, for those who must not write over them or must know whether they have changed."""
        cluster = Path(self.cluster) if isinstance(self.cluster, str) else None
        named = [self.throughputs, self.rates, self.throughput_params, self.trace, self.prices, cluster]
        named += sorted(self.profiles.glob("*/*.csv")) if self.profiles else []
        return [path for path in named if isinstance(path, Path) and path.is_file()]


class LoadedScenario(Struct, kw_only=True):
    """A scenario that was read: what to run, whose pair rates policies believe in, and what a user should know."""

    scenario: Scenario
    setup: ClusterSetup
    believed: Throughputs | None = None
    notes: list[str] = field(default_factory=list)
    trace_format: str = ""  # of the trace, if there is one

    def policy(self, choice: Any, options: Mapping[str, Any] | None = None) -> Policy:
        """A policy by name, or one of a user's own. One that packs sees the believed pair rates, not those that jobs
        really run at."""
        found = make(choice, self.options(choice, options))
        if found.packs and self.believed is not None:
            if self.believed.pairs is None:
                raise InputError("throughputs: expected pair rates to estimate from, found none")
            return LearnedRates(found, self.believed.pairs)
        return found

    def __repr__(self) -> str:
        cluster = ", ".join(f"{count} {name}" for name, count in self.setup.accelerators().items())
        jobs = self.setup.jobs
        return f"<LoadedScenario {cluster}; {f'{len(jobs):,} jobs' if isinstance(jobs, list) else 'jobs without end'}>"

    def options(self, choice: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The options that a policy is made with: a policy that draws does so by the run's seed."""
        name, written = registry.written_options(choice) if isinstance(choice, str) else ("", {})
        draws = name in registry.names("cluster") and "seed" in registry.options_of("cluster", name).keys() - written
        return ({"seed": str(self.setup.seed)} if draws else {}) | dict(given or {})


def load(scenario: Scenario | None = None, /, **fields: Any) -> LoadedScenario:
    """Read everything that a scenario names. `fields` are those of `Scenario`, in the place of its own.

    `cluster` may also be a dict of counts, `per_server` a number, `entities` a number of them. `trace`, `throughputs`
    and `prices` may be a path, a list of dicts with the columns of our tables, or a frame of pandas or polars; `rates`
    a path, a dict, or a `RateTable`. `jobs_per_hour` may stand in the place of `lam_s`.

    >>> load(cluster={"a100": 4, "l4": 8}, jobs=12)
    <LoadedScenario 4 a100, 8 l4; 12 jobs>
    >>> load(cluster="a100=1", trace=[{"arrival_s": 0, "model": "A3C", "duration_s": 3600}]).setup.jobs[0].duration_s
    3600.0
    """
    scenario = given(scenario, **fields)
    named = parse_cluster(scenario.cluster, gpus_per_server=scenario.per_server)
    spec = named.present()
    table = RateTable() if scenario.rates is None else RateTable.read(scenario.rates)
    jobs: Iterable[Job]
    trace_format = ""
    profiled, notes = _profiled(scenario, spec)
    if profiled is None:
        known, notes = _throughputs(scenario, spec, table, named.of)
    else:
        known = profiled.throughputs
    timed = None if profiled is not None else _timed(scenario, known, table)
    if scenario.trace is not None:
        rows = given_rows("trace", scenario.trace) if isinstance(scenario.trace, list) else scenario.trace
        trace = read_trace(
            rows,
            known,
            timed=timed,
            profiled=profiled,
            format=scenario.trace_format,
            widths=scenario.widths,
            most=scenario.jobs,
            map=scenario.map,
            model=scenario.model,
            on_error=scenario.on_error,
            elsewhere=None if scenario.throughputs or table.rates else lambda: analytic(list(ACCELERATORS)),
        )
        known, trace_format = trace.throughputs or known, trace.format
        jobs = trace.jobs
        notes += trace.notes + [f"left out: {count} x {what}" for what, count in trace.dropped.items()]
        _check_window(scenario, len(trace.jobs))
        _check_length(trace.jobs, known.of_types(spec.of), _named(scenario.trace, "trace"))
    else:
        assert timed is not None
        jobs = generated(scenario, timed, spec)
        if timed.types[0] not in spec.of:
            notes.append(f"jobs are drawn by their time on {timed.types[0]} (--durations-on names another type)")
    rates = known.of_types(spec.of, spec.types)
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
        outages=RandomFailures(spec, scenario.seed, begins_s(jobs)),
        restarts=restart_prices(table, rates.kinds, spec.of) if profiled is None else profiled.restarts_s(),
        adaptive=None if profiled is None else profiled.kinds(),
        phased=scenario.trace is not None and any(job.phases for job in jobs),
        seed=scenario.seed,
    )
    notes += filter(None, [spread_note(setup)])
    return LoadedScenario(scenario=scenario, setup=setup, believed=believed, notes=notes, trace_format=trace_format)


_NUMBERS = {  # what is expected, the least, the most
    "jobs": ("1 or more", 1, MOST_WHOLE, True),
    "lam_s": ("seconds, 0 or more", 0, 1e12, False),
    "duration_s": ("seconds, more than 0", 1e-9, _LONGEST_S, False),
    "profiled": ("0 to 1", 0, 1, False),
    "references": ("1 or more", 1, MOST_WHOLE, True),
}
_FILES = ("throughputs", "rates", "profiles", "throughput_params", "trace", "prices")


def given(scenario: Scenario | None = None, /, jobs_per_hour: float | None = None, **fields: Any) -> Scenario:
    """A scenario from what a user gave, checked and made plain: other processes can be sent what it holds."""
    if not isinstance(scenario, Scenario | None):
        raise InputError(f"scenario: expected a Scenario, found {scenario!r}")
    fields = {name: scalar(value) for name, value in fields.items()}
    if jobs_per_hour is not None:
        within("jobs_per_hour", jobs_per_hour := scalar(jobs_per_hour), "more than 0", 1e-9)
        fields["lam_s"] = between_arrivals_s(jobs_per_hour)
    for name in _FILES:
        if (value := fields.get(name)) is not None and not isinstance(value, RateTable):
            fields[name] = Path(value) if isinstance(value, str | PathLike) else plain(value)
    for name in ("cluster", "per_server"):
        if isinstance(value := plain(fields.get(name)), dict) and not value.keys() & {"types", "order"}:
            fields[name] = ",".join(f"{kind}={count}" for kind, count in value.items())
        elif name in fields:
            fields[name] = value if isinstance(value, dict) else "" if value is None else str(value)
    if isinstance(number := fields.get("entities"), int):
        within("entities", number, "1 or more", 1, 1e6, whole=True)
        fields["entities"] = {f"entity-{i}": 1.0 for i in range(number)}
    found = Scenario(**fields) if scenario is None else replace(scenario, **fields)
    _check(found)
    return found


def _check(scenario: Scenario) -> None:
    """What Python lets pass and a command line would not."""
    for name, (expected, least, most, whole) in _NUMBERS.items():
        optional = name not in ("lam_s", "profiled")
        within(name, getattr(scenario, name), expected, least, most, whole=whole, optional=optional)
    if not isinstance(scenario.seed, int) or isinstance(scenario.seed, bool):
        raise InputError(f"seed {scenario.seed!r}: expected a whole number")
    match scenario.window:
        case None:
            pass
        case [int(), int(end)] if end <= MOST_WHOLE:
            pass
        case other:
            wanted = f"the first job and the one after the last, up to {MOST_WHOLE:,}"
            raise InputError(f"window {other!r}: expected {wanted}")
    for name in ("multi_gpu", "priorities", "deadlines", "steady_state"):
        if not isinstance(getattr(scenario, name), bool):
            raise InputError(f"{name} {getattr(scenario, name)!r}: expected True or False")
    if not isinstance(scenario.durations_on, str):
        raise InputError(f"durations_on {scenario.durations_on!r}: expected the name of a type")
    if scenario.widths is not None:
        one_of("widths", scenario.widths, get_args(Widths))
    one_of("on_error", scenario.on_error, get_args(OnError))
    for name in ("map", "model"):
        checked(getattr(scenario, name), dict[str, str], name)
    tables = dict.fromkeys(("trace", "prices", "throughput_params"), (Path, list))
    for name, kinds in (tables | {"throughputs": (Path, list, dict), "profiles": (Path,)}).items():
        if not isinstance(value := getattr(scenario, name), (*kinds, type(None))):
            raise InputError(f"{name}: expected a path, a list of dicts or a frame, found {value!r}")
    if not isinstance(scenario.entities, dict):
        raise InputError(f"entities {scenario.entities!r}: expected weights by name, or a number")
    for name, weight in scenario.entities.items():
        wanted = f"more than 0, {LEAST_WEIGHT:g} or more"
        within(f"the weight of entity {name!r}", weight, wanted, LEAST_WEIGHT, MOST_WEIGHT)


def generated(scenario: Scenario, timed: Throughputs, spec: ClusterSpec) -> Iterable[Job]:
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
        throughputs=timed,
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


def _check_length(jobs: list[Job], rates: Throughputs, where: str) -> None:
    """Refuse jobs that would take longer than any run is simulated, or next to no time."""
    fastest = dict(zip(rates.kinds, rates.alone.max(axis=1, initial=0.0).tolist(), strict=True))
    for job in jobs:
        rate = fastest.get((job.model, job.width), 0.0)
        took = f"{job.steps:g} steps at {rate:g} per second"
        if rate > 0 and job.steps / rate > _LONGEST_S:
            raise InputError(f"{where}: job {job.id}: expected at most {_LONGEST_S:g} s of work, found {took}")
        if 0 < job.steps < LEAST * max(rate, 1.0):
            raise InputError(f"{where}: job {job.id}: expected no work, or {LEAST:g} s of it or more, found {took}")
        if job.due_s is not None and 0 < job.due_s < LEAST:
            raise InputError(f"{where}: job {job.id}: due_s: expected 0, or {LEAST:g} or more, found {job.due_s:g}")


def _profiled(scenario: Scenario, spec: ClusterSpec) -> tuple[ProfileMapper | None, list[str]]:
    """Models and steps by profiles, if there are some, and what a user should know of them."""
    if scenario.profiles is None:
        if scenario.throughput_params is not None:
            raise InputError("throughput_params are for types without a profile: they need profiles")
        return None, []
    if scenario.throughputs is not None or scenario.rates is not None:
        raise InputError("give profiles, or throughputs and rates, not both")
    if scenario.trace is None:
        raise InputError("profiles are of the jobs of a trace: they need one")
    if spec.of != spec.types:
        raise InputError("cluster: several offers of one type (type) cannot be told apart by profiles")
    params = scenario.throughput_params
    rows = given_rows("throughput_params", params) if isinstance(params, list) else params
    applications = read_profiles(scenario.profiles, spec.types, rows)
    found = [(name, each.types.get(name)) for name in spec.types for each in applications.values()]
    modelled = dict.fromkeys(name for name, profile in found if profile is not None and profile.numbers)
    notes = [f"steps on {name} by seven numbers of a model, not by a profile" for name in modelled]
    if scenario.durations_on and scenario.durations_on not in spec.types:
        hint = did_you_mean(scenario.durations_on, spec.types)
        raise InputError(f"durations_on: expected a type of the cluster, found {scenario.durations_on!r}{hint}")
    return ProfileMapper(applications, spec.types, spec.counts, spec.per_server, scenario.durations_on), notes


def _throughputs(
    scenario: Scenario, spec: ClusterSpec, table: RateTable, named: tuple[str, ...]
) -> tuple[Throughputs, list[str]]:
    if table.rates:
        return _from_table(scenario, spec, table), []
    if scenario.throughputs is None:
        note = "throughputs: the built-in model's estimates (--throughputs-file takes measured ones)"
        return _estimated(tuple(dict.fromkeys(named)), "cluster (-c)"), [note]
    return _covering(_from_file(scenario.throughputs, scenario), spec, scenario.throughputs), []


def _estimated(types: Sequence[str], where: str) -> Throughputs:
    """The built-in model's throughputs of types that are named there."""
    try:
        return analytic(types)
    except InputError as error:
        raise InputError(f"{where}: {error} (--throughputs-file takes measured ones)") from None


def _timed(scenario: Scenario, known: Throughputs, table: RateTable) -> Throughputs:
    """Throughputs of the type that durations are on. They do not depend on the cluster: the same jobs come to all."""
    if scenario.throughputs is None and not table.rates:
        return _estimated([scenario.durations_on or REFERENCE], "durations_on")
    if scenario.durations_on and scenario.durations_on not in known.types:
        hint = did_you_mean(scenario.durations_on, known.types)
        raise InputError(f"durations_on: no throughputs for the type {scenario.durations_on!r}{hint}")
    return known.of_types((scenario.durations_on or reference_type(known),))


def _from_table(scenario: Scenario, spec: ClusterSpec, table: RateTable) -> Throughputs:
    """What the rate table says in absolute numbers, over what the file of throughputs says if there is one."""
    assert scenario.rates is not None
    absolute = RateTable(rate for rate in table.rates.values() if rate.unit)
    if not absolute:
        raise InputError(
            f"{_named(scenario.rates, 'rates')}: its rates are relative; expected some with a unit, as steps/s "
            "(--throughputs-file takes relative ones)"
        )
    try:
        found = from_rates(absolute)
    except ThroughputsError as error:
        raise InputError(f"{_named(scenario.rates, 'rates')}: {error}") from None
    if scenario.throughputs is not None:
        found = overlaid(_from_file(scenario.throughputs, scenario), found)
    return _covering(check_rates(found, _named(scenario.rates, "rates")), spec, scenario.rates)


def _covering(found: Throughputs, spec: ClusterSpec, path: Any) -> Throughputs:
    for name in spec.of:
        if name not in found.types:
            raise InputError(
                f"{_named(path, 'throughputs')}: no throughputs for the type {name!r}{did_you_mean(name, found.types)}"
            )
    return found


def _named(source: Any, name: str) -> str:
    return str(source) if isinstance(source, Path) else name


def _from_file(path: Any, scenario: Scenario) -> Throughputs:
    if not isinstance(path, Path):
        return check_rates(read_throughputs(path), "throughputs")
    version = path.stat().st_mtime_ns if path.is_file() else 0
    return _read_throughputs(path, version)


@lru_cache(maxsize=2)
def _read_throughputs(path: Path, version_ns: int) -> Throughputs:
    """Runs of one sweep share the file within a process, until it changes."""
    return check_rates(read_throughputs(path), str(path))


def _prices(scenario: Scenario, spec: ClusterSpec) -> Prices:
    if scenario.prices is not None:
        rows = given_rows("prices", scenario.prices) if isinstance(scenario.prices, list) else scenario.prices
        return read_prices(rows, spec.types, scenario.clouds)
    given_prices = zip(spec.prices, (GCP.get(name.lower()) for name in spec.of), strict=True)
    prices = [usual if price is None else price for price, usual in given_prices]
    return constant(spec.types, dict(zip(spec.types, prices, strict=True)))


def _entities(scenario: Scenario, jobs: Iterable[Job]) -> dict[str, float]:
    """The weights of all entities: those given, and 1 for others that a trace names. One that has no jobs is left out,
    but taken for a slip if another one has jobs and no weight."""
    if scenario.trace is None:
        return scenario.entities
    named = dict.fromkeys(job.entity for job in jobs)
    if not scenario.entities and list(named) == [""]:
        return {}
    known = [name for name in named if name]
    unknown = [name for name in scenario.entities if name not in named]
    if unknown and not (known and scenario.entities.keys() >= set(known)):
        where, hint = _named(scenario.trace, "trace"), did_you_mean(unknown[0], known) or "; no job has an entity"
        raise InputError(f"{where}: no job is of the entity {unknown[0]!r}{hint}")
    return {name: scenario.entities.get(name, 1.0) for name in named}
