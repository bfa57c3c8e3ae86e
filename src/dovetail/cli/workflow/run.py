"""`dovetail workflow run`: simulate, with the outputs that were asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, Pairs, folder_for, pairs, print_json, progress
from dovetail.cli.workflow.flags import INPUTS, InputFlags
from dovetail.core.errors import InputError, cannot_write
from dovetail.core.output import refuse_overwrite
from dovetail.workflow import DEFAULT_POLICY, DEFAULT_RETRIES

Output = Literal["journal", "log", "executions"]


def run(
    *,
    gpus: str | None = None,
    simulate: str = "false",
    inputs: InputFlags = INPUTS,
    policy: str = DEFAULT_POLICY,
    option: Pairs | None = None,
    out: Path = Path(),
    write: Annotated[tuple[Output, ...], Parameter(consume_multiple=True, negative=())] = (
        "journal",
        "log",
        "executions",
    ),
    resume: Flag = False,
    seed: int = 0,
    failure_rate: float = 0.0,
    retries: int = DEFAULT_RETRIES,
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
    policy
        Who decides; `dovetail workflow policies` lists them.
    option
        Options of the policy: --option objective=mean.
    out
        Folder for the results.
    write
        Which results to write.
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
    if log_lines < 0:
        raise InputError(f"--log-lines {log_lines}: expected 0 or more")
    if resume and "journal" not in write:
        raise InputError("--resume goes on with a journal: let --write name it")
    from dovetail.workflow import run as simulated
    from dovetail.workflow import write_logs

    named = policy.rpartition(":")[2]  # of FILE.py:NAME
    paths = {kind: out / _FILES[kind].format(named) for kind in dict.fromkeys(write)}
    logs = {kind: path for kind, path in paths.items() if kind != "journal"}
    refuse_overwrite([*paths.values()], inputs.files)
    problem = inputs.load(gpus, gpus_per_server=gpus_per_server)
    shown = format == "table" and not quiet
    with folder_for(out), progress("simulating", len(problem.requests)) as done:
        found = simulated(
            problem,
            policy,
            options=pairs("--option", option),
            seed=seed,
            failure_rate=failure_rate,
            retries=retries,
            journal=paths.get("journal", None if logs or shown else False),
            resume=resume,
            progress=done if sys.stderr.isatty() else None,
            observers=[_Forget(logs.values())],
        )
    if logs or shown:
        write_logs(found, **logs, console=sys.stdout if shown else None, console_lines=log_lines)
    if format == "json":
        print_json(found.metrics)
    else:
        print(found.text(), end="\n\n")
        for kind, path in paths.items():
            print(f"{_TITLES[kind]} written to {path}")
    return 3 if found.metrics["rejected"] else 0


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
