"""A run told in events, from whatever file, held to the rules of all levels and of this one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.core.check import Check
from dovetail.core.errors import InputError
from dovetail.core.files.document import Source
from dovetail.core.findings import Findings, Report
from dovetail.core.journal import Ended, Header, Observer, Reader
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.bounds import Bounds
from dovetail.workflow.check.below import LowerBounds
from dovetail.workflow.check.files import InputFiles
from dovetail.workflow.check.gpus_on import GpusOnRules
from dovetail.workflow.check.growth import GrowthCheck
from dovetail.workflow.check.live import LiveRules
from dovetail.workflow.check.starts import StartRules
from dovetail.workflow.check.tenants import TenantRules
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.prefixes import PrefixHits
from dovetail.workflow.metrics import TokenMetrics, summary
from dovetail.workflow.tenants.figures import TenantMetrics, tenant_summary


def need_config(config: Source | None, requests: Source | None) -> None:
    if requests is not None and config is None:
        raise InputError("--requests needs --config: requests name the workflows of a configuration")


Steps = Iterable[tuple[int, float, list[Any]]]


def whole_steps(steps: Steps) -> Steps:
    """All steps but the last of a run that goes on, or was killed: a part of that one may not be written."""
    before: tuple[int, float, list[Any]] | None = None
    for step in steps:
        if before is not None:
            yield before
        before = step
    if before is not None and any(isinstance(event, Ended) for event in before[2]):
        yield before


class Examination:
    """A run told in events, from whatever file: the core's invariants, its bounds, and what else follows it."""

    def __init__(self, path: Path, header: Header, faults: Findings, free_setups: bool = False) -> None:
        self.path = path
        self.header = header
        self.faults = faults
        self.facts = WorkflowFacts.of(header, path)
        self.notes: list[str] = []
        self.lower = LowerBounds(header, self.facts, faults, free_setups)
        self.hits = PrefixHits(self.facts.models)
        self.tokens = TokenMetrics(self.facts.slo, self.facts.live)
        self.followers: list[Observer] = [self.lower, self.hits, self.tokens]
        self._shares: TenantMetrics | None = None
        self._files: InputFiles | None = None
        self.gpus_on: GpusOnRules | None = None

    def hold_to_rules(self, config: Source | None, requests: Source | None) -> None:
        """The level's rules, and the files that the run is said to be of."""
        rules = None if self.facts.simulate else StartRules(self.header, self.facts, self.faults)
        if self.facts.gpus_over_time is not None:
            self.gpus_on = GpusOnRules(self.facts.gpus_over_time, len(self.header.pool), rules, self.faults)
            self.followers.append(self.gpus_on)
        if self.facts.live:
            self.followers.append(LiveRules(self.header, rules, self.faults))
        if rules is None:
            self.notes.append("prices and run times were not checked: they were measured, not computed")
        else:
            self.followers.append(rules)
        if self.facts.tenancy is not None:
            self._shares = TenantMetrics(self.header.build_graphs(), self.facts.models, self.facts.tenancy)
            self.followers += [TenantRules(self.header, self.facts, self.facts.tenancy, self.faults), self._shares]
        self.followers.append(GrowthCheck(self.header, self.facts, self.faults))
        if config is not None:
            self._files = InputFiles(self.header, self.facts, self.faults, config, requests)
            self.followers.append(self._files)

    def follow(self, steps: Steps, reader: Reader | None = None) -> tuple[Figures, Bounds]:
        check = Check(self.header, self.faults, self.followers, self.facts.exact, bounds_hold=False)
        for n, t, events in whole_steps(steps) if self.facts.live else steps:
            check.step(n, t, events)
        torn = reader is not None and reader.torn
        if torn and self.facts.live:
            self.notes.append("its last line is torn: the service was killed there")
        figures = check.finish(torn and not self.facts.live, may_go_on=self.facts.live)
        total = self.facts.requests.total if not self.faults.interrupted else None
        if total is not None and total != figures.arrived + self.facts.skipped:
            found = f"found {figures.arrived} arrivals and {self.facts.skipped} skipped, expected {total}"
            self.faults.add("requests", "", found)
        if self._files is not None:
            if not self.faults.interrupted:
                self._files.finish()
            self.notes += self._files.notes
        return figures, self.lower.finish(figures, self.notes)

    def summary(self, figures: Figures, bounds: Bounds) -> dict[str, Any]:
        """What the run should claim of itself."""
        more = self.hits.figures() | self.tokens.figures(figures.makespan_s)
        expected = summary(self.header, figures, bounds, self.facts.skipped, more)
        return expected | (tenant_summary(self._shares.figures()) if self._shares is not None else {})

    def report(self, kind: str, figures: Figures, bounds: Bounds) -> Report:
        below = {"bound_makespan_s": bounds.makespan_s, "bound_mean_s": bounds.mean_s, "bound_p99_s": bounds.p99_s}
        return Report.of(str(self.path), kind, self.faults, self.notes, recount(figures) | below)
