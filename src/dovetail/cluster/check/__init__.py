"""What must hold in the journal of a cluster run; it keeps its own accounts and trusts nothing that the run says.

A recorded lease must be on free devices of one type, as many as the job is wide, within the job's life; its steps must
be what its rate gives in its time, or what its processes reported; and a completed job must have done all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.cluster.check.leases import LeaseChecker
from dovetail.cluster.check.live import LiveLeaseChecker
from dovetail.cluster.check.live_accounts import LiveAccounts
from dovetail.cluster.check.live_rounds import LiveRounds
from dovetail.cluster.check.recount import BoundRecount, check_charts
from dovetail.cluster.header import ClusterFacts, facts_of, rules_of
from dovetail.cluster.metrics import ClusterMetrics, details_of, metrics_for, summary
from dovetail.cluster.rounding.schema import LARGEST, line_of, sound_steps
from dovetail.core.errors import InputError
from dovetail.core.findings import Findings, Report, check_bounds
from dovetail.core.journal import Ended, Reader, open_journal

__all__ = ["CODES", "LeaseChecker", "check_journal", "readable_steps"]

CODES = {
    "step": "a step that is missing, doubled or out of order",
    "time": "an instant before the one written ahead of it, or not a time; a round or a plan that is or is not due",
    "arrival": "a job that arrives twice, is of no known kind or entity, or to which something happens before",
    "device": "devices that do not exist, are down, drained or fail in this step, or are not all of the lease's type; "
    "devices that fail or are drained twice, or come back and were there",
    "width": "a job on more or fewer devices than it needs",
    "overlap": "a device held by two jobs that do not share it",
    "twice": "a job that runs in two places at a time",
    "finish": "an end of a lease that does not run, with another beginning or end, or for which there is no cause; a "
    "failure that ends other leases than those on its device",
    "reason": "a lease without a reason, or a round's lease where no round begins",
    "kind": "a lease as another model than the job's",
    "batch": "a batch that does not fit where it runs, or that the job did not ask for",
    "phase": "an end of a phase that was not reached, or was passed over",
    "price": "prices that are not those that the header lists for that time, or change when nothing tells of it",
    "restart": "a lease with another price of its start than a restart, or none for a job that was there",
    "used": "more accelerator time than there was",
    "steps": "steps that the lease's rate and time do not give",
    "missing": "a job called complete before it did all of its steps",
    "closed": "something about a job that was completed or rejected before",
    "running": "a lease still running at the end",
    "unclosed": "a job neither completed nor rejected",
    "end": "a run that did not end, or went on after its end",
    "epoch": "a lease, a plan or a process of another epoch than the job's next or last one",
    "progress": "a report of a job that never ran, of a process of an earlier epoch, or of less than was saved",
    "given_up": "a job given up too early, or not when its processes failed too often",
    "drained": "a lease that stays on a drained device when a round begins",
    "plan": "a round that is not the one that was planned, a plan out of its time or on what others keep",
    "spare": "a job kept ready that runs already, or for accelerators that do not exist",
    "policy": "a lease that the policy would not have begun",
    "summary": "a figure of the summary that differs from the recount",
    "bound": "a figure better than is possible",
}
_SUMMARIES = {
    "rounds": "the journal is a summary: it holds no leases",
    "gavel": "the run was by the older rules: its rounds hold no devices",
    "ideal": "the run was an ideal one: it has shares of time in the place of leases",
}
_OF_LEASES = ("utilization", "utilization_by_type", "total_cost", "leases")  # figures that a summary cannot give again


def checker_for(reader: Reader, faults: Findings) -> LeaseChecker:
    """What follows a recorded run, step by step."""
    facts, rules = facts_of(reader.header, reader.path), rules_of(reader.header, reader.path)
    if facts.clock != "live":
        return LeaseChecker(facts, faults, rules.free_moves)
    live = LiveAccounts(rules.failures, reader.header.policy, reader.header.options)
    return LiveLeaseChecker(facts, faults, live, LiveRounds(rules.round_s, rules.decide_at))


def readable_steps(reader: Reader, facts: ClusterFacts) -> Iterator[tuple[int, float, Sequence[Any]]]:
    """A recorded run for those who look up what its rows refer to; an error where that is not there."""
    checker = checker_for(reader, Findings())
    for n, t, events in sound_steps(reader, len(facts.types)):
        checker.step(n, t, events)
        if checker.unsound:
            line = line_of(reader, n)
            raise InputError(f"{reader.path}:{line}: {checker.unsound} (`dovetail check` finds more)")
        yield n, t, events


def check_journal(path: Path) -> Report:
    """Check a journal. One that is a summary has no leases: of it only arrivals, ends and figures are checked."""
    reader = open_journal(path)
    facts = facts_of(reader.header, path)
    rules = rules_of(reader.header, path)
    faults, notes = Findings(), []
    if rules.restart_s != facts.restart_s:
        faults.add("restart", "the header", f"facts say {facts.restart_s} s, the rules {rules.restart_s} s")
    checker, metrics = checker_for(reader, faults), metrics_for(facts)
    if facts.mode == "summary":
        notes.append(f"{_SUMMARIES[facts.clock]}, only arrivals, ends and their figures were checked")
    bound = BoundRecount(reader.header, facts, faults)
    claimed = _feed(reader, facts, checker, metrics, bound)
    for n, t, other_s in reader.odd:
        faults.add("time", f"step {n}", f"found one step at {t}, {other_s} s, expected one instant")
    checker.close(reader.header, reader.torn)
    if facts.prices is None and facts.clock != "live":
        notes.append("the header has no list of prices: they were not checked")
    found = summary(metrics)
    if checker.unsound:
        notes.append("records refer to what is not there: figures were computed up to them, and not compared")
    elif claimed is not None:
        brief = facts.mode == "summary"
        left_out = _OF_LEASES if brief and facts.clock != "ideal" else ()
        beside = {} if brief else {key: value for key, value in details_of(metrics).items() if key in claimed}
        for key, value in (found | beside).items():
            if key not in left_out and not _same(claimed.get(key), value):
                faults.add("summary", key, f"found {claimed.get(key)}, expected {value}")
        check_charts(claimed, metrics, brief, faults)
        bound.close()
        bounds = {key: value for key, value in found.items() if key.startswith("bound_")}
        check_bounds(bounds | {"bound_makespan_s": facts.bound_makespan_s}, found, faults)
        if reader.torn:
            faults.add("end", "", "a torn line follows the end of the run")
    counted = found | {"arrived": metrics.arrived, "tasks": found["leases"], "bound_makespan_s": facts.bound_makespan_s}
    return Report.of(str(path), "journal", faults, notes, counted)


def _feed(
    reader: Reader, facts: ClusterFacts, checker: LeaseChecker, metrics: ClusterMetrics, bound: BoundRecount
) -> dict[str, Any] | None:
    claimed = None
    for n, t, events in sound_steps(reader, len(facts.types)):
        checker.step(n, t, events)
        if not checker.unsound:
            metrics.step(n, t, events)
            bound.step(events)
        for event in events:
            if isinstance(event, Ended):
                claimed = event.summary
    return claimed


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(found, int | float) and abs(found) < LARGEST:
        return bool(np.isclose(found, expected, rtol=1e-9, atol=1e-9))
    return bool(found == expected)
