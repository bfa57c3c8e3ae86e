"""`dovetail cluster submit`, `list`, `status`, `logs`, `cancel`: jobs of a live cluster."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.cluster.flags import Words
from dovetail.cli.cluster.place import PLACE, ClusterFlags
from dovetail.cli.common import Flag, Format, Numbers, Pairs, pairs, print_json, print_table
from dovetail.cli.complete import CLUSTER_JOBS
from dovetail.cli.verbs import check_command
from dovetail.core.errors import InputError, within
from dovetail.core.service.client import ServiceError

if TYPE_CHECKING:
    from dovetail.cluster import ClusterClient, JobsFile, JobSpec, JobStatus

State = Literal["waiting", "running", "completed", "cancelled", "given_up"]
Keeping = Literal["iterator", "own", "pause"]
_REFUSED, _UNKNOWN = 400, 404
_HERE = "127.0.0.1"  # the address of a node without Ray
_SHOWN = {  # of a job, what would not be understood by its name
    "folder": "kept in",
    "runs_in": "folder",
    "arrived_s": "arrived s after the service began",
    "started_s": "started s after the service began",
    "ended_s": "ended s after the service began",
}
_COLUMNS = ("job", "name", "model", "state", "on", "width", "done %", "leases", "waited s", "served s", "why")


def submit(
    *command: str,
    file: Path | None = None,
    steps: float | None = None,
    folder: Path | None = None,
    model: str | None = None,
    batch: int | None = None,
    width: int | None = None,
    widths: Numbers = (),
    types: Words = (),
    rates: Pairs | None = None,
    weight: float | None = None,
    entity: str | None = None,
    deadline_s: float | None = None,
    env: Pairs | None = None,
    steps_flag: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    checkpoint: Keeping | None = None,
    name: str | None = None,
    key: str | None = None,
    wait: Flag = False,
    format: Format = "table",
    place: ClusterFlags = PLACE,
) -> int:
    """Submit a training job to a live cluster: a command, or the jobs of a file; prints their numbers.

    Exit code 1 if they were waited for and not completed.

    Example: dovetail cluster submit --steps 5000 --steps-flag --num_steps --model LM -- python3 train.py --lr 0.1
    Example: dovetail cluster submit --file jobs.yaml --wait

    Parameters
    ----------
    command
        What to run, without a shell, behind a --.
    file
        A file with a job, or several under `jobs`, in the place of a command and its flags.
    steps
        Training steps in all.
    folder
        Where it runs; by default here.
    model
        What it trains: jobs of the same model, batch and width are taken to run alike. By default the script's name.
    batch
        The batch size.
    width
        Accelerators at once, one process each.
    widths
        The widths that an elastic policy may choose from.
    types
        The accelerator types that it can run on; all, if left out.
    rates
        Steps per second by type, as far as they are known: --rates v100=10 k80=3.
    weight
        How much it matters.
    entity
        On whose account.
    deadline_s
        Seconds after its submission within which it should be complete.
    env
        Variables for its processes: --env NAME=VALUE.
    steps_flag
        A flag that is added to the command with the number of steps.
    checkpoint
        How it survives the end of its turn: iterator, own (SIGTERM, its own checkpoints) or pause (it stays in memory).
    name
        For people.
    key
        The same key and content are the same job, however often it is sent.
    wait
        Wait for their ends.
    format
        table or json.
    """
    check_command(command)
    given = {
        "steps": steps,
        "folder": None if folder is None else str(folder.absolute()),
        "model": model,
        "batch": batch,
        "width": width,
        "widths": widths or None,
        "types": types or None,
        "rates": _rates(rates),
        "weight": weight,
        "entity": entity,
        "deadline_s": deadline_s,
        "env": pairs("--env", env, verbatim=True) or None,
        "steps_flag": steps_flag,
        "checkpoint": checkpoint,
        "name": name,
    }
    given = {key: each for key, each in given.items() if each is not None}
    jobs_file = _jobs_file(file, command, given)
    specs = jobs_file.specs if jobs_file is not None else [_spec(command, given)]
    if key is not None and len(specs) > 1:
        raise InputError(f"--key {key}: expected one job, found {len(specs)}")
    client = place.connect()
    try:
        if place.url is None:  # else who submits may be on another machine
            _look(client, specs)
        numbers = [client.submit(specs[0], key)] if len(specs) == 1 else client.submit_all(specs)
    except (InputError, ServiceError) as error:
        if jobs_file is None or (isinstance(error, ServiceError) and error.status != _REFUSED):
            raise
        raise jobs_file.located(error) from None
    if wait:
        ended = [client.wait(number) for number in numbers]
        print_json(ended) if format == "json" else print_table(_COLUMNS, map(_cells, ended))
        return 0 if all(job.state == "completed" for job in ended) else 1
    print_json([{"id": number} for number in numbers]) if format == "json" else print(*numbers, sep="\n")
    return 0


def _jobs_file(file: Path | None, command: tuple[str, ...], given: dict[str, Any]) -> JobsFile | None:
    from dovetail.cluster import JobsFile

    if file is not None and (command or given):
        raise InputError(f"--file {file}: its jobs say all; leave the command and {', '.join(given) or 'it'} out")
    return None if file is None else JobsFile(file)


def _spec(command: tuple[str, ...], given: dict[str, Any]) -> JobSpec:
    from dovetail.cluster import job_spec

    if not command:
        raise InputError("expected a command behind --, or --file with jobs")
    if "steps" not in given:
        raise InputError("--steps: expected the training steps in all, found none")
    return job_spec(given | {"command": command})


def _look(client: ClusterClient, specs: Sequence[JobSpec]) -> None:
    """Where all nodes are this machine: that folders and commands are there, as far as it can be known here."""
    if any(node.here and node.address != _HERE for node in client.nodes()):
        return
    for i, spec in enumerate(specs):
        at = f"jobs.{i}." if len(specs) > 1 else ""
        word, folder = spec.command[0], Path(spec.folder or ".")
        if spec.folder and not folder.is_dir():
            raise InputError(f"{at}folder: found {spec.folder!r}, expected a folder that is there")
        if "${" in word:
            continue
        if "/" in word and not (folder / word).exists():
            raise InputError(
                f"{at}command: found {word!r}, expected a program that is there, seen from {folder.absolute()}"
            )
        if "/" not in word and shutil.which(word, path=spec.env.get("PATH")) is None:
            print(f"warning: command {word!r}: there is none of that name here", file=sys.stderr)


def _rates(given: list[str] | None) -> dict[str, float] | None:
    found = {}
    for name, text in pairs("--rates", given, verbatim=True).items():
        try:
            found[name] = float(text)
        except ValueError:
            raise InputError(f"--rates {name}={text}: expected steps per second, as {name}=10") from None
    return found or None


def list_jobs(
    *, only: State | None = None, limit: int = 50, format: Format = "table", place: ClusterFlags = PLACE
) -> None:
    """List the newest jobs of a live cluster.

    Example: dovetail cluster list --only waiting

    Parameters
    ----------
    only
        Only those in this state: waiting, running, completed, cancelled or given_up.
    limit
        How many.
    format
        table or json.
    """
    within("--limit", limit, "1 or more", 1)
    found = place.connect().jobs(only, limit)
    print_json(found) if format == "json" else print_table(_COLUMNS, map(_cells, found))


def status(job: Annotated[int, CLUSTER_JOBS], /, *, format: Format = "table", place: ClusterFlags = PLACE) -> None:
    """Show a job of a live cluster: its state, progress, place and leases.

    Example: dovetail cluster status 17

    Parameters
    ----------
    job
        Its number.
    format
        table or json.
    """
    found = place.connect().status(job)
    if format == "json":
        print_json(found)
        return
    told = {name: getattr(found, name) for name in found.__struct_fields__}
    told |= {"command": shlex.join(found.command), "created": _moment(found.created), "ended": _moment(found.ended)}
    rows = [[_SHOWN.get(name, name.replace("_", " ")), _text(each)] for name, each in told.items()]
    print_table(("what", "value"), [row for row in rows if row[1] not in (None, "")])


def logs(
    job: Annotated[int, CLUSTER_JOBS],
    /,
    *,
    rank: int = 0,
    tail: int | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=())] = False,
    place: ClusterFlags = PLACE,
) -> None:
    """Print what a job's process has written, over all its leases.

    Example: dovetail cluster logs 17 -f --tail 20

    Parameters
    ----------
    job
        Its number.
    rank
        Which of its processes.
    tail
        Only the last so many lines.
    follow
        Go on until the job has ended.
    """
    within("--rank", rank, "0 or more", 0)
    within("--tail", tail, "0 or more", 0)
    client, line = place.connect(), None
    for line in client.logs(job, rank, tail=tail, follow=follow):
        print(line, flush=follow)
    if line is None and rank >= (width := client.status(job).width):
        raise InputError(f"--rank {rank}: job {job} has {width} {'process' if width == 1 else 'processes'}, from 0 on")


def cancel(*job: Annotated[int, CLUSTER_JOBS], format: Format = "table", place: ClusterFlags = PLACE) -> int:
    """Cancel jobs of a live cluster, whether they wait or run.

    Example: dovetail cluster cancel 17 18

    Parameters
    ----------
    job
        Their numbers.
    format
        table or json.
    """
    if not job:
        raise InputError("expected numbers of jobs; `dovetail cluster list` has them")
    client = place.connect()
    found, unknown = [], 0
    for each in job:
        try:
            found.append(client.cancel(each))
        except ServiceError as error:
            if error.status != _UNKNOWN:
                raise
            unknown += 1
            print(f"error: {error}", file=sys.stderr)
    if format == "json":
        print_json(found)
    else:
        for status in found:
            print(f"{status.id}: {status.state if not status.open else 'it is being stopped'}")
    return 2 if unknown else 0


def _cells(job: JobStatus) -> list[Any]:
    waited = None if job.arrived_s is None else round(job.waited_s, 1)
    done = round(100 * job.done / job.steps, 1)
    told = [job.id, job.name, job.model, job.state, job.on or None, job.width, done, job.leases, waited]
    return [*told, round(job.served_s, 1), job.why or None]


def _moment(since_1970: float | None) -> str:
    """
    >>> _moment(0.0).startswith("19"), _moment(None)
    (True, '')
    """
    from datetime import datetime

    return "" if since_1970 is None else datetime.fromtimestamp(since_1970).isoformat(" ", "seconds")


def _text(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
