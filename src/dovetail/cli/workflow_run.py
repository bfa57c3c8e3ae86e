"""`dovetail workflow run`: simulate, with the outputs that were asked for."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, Pairs, make_folder, pairs, print_json, progress
from dovetail.core.errors import InputError, cannot_write
from dovetail.core.events import Complete, Reject
from dovetail.core.output import refuse_overwrite
from dovetail.workflow.choices import DEFAULT_POLICY, Compat, Mode, OnError
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.simulate import RunResult, make_policy
from dovetail.workflow.simulate import run as simulate_run

Output = Literal["journal", "log", "executions"]
CONFIG = Path("system_config.yaml")
REQUESTS = Path("workflow_requests.yaml")


def run(
    *,
    gpus: str | None = None,
    simulate: str = "false",
    mode: Mode = "offline",
    config: Path = CONFIG,
    requests: Path = REQUESTS,
    policy: str = DEFAULT_POLICY,
    option: Pairs | None = None,
    cost: Pairs | None = None,
    compat: Compat | None = None,
    on_error: OnError = "fail",
    out: Path = Path(),
    write: Annotated[tuple[Output, ...], Parameter(consume_multiple=True, negative=())] = (
        "journal",
        "log",
        "executions",
    ),
    resume: Flag = False,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = 2,
    rates: Path | None = None,
    gpus_per_server: int = 8,
    log_lines: int = 1000,
    quiet: Annotated[bool, Parameter(alias="-q", negative=())] = False,
    format: Format = "table",
) -> int:
    """Simulate a file of requests under a policy.

    Writes POLICY_scheduler.log, POLICY_execution_log.json and POLICY_journal.jsonl.

    Example: dovetail workflow run --gpus 4 --config system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    gpus
        How many GPUs, or how many of each type: 4, or a100:2,l4:4 with gpu_types in the configuration.
    simulate
        true would call real models, which this version cannot do; false uses the durations in the files.
    mode
        offline: everything arrives at time 0; online: by the timestamps.
    config
        Models, workflows, GPU types and costs: YAML or JSON, whatever the suffix.
    requests
        The requests: YAML, JSON, or JSON lines for large sets.
    policy
        Who decides; `dovetail workflow policies` lists them.
    option
        Options of the policy: --option patience=40.
    cost
        Cost rules over those of the configuration: --cost overlap=0.5 noise=0.1.
    compat
        gswarm: read faulty files, price switches and order events as that scheduler did, to compare numbers.
    on_error
        A request that cannot run: fail stops before anything runs; reject counts it as rejected; skip leaves it out.
    out
        Folder for the results.
    write
        Which results to write.
    resume
        Go on with an interrupted run's journal, after proving that what it holds is this run.
    seed
        For noise and injected failures.
    failure_rate
        Chance that an attempt at a node fails.
    retries
        How often a failed node is tried again.
    rates
        A rate table: measured speeds and switch times.
    gpus_per_server
        GPUs that share a host (and its memory).
    log_lines
        How many lines of the log to show; the file has them all.
    quiet
        Print no log, only the metrics.
    format
        table: log and metrics for people; json: the figures for programs.
    """
    if simulate.lower() not in ("true", "false"):
        raise InputError(f"--simulate {simulate}: expected true or false")
    if simulate.lower() == "true":
        raise InputError("--simulate true: calling real models is not part of this version; use --simulate false")
    if not 0 <= failure_rate < 1:
        raise InputError(f"--failure-rate {failure_rate}: expected 0 or more, and less than 1")
    for flag, number in (("--retries", retries), ("--log-lines", log_lines)):
        if number < 0:
            raise InputError(f"{flag} {number}: expected 0 or more")
    if resume and "journal" not in write:
        raise InputError("--resume goes on with a journal: let --write name it")
    options = pairs("--option", option)
    make_policy(policy, options, mode)  # a wrong name or option shows before anything is read or written
    refuse_overwrite([out / _FILES[kind].format(policy) for kind in dict.fromkeys(write)], [config, requests, rates])
    problem = WorkflowProblem.read(
        config,
        requests,
        gpus=gpus,
        mode=mode,
        on_error=on_error,
        compat=compat,
        costs=pairs("--cost", cost),
        rates=rates,
        gpus_per_server=gpus_per_server,
    )
    warn(problem)
    header = problem.header(policy, options, seed, retries=retries, failure_rate=failure_rate)
    talk = format == "table" and not quiet
    outcome, figures = _simulate(
        problem, header, options, out, write, resume, log_lines if talk else None, seed, failure_rate, retries
    )
    if format == "json":
        print_json(figures)
    else:
        _print_block(outcome, figures, problem)
        for kind in write:
            print(f"{_TITLES[kind]} written to {out / _FILES[kind].format(policy)}")
    return 3 if outcome.figures.rejected else 0


_FILES: dict[Output, str] = {
    "journal": "{}_journal.jsonl",
    "log": "{}_scheduler.log",
    "executions": "{}_execution_log.json",
}
_TITLES: dict[Output, str] = {
    "journal": "Journal",
    "log": "Text log",
    "executions": "Detailed execution log",
}


def _simulate(
    problem: WorkflowProblem,
    header: Any,
    options: dict[str, Any],
    out: Path,
    write: tuple[Output, ...],
    resume: bool,
    console_lines: int | None,
    seed: int,
    failure_rate: float,
    retries: int,
) -> tuple[RunResult, dict[str, Any]]:
    """Run with all outputs attached; what was written so far is closed and kept whatever happens."""
    from dovetail.core.journal import Writer
    from dovetail.workflow.compat.execution_log import ExecutionLog
    from dovetail.workflow.compat.text_log import TextLog
    from dovetail.workflow.metrics import RejectionReasons, summary

    make_folder(out)
    path = {kind: out / name.format(header.policy) for kind, name in _FILES.items()}
    rejections = RejectionReasons()
    observers: list[Any] = [rejections]
    with ExitStack() as stack:
        journal = stack.enter_context(Writer(path["journal"], header, resume)) if "journal" in write else None
        if journal is not None:
            observers.append(journal)
        log = None
        if "log" in write or console_lines is not None:
            target = path["log"] if "log" in write else Path("/dev/null")
            file = stack.enter_context(_open_text(target))
            log = TextLog(file, sys.stdout if console_lines is not None else None, console_lines)
            stack.callback(log.close)
            log.begin(header, len(problem.requests))
            observers.append(log)
        executions = None
        if "executions" in write:
            _remove(path["executions"])  # that of an earlier run would not belong to this journal
            executions = stack.enter_context(ExecutionLog(header, path["executions"]))
            observers.append(executions)
        with progress("simulating", len(problem.requests)) as done:
            if sys.stderr.isatty():
                observers.append(_Progress(done))
            outcome = simulate_run(
                problem,
                header.policy,
                options,
                seed=seed,
                failure_rate=failure_rate,
                retries=retries,
                observers=observers,
            )
        figures = summary(header, outcome.figures, outcome.bounds, problem.requests.skipped_count)
        if log is not None:
            log.end(outcome.end_s)
        if journal is not None:
            journal.end(outcome.steps + 1, outcome.end_s, figures)
        if executions is not None:
            executions.write(outcome.figures, outcome.bounds)
    return outcome, figures | {"rejections": rejections.reasons}


def _open_text(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


class _Progress:
    """Counts finished requests for the progress bar."""

    def __init__(self, done: Any) -> None:
        self._done = done
        self._count = 0

    def step(self, n: int, t: float, events: list[Any]) -> None:
        self._count += sum([type(event) is Complete or type(event) is Reject for event in events])
        if n % 1024 == 0:
            self._done(self._count)


def _print_block(outcome: RunResult, figures: dict[str, Any], problem: WorkflowProblem) -> None:
    from dovetail.workflow.metrics import metrics_block

    print(metrics_block(outcome.figures, outcome.bounds, figures["rejections"], problem.requests.skipped_count))
    print()


def warn(problem: WorkflowProblem) -> None:
    for text, times in problem.requests.warnings.items():
        print(f"warning: {problem.requests.path}: {text} ({times} requests)", file=sys.stderr)
    for text in problem.requests.skipped:
        print(f"skipped: {text}", file=sys.stderr)
