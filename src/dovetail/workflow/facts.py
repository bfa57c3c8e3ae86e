"""What the header of a journal tells of a workflow run, besides its pool and graphs."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import explain
from dovetail.core.journal import Header
from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.workflow.choices import DEFAULT_LOST_RETRIES
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.inputs.growth.rules import GrowthRules
from dovetail.workflow.inputs.slo import Slo
from dovetail.workflow.inputs.system import MOST
from dovetail.workflow.inputs.tenants import Tenancy


class RateRecords(Struct):
    rates: list[Rate] = []
    switches: list[Switch] = []


class RequestFile(Struct):
    """Which requests were to be run."""

    total: int | None = None
    sha256: str = ""


class WorkflowFacts(Struct):
    """What the level knows of a run besides its pool and graphs, as its header keeps it."""

    models: dict[str, ModelCost] = {}
    costs: CostRules = CostRules()
    compat: bool = False
    simulate: bool = False
    live: bool = False  # models were called: what was expected is one thing, what happened another
    rates: RateRecords = field(default_factory=RateRecords)
    item_s: dict[str, float] = {}  # seconds per item at speed 1, and what the items are, of models with absolute rates
    units: dict[str, str] = {}
    prefill_s: dict[str, float] = {}  # seconds per token read at speed 1, of models whose rate of that is measured
    noise: float | None = None
    retries: int = 0
    lost_retries: int = DEFAULT_LOST_RETRIES
    skipped: int = 0
    requests: RequestFile = field(default_factory=RequestFile)
    growth: dict[str, GrowthRules] = {}  # of workflows whose nodes may add others
    forecast: dict[str, float] = {}  # GPU-seconds per model of all requests
    tenancy: Tenancy | None = None
    slo: Slo | None = None
    gpus_over_time: GpusOverTime | None = None

    @classmethod
    def of(cls, header: Header, path: Path) -> WorkflowFacts:
        try:
            facts = msgspec.convert(header.facts, cls)
        except msgspec.ValidationError as error:
            keys, message = explain(error)
            raise InputError(f"{path}:1: facts.{'.'.join(map(str, keys))}: {message}") from None
        if not header.pool.devices:
            raise InputError(f"{path}:1: pool.devices: expected at least one GPU")
        if (problem := facts.problem()) is not None:
            raise InputError(f"{path}:1: facts.{problem}")
        over_time = facts.gpus_over_time
        if over_time is not None and (wrong := over_time.problem(len(header.pool))) is not None:
            raise InputError(f"{path}:1: facts.gpus_over_time.{'.'.join(map(str, wrong[0]))}: {wrong[1]}")
        return facts

    def problem(self) -> str | None:
        """What is wrong with these numbers, or None."""
        if (wrong := self.costs.problem()) is not None:
            return f"costs.{wrong}"
        if self.live and self.gpus_over_time is not None:
            return "gpus_over_time: expected none in a live run, where GPUs come and go as they do"
        if self.slo is not None and (wrong := self.slo.problem()) is not None:
            return f"slo.{wrong}"
        if self.tenancy is not None and (wrong := self.tenancy.problem()) is not None:
            return f"tenancy.{wrong}"
        for name, model in self.models.items():
            numbers = (model.memory_gb, model.load_s, float(model.width), model.prefill_s)
            if not all(0 < speed <= 1 for speed in model.concurrency_curve):
                return f"models.{name}.concurrency_curve: expected speeds above 0 and up to 1"
            if not all(0 <= number <= MOST for number in numbers) or not all(0 < f <= MOST for f in model.batch_curve):
                return f"models.{name}: expected numbers from 0 to {MOST:g}, slow-downs above 0"
            if model.prefix is not None and (wrong := model.prefix.problem()) is not None:
                return f"models.{name}.prefix.{wrong}"
            base = self.models.get(model.adapter_of)
            if model.adapter_of and (base is None or base.adapter_of or base.width != model.width):
                return f"models.{name}.adapter_of: expected a model of the same width that is no adapter"
        if not all(0 < rate.rate <= MOST for rate in self.rates.rates):
            return f"rates: expected positive numbers up to {MOST:g}"
        if not all(0 <= switch.seconds <= MOST for switch in self.rates.switches):
            return f"switches: expected seconds from 0 to {MOST:g}"
        return None

    @property
    def later(self) -> set[str]:
        """The models of nodes that requests may be given while they run."""
        return {model for rules in self.growth.values() for model in rules.models}

    @property
    def table(self) -> RateTable:
        return RateTable(self.rates.rates, self.rates.switches)

    @property
    def void(self) -> str:
        """Why no bound holds, as far as that is known before anything has happened."""
        return "models were called, and took as long as they did" if self.live else ""

    @property
    def exact(self) -> bool:
        """Whether everything took as long as was expected."""
        return not self.simulate and not self.live and not (self.costs.noise if self.noise is None else self.noise)
