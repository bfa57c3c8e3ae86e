"""A recorded run in the formats that people's scripts know, from its journal: the text log and the execution log."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from dovetail.core.errors import InputError, cannot_write
from dovetail.core.journal import Observer, Reader
from dovetail.core.metrics import Metrics
from dovetail.workflow.bounds import bounds_for
from dovetail.workflow.compat.execution_log import ExecutionLog
from dovetail.workflow.compat.text_log import TextLog
from dovetail.workflow.facts import WorkflowFacts


def write_logs(
    journal: Path,
    *,
    log: Path | None = None,
    executions: Path | None = None,
    console: TextIO | None = None,
    console_lines: int | None = None,
) -> None:
    """Write the logs that are given a path; the console may get the first lines of the text log.

    Of a run that did not end there is a text log as far as the journal goes, and of its requests those that were
    completed or rejected.
    """
    reader = Reader(journal)
    header, facts = reader.header, WorkflowFacts.of(reader.header, journal)
    followers: list[Observer] = []
    with ExitStack() as stack:
        if log is not None or console is not None:
            text = TextLog(_open(log or Path("/dev/null"), stack), console, console_lines)
            stack.callback(text.close)
            text.begin(header, (facts.requests.total or 0) - facts.skipped)
            followers.append(text)
        if executions is not None:
            rows = stack.enter_context(ExecutionLog(header, executions))
            metrics = Metrics(header.pool)
            bounds = bounds_for(header.pool, header.build_graphs(), facts.models, facts.costs, facts.table)
            followers += [rows, metrics, bounds]
        for n, at_s, events in reader.steps():
            try:
                for follower in followers:
                    follower.step(n, at_s, events)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                where = f"{journal}: step {n} at {at_s} s cannot have happened ({type(error).__name__}: {error})"
                raise InputError(f"{where}; `dovetail check` tells more") from error
        if executions is not None:
            rows.write(metrics.figures(), bounds.result())


def _open(path: Path, stack: ExitStack) -> TextIO:
    try:
        return stack.enter_context(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise cannot_write(path, error) from error
