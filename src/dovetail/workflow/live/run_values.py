"""The values of open runs: what their nodes are called with, what they gave, and what that adds. For any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.core.errors import InputError
from dovetail.core.events import Failed, Finished, Grew
from dovetail.core.service.store import StoreError
from dovetail.workflow.inputs.system import System
from dovetail.workflow.live.book import LARGE, NodeOutput, RunBook
from dovetail.workflow.live.data_flow import DataFlow
from dovetail.workflow.live.estimates import TokenEstimator
from dovetail.workflow.live.protocol import Answer, BackEndError, Reference
from dovetail.workflow.live.references import NOTHING, Brought, EngineReferences, found_in, references_in
from dovetail.workflow.live.run_data import RunData
from dovetail.workflow.live.runs import RunRequest
from dovetail.workflow.live.values import fetched
from dovetail.workflow.live.wire import pack


class RunValues:
    """Outputs of a node are noted when they come, and taken out with the step that tells of its end."""

    def __init__(self, system: System, flows: Mapping[str, DataFlow], book: RunBook, most_mib: float) -> None:
        self.flows, self._most_mib = flows, most_mib
        self.references: EngineReferences | None = None
        self._book, self._estimator = book, TokenEstimator(system)
        self._lock = threading.Lock()
        self._data: dict[str, RunData] = {}
        self._brought: Brought = {}  # for who has the lock
        self._pending: dict[tuple[str, str], NodeOutput] = {}

    def expected(self, run: str, request: RunRequest) -> tuple[tuple[float, ...], dict[str, Any]]:
        """Seconds of each node, and the facts of the arrival; what the workflow lacks is an error."""
        flow = self.flows[request.workflow]
        with self._lock:
            try:
                size, most = self._estimator.size_s, self._most_mib
                data = RunData(run, flow, request.input, request.options, size=size, most_mib=most)
                sizes, tokens = self._estimator.arrived(data)
            except BackEndError as error:
                raise InputError(f"input: {error}") from None
        known: dict[str, Any] = {"tokens": tokens, "tenant": request.tenant}
        return sizes, {name: fact for name, fact in known.items() if fact}

    def call(self, job: str, task: str, brought: Brought = NOTHING) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and options of a node's call."""
        with self._lock, self._with(brought):
            return self._data_of(job).call(task)

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> Grew | None:
        """Note what a node gave; what that adds to its run."""
        with self._lock, self._with(brought):
            data = self._data_of(job)
            outputs, grew = data.ended(task, answer.outputs)
            stays = list(references_in(outputs))
            if self.references is not None:
                self.references.hold(job, stays)
            self._estimator.answered(data, task, answer.read, answer.written)
            seq = self._book.next_seq
            self._book.next_seq += 1
        output = NodeOutput(
            seq=seq,
            data=pack(outputs),
            elsewhere=sum(reference.bytes for reference in stays),
            grew=grew,
            read=answer.read,
            written=answer.written,
            finish_reason=answer.finish_reason,
        )
        with suppress(StoreError):  # then it is kept with its step
            if len(output.data) > LARGE:  # so that nobody waits for it there
                self._book.keep({(job, task): output}, {})
                return grew
        with self._lock:
            self._pending[job, task] = output
        return grew

    @contextmanager
    def _with(self, brought: Brought) -> Iterator[None]:
        self._brought = brought
        try:
            yield
        finally:
            self._brought = {}

    def _fetch(self, reference: Reference) -> Any:
        return found_in(self._brought, reference)

    def _data_of(self, job: str) -> RunData:
        found = self._data.get(job)
        if found is None:
            record = self._book.record(job)
            flow, given, size = self.flows[record.workflow], self._book.input(job), self._estimator.size_s
            most, fetch = self._most_mib, self._fetch
            found = RunData(job, flow, given, record.options, size=size, fetch=fetch, most_mib=most)
            for node, output in self._book.outputs(job).items():
                found.recall(node, output.values, output.grew)
            self._data[job] = found
        return found

    def take(self, events: Sequence[Any]) -> dict[tuple[str, str], NodeOutput]:
        """The outputs of the nodes that have finished in a step; those of others whose call ended are void."""
        with self._lock:
            ends = [event for event in events if isinstance(event, Finished | Failed)]
            found = [(event, self._pending.pop((event.job, event.task), None)) for event in ends]
        return {(e.job, e.task): output for e, output in found if output is not None and isinstance(e, Finished)}

    def forget(self, run: str) -> None:
        """A run has ended."""
        with self._lock:
            self._data.pop(run, None)

    def shown(self, output: NodeOutput) -> dict[str, Any]:
        """What a node gave, with what is kept elsewhere."""
        if self.references is None:
            return output.values
        return {name: fetched(value, self.references.fetch) for name, value in output.values.items()}

    def answering(self, workflow: str, outputs: Mapping[str, NodeOutput]) -> str | None:
        """The node whose outputs are the run's answer: the workflow's last, or of what was added the last that nothing
        follows."""
        flow = self.flows.get(workflow)
        if flow is None:
            return None
        grown = [output.grew.edges for output in outputs.values() if output.grew is not None]
        followed = {source for edges in grown for source, _ in edges}
        followed |= {flow.graph.tasks[i].name for i, after in enumerate(flow.graph.before) if after}
        last = [node for node in outputs if node not in followed]
        return flow.answer if flow.answer in last else last[-1] if last else None

    def forget_references(self) -> bool:
        """Values that stayed in an engine's store are gone with it: what gave them has not finished. Were there any?"""
        found = False
        for run in self._book.open():
            outputs = self._book.outputs(run)
            lost = [node for node, output in outputs.items() if any(references_in(output.values))]
            self._book.forget_outputs(run, lost)
            found = found or bool(lost)
        return found
