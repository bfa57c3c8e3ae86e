"""A problem: what is to be scheduled, on what, at which prices, read from files or from what stands in their place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.files.document import Source, as_path
from dovetail.core.files.plain import plain, scalar
from dovetail.core.files.reading import check_rereadable
from dovetail.core.journal import Clock, Header
from dovetail.core.rates import RateTable
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.core.words import Words
from dovetail.workflow.bounds import Bounds, BoundsAccumulator, bounds_for
from dovetail.workflow.choices import Compat, Mode, OnError, check_choice, check_count
from dovetail.workflow.compat.gswarm_files import reading
from dovetail.workflow.gpus.prefixes import PREFIX_CLAIMS
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.inputs.fit import make_pool
from dovetail.workflow.inputs.generate import GeneratedRequests
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime, read_gpus_over_time
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.inputs.importers.traced import ImportedTrace
from dovetail.workflow.inputs.rates import model_rates
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.slo import Slo
from dovetail.workflow.inputs.system import System
from dovetail.workflow.inputs.tenants import Tenancy
from dovetail.workflow.metrics import TOKEN_CLAIMS
from dovetail.workflow.policies.view import View
from dovetail.workflow.tenants.figures import CLAIMS
from dovetail.workflow.tenants.lanes import LaneView
from dovetail.workflow.words import WORDS


class ProblemSource(Struct, frozen=True, kw_only=True):
    """What a problem is read from, and how; the pool may be another each time."""

    config: Any
    requests: Any
    mode: Mode = "offline"
    on_error: OnError = "fail"
    compat: Compat | None = None
    costs: tuple[tuple[str, Any], ...] = ()
    rates: Any = None
    gpus_per_server: int = 8
    gpus_over_time: Any = None

    @property
    def _sources(self) -> tuple[Any, ...]:
        return self.config, self.requests, self.rates, self.gpus_over_time

    @property
    def files(self) -> list[Path]:
        """The files that it is read from."""
        return [source for source in self._sources if isinstance(source, Path)]

    @property
    def in_memory(self) -> bool:
        """Whether something is given in the place of a file."""
        given = [source for source in self._sources if source is not None]
        return len(self.files) < len(given)

    def read(self, gpus: str | int | Pool | None) -> WorkflowProblem:
        """Read and validate everything before anything runs."""
        for path in (self.config, self.requests):
            if isinstance(path, Path):
                check_rereadable(path)
        by = reading(self.compat is not None)
        gpus = gpus if isinstance(gpus, Pool) else scalar(gpus)
        system = by.read_system(self.config, self.on_error, dict(self.costs))
        config = self.config if isinstance(self.config, Path) else Path("config")
        pool = make_pool(system, gpus, self.gpus_per_server)
        over_time = system.gpus_over_time
        if self.gpus_over_time is not None:
            over_time = read_gpus_over_time(self.gpus_over_time)
        if over_time is not None:
            self._check_over_time(over_time, len(pool))
        table = RateTable()
        for given in [*system.rates, *([self.rates] if self.rates is not None else [])]:
            table |= given if isinstance(given, RateTable) else RateTable.read(given)
        known = model_rates(system, pool, table)
        known.tell(system)
        by.check_fit(system, pool, config)  # too wide a workflow matters to those who ask for it
        if over_time is not None:
            by.check_fit(system, over_time.smallest(pool), config)
        if system.costs.resident == "memory" and None in pool.memories:
            raise InputError(
                "costs.resident: memory needs the memory of every GPU: give gpu_types with memory_gb in the "
                "configuration, and --gpus TYPE:COUNT"
            )
        return WorkflowProblem(
            source=self,
            system=system,
            gpus=len(pool) if isinstance(gpus, Pool) else gpus if gpus is not None else system.gpus or len(pool),
            requests=by.requests(self.requests, system, self.mode, self.on_error),
            pool=pool,
            graphs=system.graphs(),
            models=system.model_costs,
            costs=system.costs,
            rates=known.table,
            growth={name: rules for name, rules in system.growth.items() if name not in system.faults},
            item_s=known.item_s,
            units=known.units,
            prefill_s=known.prefill_s,
            tenancy=system.tenancy,
            slo=system.slo,
            gpus_over_time=over_time,
            notes=[f"the rate table's {what} is nothing that {config} has: ignored" for what in known.ignored],
        )

    def _check_over_time(self, given: GpusOverTime, size: int) -> None:
        if (wrong := given.problem(size)) is not None:
            file = self.gpus_over_time if isinstance(self.gpus_over_time, Path) else "gpus_over_time"
            raise InputError(f"{file}: {'.'.join(map(str, wrong[0]))}: {wrong[1]}")
        if self.compat is not None:
            raise InputError("gpus_over_time: --compat gswarm knows no GPUs that come and go")


def load(
    config: Source,
    requests: Source,
    *,
    gpus: str | int | Pool | None = None,
    mode: Mode = "offline",
    on_error: OnError = "fail",
    compat: Compat | None = None,
    costs: Mapping[str, Any] | None = None,
    rates: Source | RateTable | None = None,
    gpus_per_server: int = 8,
    gpus_over_time: Source | GpusOverTime | None = None,
) -> WorkflowProblem:
    """Read and validate what is to be scheduled, on what, at which prices; nothing runs.

    `config` and `requests` are files, or what stands in their place: dicts, lists of them, or a frame of requests.
    `gpus` is a number of GPUs, or so many of each type (`"a100:2,l4:4"`); without it the configuration's `gpus` counts.
    In `mode` offline everything is there at time 0, online it arrives at its timestamps. A request that cannot run
    is an error, or with `on_error` counted as rejected (`"reject"`) or left out (`"skip"`). `costs` go over those of
    the configuration, `rates` is a table of measured speeds and switches, and `compat="gswarm"` reads, prices and
    orders as that scheduler did. `gpus_over_time` says how many of the GPUs are there when.

    >>> model = {"memory_gb": 14, "gpus_required": 1, "load_time_seconds": 30}
    >>> config = {"models": {"llm": model}, "workflows": {"chat": {"nodes": [{"id": "answer", "model": "llm"}]}}}
    >>> asked = [{"request_id": f"r{i}", "workflow_id": "chat", "node_execution_times": {"answer": 8}} for i in "123"]
    >>> load(config, asked, gpus=2)
    <WorkflowProblem 3 requests for 1 workflow on 2 GPUs, offline>
    """
    source = source_of(
        config,
        requests,
        mode=mode,
        on_error=on_error,
        compat=compat,
        costs=costs,
        rates=rates,
        gpus_per_server=gpus_per_server,
        gpus_over_time=gpus_over_time,
    )
    return source.read(gpus)


def source_of(
    config: Any,
    requests: Any,
    *,
    mode: Mode,
    on_error: OnError = "fail",
    compat: Compat | None = None,
    costs: Mapping[str, Any] | None = None,
    rates: Any = None,
    gpus_per_server: int = 8,
    gpus_over_time: Any = None,
) -> ProblemSource:
    """What a user gave, as far as that can be checked before anything is read."""
    check_choice("mode", mode, Mode)
    check_choice("on_error", on_error, OnError)
    if compat is not None:
        check_choice("compat", compat, Compat)
    gpus_per_server = scalar(gpus_per_server)
    check_count("gpus_per_server", gpus_per_server)
    if costs is not None and not isinstance(costs, Mapping):
        raise InputError(f"costs {costs!r}: expected names and values of cost rules")
    if isinstance(requests, GeneratedRequests | ImportedTrace):
        requests = list(requests)
    given = {"config": config, "requests": requests, "rates": rates, "gpus_over_time": gpus_over_time}
    paths = {name: as_path(source, name) for name, source in given.items() if isinstance(source, str | os.PathLike)}
    rules = tuple(plain(costs or {}).items())
    how = {"mode": mode, "on_error": on_error, "compat": compat, "costs": rules, "gpus_per_server": gpus_per_server}
    return ProblemSource(**given | paths | how)


def bound(problem: WorkflowProblem) -> Bounds:
    """What no schedule of these requests on this pool can beat: makespan, mean, median and P99.

    >>> problem = load("examples/system_config.yaml", "examples/workflow_requests.yaml", gpus=4)
    >>> round(bound(problem).makespan_s, 1), bound(problem).binding
    (208.3, 'area')
    """
    return checked(problem).lower_bounds()


def checked(problem: WorkflowProblem) -> WorkflowProblem:
    """What a user gave as a problem, if it is one."""
    if not isinstance(problem, WorkflowProblem):
        raise InputError(f"problem: expected what dovetail.workflow.load gives, found {problem!r}")
    return problem


def growth_unknown(problem: WorkflowProblem) -> str:
    """What to say where all nodes must be known before anything runs, but requests are given more."""
    return f", but requests for workflow {next(iter(problem.growth))!r} are given nodes while they run (then:)"


class WorkflowProblem(Struct, frozen=True, kw_only=True):
    """Validated inputs, ready to be scheduled by any policy."""

    source: ProblemSource
    system: System
    gpus: str | int  # as they were given
    requests: Requests
    pool: Pool
    graphs: dict[str, TaskGraph]
    models: dict[str, ModelCost]
    costs: CostRules
    rates: RateTable
    growth: dict[str, GrowthRules] = {}  # of workflows whose nodes may add others
    item_s: dict[str, float] = {}
    units: dict[str, str] = {}
    prefill_s: dict[str, float] = {}
    tenancy: Tenancy | None = None
    slo: Slo | None = None
    gpus_over_time: GpusOverTime | None = None
    notes: list[str] = []

    @property
    def mode(self) -> Mode:
        return self.source.mode

    @property
    def compat(self) -> bool:
        return self.source.compat is not None

    @property
    def counts_tokens(self) -> bool:
        """Whether nodes say how many tokens they have."""
        return self.requests.estimates["given tokens"] > 0

    @property
    def _words(self) -> Words:
        """The level's words, with the figures that its extensions add to the summary."""
        claims = [*(CLAIMS if self.tenancy is not None else ())]
        claims += TOKEN_CLAIMS if self.counts_tokens or self.slo is not None else ()
        claims += PREFIX_CLAIMS if any(model.prefix is not None for model in self.models.values()) else ()
        return replace(WORDS, claims=(*WORDS.claims, *claims)) if claims else WORDS

    def on(self, gpus: str | int | Pool) -> WorkflowProblem:
        """The same requests on another pool: described, or that of an engine."""
        return self.source.read(gpus)

    def warnings(self) -> list[str]:
        """What a user should know of the files, though they can be run."""
        path = self.requests.path
        return self.notes + [f"{path}: {text} ({n} requests)" for text, n in self.requests.warnings.items()]

    def header(self, policy: str, options: Mapping[str, Any], seed: int, *, live: bool = False, **facts: Any) -> Header:
        """A journal's first line: everything that a checker or a reader must know. In a `live` run time is real, and
        nobody may know what will be asked for."""
        total = self.requests.total
        rates = {"rates": list(self.rates.rates.values()), "switches": list(self.rates.switches.values())}
        known: dict[str, Any] = {
            "models": self.models,
            "costs": self.costs,
            "compat": self.compat,
            "simulate": False,
            "live": live,
            "rates": rates if self.rates else None,
            "item_s": self.item_s,
            "units": self.units if self.item_s else None,
            "prefill_s": self.prefill_s,
            "tenancy": self.tenancy,
            "slo": self.slo,
            "requests": {"total": total, "sha256": self.requests.digest} if total or not live else None,
            "estimates": self.requests.estimates,
            "growth": self.growth,
            "forecast": self.requests.forecast,
            "skipped": self.requests.skipped_count,
            "skipped_why": self.requests.skipped,
            "gpus_over_time": self.gpus_over_time,
        }
        return Header(
            level="workflow",
            words=self._words,
            policy=policy,
            options=dict(options),
            mode=self.mode,
            seed=seed,
            clock=Clock("monotonic") if live else Clock(),
            pool=self.pool,
            graphs=tuple(TaskGraphRecord.of(graph) for graph in self.graphs.values()),
            facts=msgspec.to_builtins({key: value for key, value in (known | facts).items() if value}),
        )

    def new_view(self) -> View:
        view_type = LaneView if self.tenancy is not None and self.tenancy.tenants else View
        return view_type(self.pool, self.models, self.costs, self.rates, self.requests.forecast)

    def new_bounds(self) -> BoundsAccumulator:
        """Nothing below these bounds is a schedule."""
        later = {model for rules in self.growth.values() for model in rules.models}
        return bounds_for(self.pool, self.graphs, self.models, self.costs, self.rates, later=later)

    def lower_bounds(self) -> Bounds:
        """The bounds over all requests that can run, as they arrive: what they may be given is not certain."""
        bounds = self.new_bounds()
        for at_s, request in self.requests.arrivals():
            bounds.add(at_s, request)
        return bounds.result()

    def __repr__(self) -> str:
        workflows = f"{len(self.graphs)} workflow{'' if len(self.graphs) == 1 else 's'}"
        return (
            f"<WorkflowProblem {len(self.requests):,} requests for {workflows} on {len(self.pool)} GPUs, {self.mode}>"
        )

    def describe(self) -> dict[str, Any]:
        """What was read, in numbers."""
        return {
            "models": len(self.models),
            "workflows": len(self.graphs),
            "requests": len(self.requests),
            "gpus": len(self.pool),
            "gpu_seconds": sum(self.requests.forecast.values()),
            "durations": dict(self.requests.estimates),
            **({"tenants": dict(sorted(self.requests.tenants.items()))} if self.tenancy is not None else {}),
        }
