"""`dovetail host run`: a request file, live."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Literal

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.core.errors import InputError
from dovetail.host.live.client import connect


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
    from dovetail.host.live.requests import run_requests

    if not 0 < speed < float("inf"):
        raise InputError(f"--speed {speed:g}: expected a positive number")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command {command}: {error}") from None
    requests = read_requests(file, delays)
    with connect(state) as client, progress("running", len(requests)) as done:
        cores = len(client.ask("about")["cpus"])
        rows = run_requests(client, requests, words, speed, done, lambda said: print(f"{file}:{said}", file=sys.stderr))
    whole = figures(rows, cores)
    if format == "json":
        print_json(whole | {"per_program": [{name: row[name] for name in COLUMNS} for row in rows]})
    else:
        print_table(["figure", "value"], [[name, value] for name, value in whole.items()])
    return 0 if whole["completed"] == len(rows) else 3
