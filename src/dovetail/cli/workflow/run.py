"""`dovetail workflow run`: simulate, or call models with --live; with the outputs that were asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, Pairs, folder_for, pairs, print_json, progress
from dovetail.cli.complete import policies_of
from dovetail.cli.workflow.flags import INPUTS, NOT_LIVE, InputFlags, LiveFlags
from dovetail.core.errors import InputError, cannot_write
from dovetail.core.files.output import refuse_overwrite
from dovetail.workflow import DEFAULT_POLICY, DEFAULT_RETRIES, REQUEST_LINES

if TYPE_CHECKING:
    from dovetail.workflow import WorkflowProblem, WorkflowRun

Output = Literal["journal", "log", "executions", "results"]


def run(
    *,
    gpus: str | None = None,
    simulate: str = "false",
    live: LiveFlags = NOT_LIVE,
    inputs: InputFlags = INPUTS,
    policy: Annotated[str, policies_of("workflow")] = DEFAULT_POLICY,
    option: Pairs | None = None,
    out: Path = Path(),
    write: Annotated[tuple[Output, ...] | None, Parameter(consume_multiple=True, negative=())] = None,
    resume: Flag = False,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = DEFAULT_RETRIES,
    gpus_per_server: int = 8,
    verbose: Annotated[bool, Parameter(alias="-v", negative=())] = False,
    log_lines: int | None = None,
    quiet: Annotated[bool, Parameter(alias="-q", negative=())] = False,
    format: Format = "table",
) -> int:
    """Simulate a file of requests under a policy, or with --live run it for real.

    Writes POLICY_scheduler.log, POLICY_execution_log.json and POLICY_journal.jsonl; of a live run also the outputs,
    POLICY_results.jsonl. Exit code 3 if requests were rejected.

    Example: dovetail workflow run --gpus 4 --config system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    gpus
        How many GPUs, or how many of each type: 4, or a100:2,l4:4 with gpu_types in the configuration.
    simulate
        true: call models, as --live does (its older name); false: use the durations in the files.
    policy
        Who decides; `dovetail workflow policies` lists them.
    option
        Options of the policy: --option objective=mean.
    out
        Folder for the results.
    write
        Which results to write: all, unless some are named.
    resume
        Go on with an interrupted run's journal, after proving that what it holds is this run.
    seed
        For noise, for what nodes add (then:) and for injected failures.
    failure_rate
        Chance that an attempt at a node fails.
    retries
        How often a failed node is tried again.
    gpus_per_server
        GPUs that share a host (and its memory).
    verbose
        Print the first 1,000 lines of the log too; the file has them all.
    log_lines
        Print so many of them.
    quiet
        Print only the figures, without progress.
    format
        table: the figures for people; json: for programs.
    """
    if simulate.lower() not in ("true", "false"):
        raise InputError(f"--simulate {simulate}: expected true or false")
    if log_lines is None:
        log_lines = 1000 if verbose and not quiet else 0
    if log_lines < 0:
        raise InputError(f"--log-lines {log_lines}: expected 0 or more")
    is_live = live.live or simulate.lower() == "true"
    if not is_live:
        live.refuse()
    elif live.url is not None:
        own = {"gpus": gpus, "policy": policy != DEFAULT_POLICY, "option": option, "write": write}
        _refuse(own, "the service's own with --url")
        return _send(live, inputs, out / "service_results.jsonl", format)
    chosen = write if write is not None else [kind for kind in _FILES if is_live or kind != "results"]
    if resume and "journal" not in chosen:
        raise InputError("--resume goes on with a journal: let --write name it")
    if "results" in chosen and not is_live:
        raise InputError("--write results: only with --live are there outputs to write")
    named = policy.rpartition(":")[2]  # of FILE.py:NAME
    paths = {kind: out / _FILES[kind].format(named) for kind in dict.fromkeys(chosen)}
    refuse_overwrite([*paths.values()], inputs.files, REQUEST_LINES)
    simulated = {"seed": seed, "failure_rate": failure_rate, "resume": resume}
    if is_live:
        _refuse(simulated, "for simulated runs, not for --live")
    problem = inputs.load(gpus, gpus_per_server=gpus_per_server)
    shown = format == "table" and log_lines > 0
    logs = {kind: path for kind, path in paths.items() if kind in ("log", "executions")}
    carried_out = partial(_run_live, live, paths.get("results")) if is_live else partial(_simulate, simulated)
    doing, silent = "running" if is_live else "simulating", {"lines_s": None} if quiet else {}
    with folder_for(out), progress(doing, len(problem.requests), **silent) as done:
        found = carried_out(
            problem,
            policy,
            options=pairs("--option", option),
            retries=retries,
            journal=paths.get("journal", None if logs or shown else False),
            progress=done,
            observers=[_Forget(logs.values())],
        )
    from dovetail.workflow import write_logs

    if logs or shown:
        write_logs(found, **logs, console=sys.stdout if shown else None, console_lines=log_lines)
    if format == "json":
        print_json(found.metrics)
    else:
        print(found.text(), end="\n\n")
        for kind, path in paths.items():
            print(f"{_TITLES[kind]} written to {path}")
    if getattr(found, "interrupted", False):
        print(f"error: {found.notes[-1]}", file=sys.stderr)
        return 130
    return 3 if found.metrics["rejected"] else 0


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise InputError(f"--{name.replace('_', '-')} is {why}")


def _send(live: LiveFlags, inputs: InputFlags, results: Path, format: Format) -> int:
    """The requests of a file to a running service, with all that they bring along."""
    from dovetail.cli.workflow.replay import show
    from dovetail.workflow import replay

    refuse_overwrite([results], inputs.files, REQUEST_LINES)
    with folder_for(results.parent), progress("running") as done:
        found = replay(
            inputs.requests,
            live.url,
            token_file=live.token_file,
            of="requests",
            speed=live.speed if inputs.mode == "online" else inf,
            results=results,
            answers=True,
            progress=done,
        )
    return show(found.metrics, found.interrupted, results, format)


def _simulate(simulated: dict[str, Any], problem: WorkflowProblem, policy: str, **how: Any) -> WorkflowRun:
    from dovetail.workflow import run as simulate

    return simulate(problem, policy, **simulated, **how)


def _run_live(live: LiveFlags, results: Path | None, problem: WorkflowProblem, policy: str, **how: Any) -> WorkflowRun:
    from dovetail.workflow import run_live

    where: dict[str, Any] = {"engine": live.engine, "address": live.address, "device": live.device, "speed": live.speed}
    notice = partial(print, file=sys.stderr, flush=True)
    return run_live(problem, policy, results=results, notice=notice, **where, **how)


_FILES: dict[Output, str] = {
    "journal": "{}_journal.jsonl",
    "log": "{}_scheduler.log",
    "executions": "{}_execution_log.json",
    "results": "{}_results.jsonl",
}
_TITLES: dict[Output, str] = {
    "journal": "Journal",
    "log": "Text log",
    "executions": "Detailed execution log",
    "results": "Outputs",
}


class _Forget:
    """Removes the logs of an earlier run once this one goes: they would not belong to its journal."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        while self._paths:
            path = self._paths.pop()
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(path, error) from error
