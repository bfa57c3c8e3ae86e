"""A recorded run in the formats that people's scripts know, from its journal: the text log and the execution log; and
its requests, to run them again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from dovetail.core.errors import InputError, cannot_write
from dovetail.core.events import Arrived, Grew
from dovetail.core.files.document import as_path
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.journal import Observer, Reader
from dovetail.core.metrics import Metrics
from dovetail.core.rates import RateTable
from dovetail.core.results.run import Run
from dovetail.workflow.bounds import bounds_for
from dovetail.workflow.choices import REQUEST_LINES
from dovetail.workflow.compat.execution_log import ExecutionLog
from dovetail.workflow.compat.heap_order import AsTaken
from dovetail.workflow.compat.text_log import TextLog
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.inputs.growth.request import recorded
from dovetail.workflow.inputs.write import file_format, write_requests
from dovetail.workflow.live.measured import LiveMeasurements


def write_logs(
    journal: str | os.PathLike[str] | Run,
    *,
    log: str | os.PathLike[str] | None = None,
    executions: str | os.PathLike[str] | None = None,
    requests: str | os.PathLike[str] | None = None,
    rates: str | os.PathLike[str] | None = None,
    console: TextIO | None = None,
    console_lines: int | None = None,
) -> None:
    """Write the logs of a recorded run that are given a path: the text log, a line per thing that happened, and the
    execution log, a row per node and request; also its requests, as `requests_of` gives them, and what a live run
    measured, as `rates_of` does. The console may get the first lines of the text log.

    Of a run that did not end there is a text log as far as the journal goes, and of its requests those that were
    completed or rejected.
    """
    place = journal.journal if isinstance(journal, Run) else as_path(journal, "journal")
    text_file = None if log is None else as_path(log, "log")
    rows_file = None if executions is None else as_path(executions, "executions")
    again_file = None if requests is None else as_path(requests, "requests")
    rates_file = None if rates is None else as_path(rates, "rates")
    outputs = [path for path in (text_file, rows_file, again_file, rates_file) if path is not None]
    refuse_overwrite(outputs, [place], REQUEST_LINES)
    if again_file is not None:
        write_requests(requests_of(place), again_file, file_format(again_file))
    if rates_file is not None:
        rates_of(place).write(rates_file)
    reader = Reader(place)
    header, facts = reader.header, WorkflowFacts.of(reader.header, place)
    followers: list[Observer] = []
    with ExitStack() as stack:
        if text_file is not None or console is not None:
            text = TextLog(_open(text_file or Path("/dev/null"), stack), console, console_lines)
            stack.callback(text.close)
            text.begin(header, (facts.requests.total or 0) - facts.skipped)
            followers.append(AsTaken(text) if facts.compat else text)
        if rows_file is not None:
            rows = stack.enter_context(ExecutionLog(header, rows_file))
            metrics = Metrics(header.pool)
            given = (header.pool, header.build_graphs(), facts.models, facts.costs, facts.table)
            bounds = bounds_for(*given, later=facts.later, void=facts.void)
            followers += [AsTaken(rows) if facts.compat else rows, metrics, bounds]
        for n, at_s, events in reader.steps():
            try:
                for follower in followers:
                    follower.step(n, at_s, events)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                where = f"{place}: step {n} at {at_s} s cannot have happened ({type(error).__name__}: {error})"
                raise InputError(f"{where}; `dovetail check` tells more") from error
        if rows_file is not None:
            rows.write(metrics.figures(), bounds.result())


def requests_of(journal: str | os.PathLike[str] | Run) -> list[dict[str, Any]]:
    """The requests of a recorded run as they stand in files, with what happened to them: how long their nodes take and
    what nodes added. With the same configuration they run again, on another pool or under another policy.

    Times are seconds at speed 1; tokens and prefixes are not told again. Faulty requests are left out. Of a live run
    times are what nodes really took, at the speeds that `rates_of` gives, and those of its requests are left out that
    were cancelled, given up or not closed: with both, the run is simulated as it was.

    >>> from dovetail import workflow
    >>> problem = workflow.load(workflow.agents_system(), workflow.generate(workflow.agents_system(), requests=20))
    >>> run = workflow.run(problem, seed=7)
    >>> again = workflow.load(workflow.agents_system(), workflow.requests_of(run))
    >>> workflow.run(again, seed=8).metrics["makespan_s"] == run.metrics["makespan_s"]
    True
    """
    place = journal.journal if isinstance(journal, Run) else as_path(journal, "journal")
    reader = Reader(place)
    facts, graphs = WorkflowFacts.of(reader.header, place), reader.header.build_graphs()
    measured = LiveMeasurements(reader) if facts.live else None
    arrived: dict[str, tuple[float, Arrived]] = {}
    grown: dict[str, dict[str, Grew]] = {}
    for _, t, event in reader:
        if isinstance(event, Arrived) and not event.fault and event.of in graphs:
            arrived[event.job] = (t, event)
        elif isinstance(event, Grew):
            grown.setdefault(event.job, {})[event.task] = event
    rows = []
    for job, (t, event) in arrived.items():
        graph = graphs[event.of]
        times = {task.name: size for task, size in zip(graph.tasks, event.sizes, strict=False)}
        if measured is not None:
            if not measured.is_told(job):
                continue
            times = {name: measured.size_s(job, name, size) for name, size in times.items()}
            grown[job] = measured.growth(job)
        row: dict[str, Any] = {"request_id": job, "workflow_id": event.of, "timestamp": t}
        if event.of in facts.growth:
            outcomes, sizes = recorded(job, facts.growth[event.of], graph, grown.get(job, {}))
            row["outcomes"] = outcomes
            times |= sizes
        row["node_execution_times"] = times
        more = {"deadline_seconds": event.due_s, "tenant": event.facts.get("tenant")}
        row |= {key: value for key, value in more.items() if value is not None}
        rows.append(row if event.weight == 1.0 else row | {"priority": event.weight})
    return rows


def rates_of(journal: str | os.PathLike[str] | Run) -> RateTable:
    """What a live run measured: how fast its models were on each type of GPU, alone and at once, relative to the sizes
    of `requests_of`, and what loads took. For `load(config, requests, rates=...)`, and for other levels."""
    return measurements(journal).table


def measurements(journal: str | os.PathLike[str] | Run) -> LiveMeasurements:
    """All that a live run measured, and what of it no simulation can tell (`left_out`)."""
    return LiveMeasurements(Reader(journal.journal if isinstance(journal, Run) else as_path(journal, "journal")))


def _open(path: Path, stack: ExitStack) -> TextIO:
    try:
        return stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise cannot_write(path, error) from error
