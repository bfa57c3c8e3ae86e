"""What operators see of a live service: figures for Prometheus, and a line of JSON for each end and each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dovetail.core.events import Failed, Observed, Prepare, PrepareEnded, Settled, Start
from dovetail.core.journal.preloads import Preloads
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.prometheus import PrometheusText
from dovetail.workflow.capacity import GONE, GONE_BEFORE
from dovetail.workflow.live.progress import LiveRun
from dovetail.workflow.live.runs import ENDED

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_DECISION = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2)


class Telemetry:
    """Counts what steps tell, and what happens beside them."""

    def __init__(self, log: LogLines) -> None:
        self.log = log
        self.figures = figures = PrometheusText("dovetail_workflow_")
        self.accepted = figures.counter("accepted_total", "Requests that were accepted.")
        self.refused = figures.counter("refused_total", "Requests that were turned away at the door, by reason.")
        self.ended = figures.counter("runs_total", "Runs that ended, by workflow and state.")
        self.queue = figures.gauge("queue", "Requests of which nothing has started, by tenant.")
        self.open = figures.gauge("open_runs", "Runs that have not ended, by state.")
        self.waiting_nodes = figures.gauge("waiting_nodes", "Nodes of open runs that wait, by model.")
        self.running_nodes = figures.gauge("running_nodes", "Nodes that run, by model.")
        self.resident = figures.gauge("resident", "1 where a model is loaded on a GPU.")
        self.ttft = figures.histogram("ttft_seconds", "From acceptance to the first token.", _SECONDS)
        self.response = figures.histogram("response_seconds", "From acceptance to completion.", _SECONDS)
        self.waited = figures.histogram("wait_seconds", "From acceptance to the first start.", _SECONDS)
        self.tokens = figures.counter("tokens_total", "Tokens read and written, by model.")
        self.starts = figures.counter("starts_total", "Nodes that were started, by model.")
        self.loads = figures.counter("loads_total", "Models that were loaded, by model.")
        self.switches = figures.counter("switches_total", "Starts that replaced another model.")
        self.preloads = figures.counter("preloads_total", "Loads ahead of need, by model.")
        self.preloads_used = figures.counter("preloads_used_total", "Of these, those that a start found.")
        self.failures = figures.counter("failed_attempts_total", "Attempts at nodes that failed.")
        self.lost = figures.counter("worker_losses_total", "Workers that died or were ended.")
        self.decisions = figures.histogram("decision_seconds", "Time that one decision took.", _DECISION)
        self.steps = figures.counter("journal_steps_total", "Steps that were written to the journal.")
        for family in (self.switches, self.failures, self.lost, self.steps):
            family.add(0)  # there from the start: a rate sees the first one
        self._model_of: dict[tuple[str, str], str] = {}
        self._ahead: Preloads[Prepare] = Preloads()

    def expect(self, models: Iterable[str], workflows: Iterable[str]) -> None:
        """What may be counted is there from the start, as 0."""
        for model in models:
            self.starts.add(0, model=model)
            self.loads.add(0, model=model)
            self.preloads.add(0, model=model)
            self.preloads_used.add(0, model=model)
        for workflow in workflows:
            self.accepted.add(0, workflow=workflow)
            for state in sorted(ENDED):
                self.ended.add(0, workflow=workflow, state=state)
        for reason in ("busy", "draining", "no room"):
            self.refused.add(0, reason=reason)

    def step(self, events: Sequence[Any], now: float, run_of: Callable[[str], LiveRun | None]) -> None:
        """Count a step before the runs follow it."""
        self.steps.add()
        for event in events:
            if type(event) is Start:
                self.starts.add(model=event.kind)
                self._model_of[event.job, event.task] = event.kind
                if event.replaces is not None:
                    self.switches.add()
                if (found := self._ahead.find(event)) is not None:
                    self.preloads_used.add(int(found.used), model=event.kind)
                run = run_of(event.job)
                if run is not None and run.started_s is None:
                    self.waited.observe(now - run.record.arrived_s)
            elif type(event) is Settled:
                self.loads.add(model=self._model_of.get((event.job, event.task), ""))
            elif type(event) is Prepare or type(event) is PrepareEnded:
                self._preload(event)
            elif type(event) is Failed:
                self.failures.add()
                self._fault(event, run_of(event.job))
            elif type(event) is Observed:
                self._observe(event, now, run_of)

    def _preload(self, event: Prepare | PrepareEnded) -> None:
        if isinstance(event, Prepare):
            self.preloads.add(model=event.kind)
            self.switches.add(int(event.replaces is not None))
            self._ahead.begin(event, event)
        elif (ended := self._ahead.end(event)) is not None and not ended[1]:  # else it is told with the start's own
            order, _ = ended
            if event.why:
                self.log.write("preload failed", model=order.kind, gpus=list(order.devices), why=event.why)
            else:
                self.loads.add(model=order.kind)

    def _observe(self, event: Observed, now: float, run_of: Callable[[str], LiveRun | None]) -> None:
        facts = event.facts
        run = run_of(facts.get("job", ""))
        if event.what == "first token" and run is not None and run.first_token_s is None:
            self.ttft.observe(now - run.record.arrived_s, workflow=run.record.workflow)
        elif event.what == "tokens":
            model = self._model_of.get((facts.get("job", ""), facts.get("task", "")), "")
            self.tokens.add(facts.get("input") or 0, model=model, direction="read")
            self.tokens.add(facts.get("output") or 0, model=model, direction="written")
        elif event.what in ("emptied", "gone", "back"):
            if event.what == GONE and facts.get("why") != GONE_BEFORE:
                self.lost.add(len(facts.get("gpus") or ()))
            self.log.write(event.what, gpus=facts.get("gpus"), why=facts.get("why"))

    def _fault(self, event: Failed, run: LiveRun | None) -> None:
        self.log.write(
            "node failed",
            run=event.job,
            node=event.task,
            why=event.why,
            lost=getattr(event, "lost", False) or None,
            trace_id=run.record.trace_id if run is not None else None,
        )

    def end(self, run: LiveRun) -> None:
        """A run has ended."""
        record = run.record
        assert run.ended_s is not None
        response_s = run.ended_s - record.arrived_s
        self.ended.add(workflow=record.workflow, state=run.state)
        if run.state == "completed":
            self.response.observe(response_s, workflow=record.workflow)
        for node in run.nodes:
            self._model_of.pop((record.id, node), None)
        self.log.write(
            "run ended",
            run=record.id,
            workflow=record.workflow,
            state=run.state,
            tenant=record.tenant,
            waited_s=None if run.started_s is None else round(run.started_s - record.arrived_s, 6),
            response_s=round(response_s, 6),
            error=run.error,
            trace_id=record.trace_id,
        )
