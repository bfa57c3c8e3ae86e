"""The requests of a file for a live run: with what they bring along, and checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.workflow.inputs.request_entries import RequestEntry
from dovetail.workflow.live.data_flow import DataFlow, data_flows
from dovetail.workflow.live.estimates import TokenEstimator
from dovetail.workflow.live.protocol import BackEndError
from dovetail.workflow.live.run_data import RunData, call_options
from dovetail.workflow.problem import WorkflowProblem

SHOWN = 20  # requests that cannot run, told at once


class FileRequests:
    """The requests of a problem, each with what its file gives it, checked before anything runs."""

    def __init__(self, problem: WorkflowProblem, most_mib: float) -> None:
        self.flows: dict[str, DataFlow] = data_flows(problem.system)
        self._most_mib, self._estimator = most_mib, TokenEstimator(problem.system)
        self._entries = {entry.request_id: entry for entry in problem.requests.entries()}
        self.arrivals: list[tuple[float, Arrived]] = []
        self.notes, self.skipped = problem.requests.skipped, problem.requests.skipped_count
        faults: list[str] = []
        on_error = problem.source.on_error
        for at_s, request in problem.requests.arrivals():
            if not request.fault and (why := self._fault(request)) is not None:
                if on_error == "fail":
                    faults.append(f"{problem.requests.path}: request {request.job!r}: {why}")
                    continue
                if on_error == "skip":
                    self.notes = [*self.notes, f"{problem.requests.path}: request {request.job!r}: {why}"]
                    self.skipped += 1
                    continue
                request = Arrived(request.job, request.of, fault=why)
            self.arrivals.append((at_s, request))
        if faults:
            more = f"\n... and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise InputError("\n".join(faults[:SHOWN]) + more)

    def __len__(self) -> int:
        return len(self.arrivals)

    def _fault(self, request: Arrived) -> str | None:
        try:
            self._estimator.arrived(self.data(request))
        except (InputError, BackEndError) as error:
            return str(error)
        return None

    def data(self, request: Arrived, **more: Any) -> RunData:
        """What a request brings along."""
        entry = self._entries[request.job]
        given, options = _given(entry), call_options(entry)
        return RunData(request.job, self.flows[request.of], given, options, most_mib=self._most_mib, **more)


def _given(entry: RequestEntry) -> Mapping[str, Any]:
    given = entry.input_data if entry.input_data is not None else {}
    if not isinstance(given, Mapping):
        raise InputError(f"input_data: expected names and values, found {given!r}")
    return given
