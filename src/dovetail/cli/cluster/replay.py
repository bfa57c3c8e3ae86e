"""`dovetail cluster replay`: the jobs of a trace, submitted to a live cluster at their times."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.cluster.jobs import Keeping
from dovetail.cli.cluster.place import PLACE, ClusterFlags
from dovetail.cli.common import Flag, Format, Pairs, pairs, print_json, print_table, progress, value
from dovetail.cli.complete import policies_of
from dovetail.cluster import Widths
from dovetail.core.errors import InputError, within


def replay(
    trace: Path,
    /,
    *,
    speed: float = 1.0,
    jobs: int | None = None,
    run_commands: Flag = False,
    folder: Path | None = None,
    data_dir: Path | None = None,
    flags: Literal["gavel", "none"] | None = None,
    checkpoint: Keeping | None = None,
    trace_format: str = "",
    widths: Widths | None = None,
    throughputs_file: Path | None = None,
    no_wait: Flag = False,
    types: str | None = None,
    policy: Annotated[str | None, policies_of("cluster")] = None,
    option: Pairs | None = None,
    round_s: Annotated[float | None, Parameter(name=["--round-s", "--round"])] = None,
    format: Format = "table",
    place: ClusterFlags = PLACE,
) -> int:
    """Submit the jobs of a trace to a live cluster at their times, and tell what became of them.

    Stand-ins are run, whose steps take as long as the throughputs say; with --run-commands the trace's own commands,
    without a shell and inside --folder: a path that leads out of it is refused. With --types a service of its own is
    started, and ends with the replay. The first Ctrl-C submits no more, the second cancels what is open. Exit code 3 if
    not all were completed. (`dovetail replay` decides a journal again.)

    Example: dovetail cluster replay jobs.csv --speed 3600 --types v100=2,k80=2 --round 5
    Example: dovetail cluster replay small.trace --run-commands --folder workloads --url http://127.0.0.1:8000

    Parameters
    ----------
    trace
        The file, of any format that `dovetail cluster import` knows.
    speed
        So many times as fast as it was: arrivals, and of stand-ins the work too.
    jobs
        Only the first so many.
    run_commands
        Run the commands of the trace.
    folder
        With --run-commands: the folder that their folders are in.
    data_dir
        With --run-commands: what %s in them stands for; by default `data` in the folder.
    flags
        With --run-commands: what is added to them: gavel, as Gavel's workers did, or none; by default by the format.
    checkpoint
        With --run-commands: how they survive the end of a turn, as `cluster submit` has it; by default by an iterator
        with Gavel's flags, else by checkpoints of their own.
    trace_format
        The trace's format, where it cannot be told from the file.
    widths
        What is done with widths that the throughputs do not have: error or guess.
    throughputs_file
        Steps per second of every job; without it, the built-in model's estimates.
    no_wait
        Do not wait for the jobs to end.
    types
        Start a service here with these emulated accelerators, as TYPE=COUNT,...
    policy
        Who decides there.
    option
        Options of the policy.
    round_s
        Seconds of a round there.
    format
        table or json.
    """
    from dovetail.cluster import check_replay, replay_trace, serve

    if not trace.is_file():
        raise InputError(f"{trace}: no such file")
    within("--speed", speed, "a positive number", 1e-9, optional=False)
    if run_commands and folder is None:
        raise InputError("--run-commands: expected --folder DIR, in which the commands are run, found none")
    work: dict[str, Any] = {
        "trace_format": trace_format,
        "widths": widths,
        "throughputs": throughputs_file,
        "speed": speed,
        "jobs": jobs,
        "run_commands": run_commands,
        "folder": folder,
        "data_dir": data_dir,
        "flags": flags,
        "checkpoint": checkpoint,
    }
    with ExitStack() as stack:
        if types is not None:
            if place.url is not None or place.token_file is not None or no_wait:
                raise InputError("--types: a service of its own has no --url or --token-file, and is waited for")
            check_replay(trace, types, **work)  # before all else
            state = place.state or Path(stack.enter_context(TemporaryDirectory(prefix="dovetail-")))
            options = {name: value(text) for name, text in pairs("--option", option).items()}
            served = serve(types=types, policy=policy, options=options or None, round_s=round_s, state=state)
            client = stack.enter_context(served).client()
        elif policy is not None or round_s is not None or option:
            raise InputError("--policy, --option, --round-s: are for a service of its own, with --types")
        else:
            client = place.connect()
        with progress("waiting for jobs to end", jobs) as done:
            found = replay_trace(trace, client, wait=not no_wait, progress=done, **work)
    told = found.metrics
    if format == "json":
        print_json(told | {"notes": found.notes, "jobs": found.jobs})
    else:
        print_table(
            ["what", "value"], [[name.replace("_", " "), each] for name, each in told.items() if name != "errors"]
        )
        for error, count in told.get("errors", {}).items():
            print(f"{count} times: {error}")
        for note in found.notes:
            print(f"note: {note}")
        if types is not None and place.state is not None:
            print(f"The journal is in {place.state / 'journals'}")
    if found.interrupted:
        print(f"error: interrupted: {told['not_submitted']} jobs were not submitted", file=sys.stderr)
        return 130
    if no_wait:
        return 0 if not told["not_submitted"] else 3
    return 0 if told["completed"] == told["submitted"] and not told["not_submitted"] + told["left_out"] else 3
