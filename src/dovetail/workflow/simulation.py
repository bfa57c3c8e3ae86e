"""From files to figures: a problem (what is to be scheduled, on what, at which prices) and its simulated runs."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core import registry
from dovetail.core.engine import simulate
from dovetail.core.errors import InputError
from dovetail.core.executor import SimExecutor
from dovetail.core.journal import Header, Observer, TaskGraphRecord
from dovetail.core.metrics import Figures, Metrics
from dovetail.core.rates import RateTable
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.bounds import Bounds, BoundsAccumulator, bounds_for
from dovetail.workflow.compat import HeapOrder
from dovetail.workflow.costs import Costs, ModelCost
from dovetail.workflow.inputs import OnError, check_fit, make_pool, read_system
from dovetail.workflow.policies import Policy, View
from dovetail.workflow.requests import Mode, Requests
from dovetail.workflow.scheduler import WorkflowScheduler

DEFAULT_POLICY = "dovetail"
Compat = Literal["gswarm"]


class Problem(Struct, frozen=True, kw_only=True):
    """Validated inputs, ready to be scheduled by any policy."""

    config: Path
    requests: Requests
    mode: Mode
    compat: bool
    pool: Pool
    shapes: dict[str, TaskGraph]
    models: dict[str, ModelCost]
    costs: Costs
    rates: RateTable

    @classmethod
    def read(
        cls,
        config: Path,
        requests: Path,
        *,
        gpus: str | None = None,
        mode: Mode = "offline",
        on_error: OnError = "fail",
        compat: Compat | None = None,
        costs: Mapping[str, Any] | None = None,
        rates: Path | None = None,
        gpus_per_server: int = 8,
    ) -> Problem:
        """Read and validate everything before anything runs."""
        for path in (config, requests):
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InputError(f"{path}: expected a file, not a pipe or device: it is read more than once")
        old = compat == "gswarm"
        options = ({"window": "primary"} if old else {}) | dict(costs or {})
        system = read_system(config, on_error, old, options)
        pool = make_pool(system, gpus, gpus_per_server)
        table = RateTable.read(rates) if rates else RateTable()
        check_fit(system, pool, config, "reject", old, table)  # too wide a workflow matters to those who ask for it
        if system.costs.resident == "memory" and None in pool.memories:
            raise InputError(
                "costs.resident: memory needs the memory of every GPU: give gpu_types with memory_gb in the "
                "configuration, and --gpus TYPE:COUNT"
            )
        return cls(
            config=config,
            requests=Requests(requests, system, mode, on_error, old),
            mode=mode,
            compat=old,
            pool=pool,
            shapes=system.shapes(),
            models=system.model_costs,
            costs=system.costs,
            rates=table,
        )

    def header(self, policy: str, options: Mapping[str, Any], seed: int, **facts: Any) -> Header:
        """A journal's first line: everything that a checker or a reader must know."""
        rates = {"rates": list(self.rates.rates.values()), "switches": list(self.rates.switches.values())}
        known: dict[str, Any] = {
            "models": self.models,
            "costs": self.costs,
            "compat": self.compat,
            "simulate": False,
            "rates": rates if self.rates else None,
            "requests": {"total": self.requests.total, "sha256": self.requests.digest},
            "estimates": self.requests.estimates,
            "skipped": self.requests.skipped_count,
            "skipped_why": self.requests.skipped,
        }
        return Header(
            level="workflow",
            policy=policy,
            options=dict(options),
            mode=self.mode,
            seed=seed,
            pool=self.pool,
            graphs=tuple(TaskGraphRecord.of(shape) for shape in self.shapes.values()),
            facts=msgspec.to_builtins({key: value for key, value in (known | facts).items() if value}),
        )

    def new_view(self) -> View:
        return View(self.pool, self.models, self.costs, self.rates, self.requests.forecast)

    def new_bounds(self) -> BoundsAccumulator:
        """Nothing below these bounds is a schedule."""
        return bounds_for(self.pool, self.shapes, self.models, self.costs, self.rates)


def make_policy(name: str, options: Mapping[str, Any] | None, mode: Mode) -> Policy:
    """A policy by name, for a mode that it can work in."""
    chosen: Policy = registry.create("workflow", name, options)
    if chosen.plans_ahead and mode == "online":
        raise InputError(f"policy {name} plans ahead: it needs offline mode (--mode offline)")
    return chosen


class Outcome(Struct, frozen=True):
    """What a run came to. `bounds` are over the requests that were completed."""

    figures: Figures
    bounds: Bounds
    steps: int
    end_s: float
    simulation_s: float  # how long the simulation itself took


def run(
    problem: Problem,
    policy: str | Policy = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = 0,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Simulate a problem under a policy; observers follow every step."""
    chosen = make_policy(policy, options, problem.mode) if isinstance(policy, str) else policy
    scheduler = WorkflowScheduler(problem.new_view(), problem.shapes, chosen, retries)
    metrics, bounds = Metrics(problem.pool), problem.new_bounds()
    executor = SimExecutor(seed, problem.costs.noise, failure_rate)
    arrivals = problem.requests.arrivals()
    began = time.perf_counter()
    with _no_garbage():
        steps, end_s = simulate(
            scheduler,
            problem.pool,
            problem.shapes,
            () if problem.compat else arrivals,
            executor,
            [metrics, bounds, *observers],
            HeapOrder(arrivals) if problem.compat else None,
        )
    took = time.perf_counter() - began
    return Outcome(metrics.figures(), bounds.result(), steps, end_s, took)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """A run makes no reference cycles, but keeps many objects alive that the collector would visit again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
