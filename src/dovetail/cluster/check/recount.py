"""What a header and a last line claim beside the figures, counted once more: the bound of the makespan, and charts."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from dovetail.cluster.bounds import fastest, parts_of
from dovetail.cluster.header import ClusterFacts, policy_of, setup_of
from dovetail.cluster.metrics import FAIRNESS, ClusterMetrics, charts
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows
from dovetail.core.findings import Findings
from dovetail.core.journal import Header
from dovetail.core.results.charts import KEY, as_fact

_SLACK = 1e-9  # of a figure, for sums in another order


class BoundRecount:
    """Counts the least makespan from the jobs that arrive. With a policy that is known by its name, from the rates of
    the header alone; else, and by the older clock, from the best rates that it claims, and then only in part."""

    def __init__(self, header: Header, facts: ClusterFacts, faults: Findings) -> None:
        self._facts, self._faults = facts, faults
        self._longest_s = self._work_s = 0.0
        self._begins_s = inf if facts.from_first_arrival else 0.0
        self._best: Floats | None = None if facts.fastest is None else np.array(facts.fastest)
        self._each: Floats | None = None
        self._packs = True
        in_a_file = ".py:" in header.policy  # whoever checks a journal does not run what it names
        if facts.clock in ("rounds", "ideal") and facts.fastest is not None and not in_a_file:
            try:
                policy = policy_of(header)
            except DovetailError:  # a policy of the user's own
                return
            self._packs = policy.packs
            self._best, self._each = fastest(setup_of(header), policy)
            if not np.allclose(self._best, facts.fastest, rtol=_SLACK, atol=0):
                faults.add("bound", "the header", f"found fastest {facts.fastest}, expected {self._best.tolist()}")

    def step(self, events: Sequence[object]) -> None:
        for event in events:
            if isinstance(event, Rows) and event.of == "arrived" and self._best is not None:
                self._see(event.columns, self._best)

    def _see(self, columns: dict[str, Any], best: Floats) -> None:
        phases = columns.get("phases") or [()] * len(columns["id"])
        self._begins_s = min(self._begins_s, *columns["at_s"])
        for kind, steps, at_s, changes in zip(columns["kind"], columns["steps"], columns["at_s"], phases, strict=True):
            parts = [each for each in parts_of(steps, kind, changes) if best[kind] > 0 and best[each[1]] > 0]
            ends_s = at_s - self._begins_s + sum(part / float(best[of]) for part, of in parts)
            self._longest_s = max(self._longest_s, ends_s)
            if self._each is not None:
                self._work_s += sum(part / float(self._each[of]) for part, of in parts)

    def close(self) -> None:
        """The run is over: a bound must be the one that was counted; one of 0 claims nothing."""
        claimed_s = self._facts.bound_makespan_s
        if not claimed_s or self._best is None:
            return
        least_s = self._longest_s
        if not self._packs:
            least_s = max(least_s, self._work_s / max(sum(self._facts.counts), 1))
        slack_s = _SLACK * max(least_s, 1.0)
        if claimed_s < least_s - slack_s or (self._each is not None and claimed_s > least_s + slack_s):
            self._faults.add("bound", "the header", f"found bound_makespan_s {claimed_s}, expected {least_s}")


def check_charts(claimed: dict[str, Any], metrics: ClusterMetrics, brief: bool, faults: Findings) -> None:
    """Compare the charts of the last line, where it has some; of a summary the one that needs no leases."""
    if KEY not in claimed:
        return
    expected, found = as_fact(charts(metrics)).get(KEY, []), claimed[KEY]
    if brief:
        expected, found = (_of_ends(each) for each in (expected, found))
    if not _alike(found, expected):
        faults.add("summary", KEY, "found other points than the recount gives")


def _of_ends(found: object) -> list[object]:
    titled = found if isinstance(found, list) else []
    return [chart for chart in titled if isinstance(chart, dict) and chart.get("title") == FAIRNESS]


def _alike(found: object, expected: object) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(_alike(found[key], expected[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_alike, found, expected))
    if isinstance(expected, float) and isinstance(found, int | float):
        return bool(np.isclose(found, expected, rtol=_SLACK, atol=_SLACK))
    return bool(found == expected)
