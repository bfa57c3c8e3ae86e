"""What the header of a journal tells of a workflow run, besides its pool and graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files import explain
from dovetail.core.journal import Header
from dovetail.core.rates import Rate, RateTable, Switch
from dovetail.workflow.inputs.costs import CostRules, ModelCost


class RateRecords(Struct):
    rates: list[Rate] = []
    switches: list[Switch] = []


class WorkflowFacts(Struct):
    """What the level knows of a run besides its pool and graphs, as its header keeps it."""

    models: dict[str, ModelCost] = {}
    costs: CostRules = CostRules()
    compat: bool = False
    simulate: bool = False
    rates: RateRecords = field(default_factory=RateRecords)
    noise: float | None = None
    retries: int = 0
    skipped: int = 0
    requests: dict[str, Any] = {}
    forecast: dict[str, float] = {}  # GPU-seconds per model of all requests

    @classmethod
    def of(cls, header: Header, path: Path) -> WorkflowFacts:
        try:
            return msgspec.convert(header.facts, cls)
        except msgspec.ValidationError as error:
            keys, message = explain(error)
            raise InputError(f"{path}:1: facts.{'.'.join(map(str, keys))}: {message}") from None

    @property
    def table(self) -> RateTable:
        return RateTable(self.rates.rates, self.rates.switches)

    @property
    def exact(self) -> bool:
        """Whether everything took as long as was expected."""
        return not self.simulate and not (self.costs.noise if self.noise is None else self.noise)
