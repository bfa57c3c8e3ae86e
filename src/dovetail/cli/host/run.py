"""`dovetail host run`: a request file, live."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.core.files.output import printable
from dovetail.host import connect


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
    with connect(state) as client, progress("running") as done:
        try:
            found = client.run(
                file,
                command=command,
                delays=delays,
                speed=speed,
                progress=done,
                complain=lambda said: print(printable(f"{file}:{said}"), file=sys.stderr),
            )
        except KeyboardInterrupt:
            print("\nwhat has come goes on, and nothing more comes: see `dovetail host list`", file=sys.stderr)
            raise
    rows = found["per_program"]
    if format == "json":
        print_json(found)
    else:
        print_table(["figure", "value"], [[name, value] for name, value in found.items() if value is not rows])
    return 0 if found["completed"] == len(rows) else 3
