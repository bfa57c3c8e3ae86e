"""From files to figures: a problem (what is to be scheduled, on what, at which prices) and its simulated runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.journal import Header
from dovetail.core.rates import RateTable
from dovetail.core.resources import Pool
from dovetail.core.tasks import TaskGraph, TaskGraphRecord
from dovetail.workflow.bounds import Bounds, BoundsAccumulator, bounds_for
from dovetail.workflow.choices import Compat, Mode, OnError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.inputs.fit import check_fit, make_pool
from dovetail.workflow.inputs.rates import model_rates
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.policies.base import View
from dovetail.workflow.words import WORDS


class WorkflowProblem(Struct, frozen=True, kw_only=True):
    """Validated inputs, ready to be scheduled by any policy."""

    config: Path
    requests: Requests
    mode: Mode
    compat: bool
    pool: Pool
    graphs: dict[str, TaskGraph]
    models: dict[str, ModelCost]
    costs: CostRules
    rates: RateTable
    item_s: dict[str, float] = {}
    units: dict[str, str] = {}
    notes: list[str] = []

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
    ) -> WorkflowProblem:
        """Read and validate everything before anything runs."""
        for path in (config, requests):
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InputError(f"{path}: expected a file, not a pipe or device: it is read more than once")
        old = compat == "gswarm"
        options = ({"window": "primary"} if old else {}) | dict(costs or {})
        system = read_system(config, on_error, old, options)
        pool = make_pool(system, gpus, gpus_per_server)
        table = RateTable()
        for path in [*system.rates, *([rates] if rates else [])]:
            table |= RateTable.read(path)
        known = model_rates(system, pool, table)
        system.item_s, system.units = known.item_s, known.units
        check_fit(system, pool, config, "reject", old)  # too wide a workflow matters to those who ask for it
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
            graphs=system.graphs(),
            models=system.model_costs,
            costs=system.costs,
            rates=known.table,
            item_s=known.item_s,
            units=known.units,
            notes=[f"the rate table's {what} is nothing that {config} has: ignored" for what in known.ignored],
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
            "item_s": self.item_s,
            "units": self.units if self.item_s else None,
            "requests": {"total": self.requests.total, "sha256": self.requests.digest},
            "estimates": self.requests.estimates,
            "forecast": self.requests.forecast,
            "skipped": self.requests.skipped_count,
            "skipped_why": self.requests.skipped,
        }
        return Header(
            level="workflow",
            words=WORDS,
            policy=policy,
            options=dict(options),
            mode=self.mode,
            seed=seed,
            pool=self.pool,
            graphs=tuple(TaskGraphRecord.of(graph) for graph in self.graphs.values()),
            facts=msgspec.to_builtins({key: value for key, value in (known | facts).items() if value}),
        )

    def new_view(self) -> View:
        return View(self.pool, self.models, self.costs, self.rates, self.requests.forecast)

    def new_bounds(self) -> BoundsAccumulator:
        """Nothing below these bounds is a schedule."""
        return bounds_for(self.pool, self.graphs, self.models, self.costs, self.rates)

    def lower_bounds(self) -> Bounds:
        """The bounds over all requests that can run."""
        bounds = self.new_bounds()
        for at_s, request in self.requests.arrivals():
            bounds.add(at_s, request)
        return bounds.result()

    def describe(self) -> dict[str, Any]:
        """What was read, in numbers."""
        return {
            "models": len(self.models),
            "workflows": len(self.graphs),
            "requests": len(self.requests),
            "gpus": len(self.pool),
            "gpu_seconds": sum(self.requests.forecast.values()),
            "durations": dict(self.requests.estimates),
        }
