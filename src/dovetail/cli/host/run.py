"""`dovetail host run`: a request file, live."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.core.errors import DovetailError, InputError
from dovetail.host.live.client import connect

if TYPE_CHECKING:
    from dovetail.host.inputs.requests import Request
    from dovetail.host.live.client import Client

_LOOK_EVERY_S = 0.3
_CLOSED = ("completed", "failed", "cancelled")


def run(
    file: Path,
    /,
    *,
    command: str = "",
    delays: Literal["before", "after"] = "before",
    speed: float = 1.0,
    format: Format = "table",
    state: Path | None = None,
) -> int:
    """Replay a request file on the running daemon, and print the figures when all has ended.

    Each line starts a container of its image, or the given command, at its time; an update line resizes what it names.
    Exit code 3 if a program was not completed.

    Example: dovetail host run requests_file.txt --command "python train.py"

    Parameters
    ----------
    file
        Lines of type,id,image,threads,delay and, if there is one, priority.
    command
        Run this in the place of each image; DOVETAIL_REQUEST holds the line's id.
    delays
        Whether a line's delay passes before it or after it.
    speed
        Let the delays pass so many times as fast.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    from dovetail.host.inputs.requests import read_requests
    from dovetail.host.live.figures import COLUMNS, figures

    if not 0 < speed < float("inf"):
        raise InputError(f"--speed {speed:g}: expected a positive number")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command {command}: {error}") from None
    requests = read_requests(file, delays)
    with connect(state) as client, progress("running", len(requests)) as done:
        cores = len(client.ask("about")["cpus"])
        wide = [request for request in requests if request.threads > cores]
        if wide:
            where = f"{file}:{wide[0].line}"
            print(f"{where}: asks for {wide[0].threads} threads, {cores} are all there are", file=sys.stderr)
        jobs: dict[str, str] = {}
        began = time.monotonic()
        for request in requests:
            time.sleep(max(began + request.at_s / speed - time.monotonic(), 0.0))
            _submit(client, request, words, cores, jobs)
        rows = _wait(client, set(jobs.values()), done)
    whole = figures(rows, cores)
    if format == "json":
        print_json(whole | {"per_program": [{name: row[name] for name in COLUMNS} for row in rows]})
    else:
        print_table(["figure", "value"], [[name, value] for name, value in whole.items()])
    return 0 if whole["completed"] == len(rows) else 3


def _submit(client: Client, request: Request, command: list[str], cores: int, jobs: dict[str, str]) -> None:
    threads = min(request.threads, cores)
    if request.kind == "update":
        try:
            client.ask("ask", job=jobs[request.id], what="resize", value=threads)
        except DovetailError as error:  # most often it has ended
            print(f"line {request.line}: {error}", file=sys.stderr)
        return
    spec: dict[str, Any] = {"cores": threads, "priority": request.priority, "name": request.id}
    spec |= {"work_s": request.work} if request.work is not None else {}
    mark = {"DOVETAIL_REQUEST": request.id}
    if command:
        spec |= {"command": command, "cwd": os.getcwd(), "env": dict(os.environ) | mark}
    else:
        spec |= {"image": request.image, "env": mark}
    jobs[request.id] = client.ask("submit", spec=spec)[0]


def _wait(client: Client, jobs: set[str], done: Any) -> list[dict[str, Any]]:
    while True:
        rows = [row for row in client.ask("list") if row["id"] in jobs]
        ended = [row for row in rows if row["state"] in _CLOSED]
        done(len(ended))
        if len(ended) == len(jobs):
            return ended
        time.sleep(_LOOK_EVERY_S)
