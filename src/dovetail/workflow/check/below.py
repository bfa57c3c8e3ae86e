"""Whether a figure of a run is below what any schedule can reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.events import Arrived
from dovetail.core.findings import Findings, check_bounds
from dovetail.core.journal import Ended, Header
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.bounds import Bounds, bounds_for
from dovetail.workflow.facts import WorkflowFacts


class LowerBounds:
    """Holds the figures of a run against its lower bounds, and keeps what the run claims of itself."""

    def __init__(self, header: Header, facts: WorkflowFacts, faults: Findings, free_setups: bool = False) -> None:
        self._faults = faults
        self._graphs = header.build_graphs()
        self._bounds = bounds_for(
            header.pool, self._graphs, facts.models, facts.costs, facts.table, free_setups, facts.later, facts.void
        )
        self.void = self._bounds.void or ("" if facts.exact else "run times are not exact")
        self.claimed: dict[str, Any] | None = None

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._bounds.step(n, t, [event for event in events if type(event) is not Arrived or self._counts(event)])
        for event in events:
            if isinstance(event, Ended):
                self.claimed = event.summary

    def _counts(self, event: Arrived) -> bool:
        graph = self._graphs.get(event.of)
        return graph is not None and len(event.sizes) == len(graph.tasks)

    def finish(self, figures: Figures, notes: list[str]) -> Bounds:
        bounds = self._bounds.result()
        if self.void:
            notes.append(f"bounds were not checked: {self.void}")
            return bounds
        if self._faults.interrupted:
            return bounds
        below = {"makespan_s": bounds.makespan_s, "mean_s": bounds.mean_s, "median_s": bounds.median_s}
        claims = {f"bound_{name}": bound for name, bound in (below | {"p99_s": bounds.p99_s}).items()}
        check_bounds(claims, recount(figures), self._faults)
        return bounds
