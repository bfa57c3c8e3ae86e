"""What a run of a plan came to: its figures, what came out of it, and what other levels may read of it."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.core.rates import RateTable
from dovetail.core.results.run import JournalFile, Run
from dovetail.pipeline.plan import Plan


class PipelineRun(Run):
    """Microbatches that were sent through a plan, in virtual time or for real.

    `outputs` are what a live run gave, one row per item (a tuple if the model gives several tensors); `rates` what it
    measured, for other levels.
    """

    def __init__(
        self,
        journal: JournalFile,
        metrics: dict[str, Any],
        notes: list[str] | None = None,
        rates: RateTable | None = None,
        outputs: Any = None,
    ) -> None:
        super().__init__(journal, metrics, notes)
        self.rates = rates or RateTable()
        self.outputs = outputs

    @property
    def plan(self) -> Plan:
        """The plan that it began with."""
        return msgspec.convert(self.header.facts["plan"], Plan)
