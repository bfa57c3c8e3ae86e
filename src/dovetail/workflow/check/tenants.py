"""Whether tenants got what they were promised: quotas, bounded queues and turns, recounted from the journal alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.events import Arrived, Asked, Reject, Start
from dovetail.core.findings import Findings
from dovetail.core.journal import Header
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.inputs.tenants import EVERYBODY, NOBODY, Tenancy
from dovetail.workflow.tenants.ledger import TenantLedger, TenantState

_SLACK_S = 1e-6
_SLACK_GPUS = 1e-6


class TenantRules:
    """Holds every rejection, every start and every turn against the rules of the header's tenants."""

    def __init__(self, header: Header, facts: WorkflowFacts, tenancy: Tenancy, faults: Findings) -> None:
        self._faults = faults
        self._tenancy = tenancy
        self._ledger = TenantLedger(header.build_graphs(), facts.models, tenancy)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._admissions(events)
        for members in self._ledger.starts(t, events):
            if not members[0].devices:
                continue
            self._quotas(members)
            if self._tenancy.tenants:
                self._turn(members)

    # --- admission --------------------------------------------------------------------------------

    def _admissions(self, events: Sequence[Any]) -> None:
        """In the order of arrival: one that was admitted waits, unless it was refused or began within the step, on no
        GPU; starts on GPUs come after all arrivals."""
        rejected = {event.job: event for event in events if type(event) is Reject}
        begun = {event.job for event in events if type(event) is Start and not event.devices}
        waiting = {name: len(state.waiting) for name, state in self._ledger.tenants.items()}
        everybody, limit = sum(waiting.values()), self._tenancy.sharing.max_queue
        for event in events:
            if type(event) is Asked and event.what == "cancel" and (whose := self._ledger.waits_for(event.job)):
                waiting[whose], everybody = waiting[whose] - 1, everybody - 1
            if type(event) is not Arrived or event.fault:
                continue
            tenant, found = event.facts.get("tenant", NOBODY), rejected.get(event.job)
            before, expected = waiting.get(tenant, 0), ""
            if before >= self._ledger.state(tenant).max_queue:
                expected = tenant
            elif limit is not None and everybody >= limit:
                expected = EVERYBODY
            queue = found.queue if found is not None else ""
            if queue != expected:
                count = f"{before} requests of {tenant!r} and {everybody} of all waited"
                message = f"found {_verdict(queue)}, expected {_verdict(expected)}: {count}"
                self._faults.add("admission", event.job, message)
            elif not expected and found is None and event.job not in begun:
                waiting[tenant], everybody = before + 1, everybody + 1

    # --- quotas and turns -------------------------------------------------------------------------

    def _quotas(self, members: Sequence[Start]) -> None:
        counted: set[str] = set()  # a batch counts once
        for start in members:
            state = self._state(start)
            if state is None or state.name in counted:
                continue
            counted.add(state.name)
            held = state.held + state.ready.get((start.job, start.task), 0.0)
            if held > state.quota + _SLACK_GPUS:
                message = f"tenant {state.name!r} holds {held:g} GPUs with it, expected at most {state.quota:g}"
                self._faults.add("quota", f"{start.job}/{start.task}", message)

    def _state(self, start: Start) -> TenantState | None:
        job = self._ledger.jobs.get(start.job)
        return None if job is None else self._ledger.state(job.tenant)

    def _turn(self, members: Sequence[Start]) -> None:
        served_s, passed, who = self._ledger.served(), self._ledger.passed, f"{members[0].job}/{members[0].task}"
        rest = {name: at_s for name, at_s in served_s.items() if name not in passed}
        if not rest:
            if served_s:
                self._faults.add("turn", who, f"found {list(served_s)} passed, expected some of them to be left")
            return
        least, least_s = min(rest.items(), key=lambda item: (item[1], item[0]))
        for name in passed:
            if name in served_s and served_s[name] > least_s + _SLACK_S:
                found = f"{name!r}, served {served_s[name]:.3f} s, was passed before {least!r}, served {least_s:.3f} s"
                self._faults.add("turn", who, found)
        for start in members:
            state = self._state(start)
            if state is None or state.name in passed or state.name not in served_s:
                continue
            ahead_s = served_s[state.name] - least_s
            if ahead_s > self._tenancy.sharing.tolerance_s + _SLACK_S:
                ahead = f"tenant {state.name!r} was ahead of {least!r} by {ahead_s:.3f} s of service per weight"
                message = f"{ahead}, expected at most {self._tenancy.sharing.tolerance_s:g} s"
                self._faults.add("turn", f"{start.job}/{start.task}", message)


def _verdict(queue: str) -> str:
    return f"it turned away by the queue of {queue!r}" if queue else "it admitted"
