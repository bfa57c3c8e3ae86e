"""What a live run has come to, from what its journal is given: the claims that it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.journal import Header, Observer
from dovetail.core.metrics import Figures, Metrics
from dovetail.workflow.bounds import Bounds, bounds_for
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.prefixes import PrefixHits
from dovetail.workflow.metrics import TokenMetrics, summary
from dovetail.workflow.tenants.figures import TenantMetrics, tenant_summary


class LiveFigures:
    """Follows a live run from its first step; `summary` is for `Writer.end`. There are no bounds: models took as long
    as they did."""

    def __init__(self, header: Header, path: Path = Path("journal")) -> None:
        facts, graphs = WorkflowFacts.of(header, path), header.build_graphs()
        self._header = header
        self._void = bounds_for(header.pool, graphs, facts.models, facts.costs, facts.table, void=facts.void).result()
        self._metrics, self._skipped = Metrics(header.pool), facts.skipped
        self._hits, self._tokens = PrefixHits(facts.models), TokenMetrics(facts.slo, facts.live)
        self._shares = None if facts.tenancy is None else TenantMetrics(graphs, facts.models, facts.tenancy)
        self._followers: list[Observer] = [self._metrics, self._hits, self._tokens]
        if self._shares is not None:
            self._followers.append(self._shares)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for follower in self._followers:
            follower.step(n, t, events)

    @property
    def figures(self) -> Figures:
        return self._metrics.figures()

    @property
    def lower(self) -> Bounds:
        """Bounds that bound nothing."""
        return self._void

    def summary(self) -> dict[str, Any]:
        figures = self._metrics.figures()
        more = self._hits.figures() | self._tokens.figures(figures.makespan_s)
        found = summary(self._header, figures, self._void, self._skipped, more)
        return found if self._shares is None else found | tenant_summary(self._shares.figures())
