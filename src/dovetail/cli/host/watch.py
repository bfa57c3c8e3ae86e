"""`dovetail host list`, `top`, `logs`, `explain`, ...: the commands that only look at a live host."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, print_json, print_table, table_lines
from dovetail.cli.complete import HOST_PROGRAMS
from dovetail.cli.host.submit import exit_status
from dovetail.core.errors import within
from dovetail.core.files.output import printable
from dovetail.host import connect, log_path

if TYPE_CHECKING:
    from dovetail.host import DaemonInfo, GpuStatus, LiveProgram

_PLACES = ("id", "name", "state", "cores", "desired", "actual", "cpus", "gpus")
_COLUMNS = (*_PLACES, "waiting", "ran", "cpu", "MiB", "exit", "why")
_NARROW = ("id", "name", "state", "has/due/asked", "cpus", "gpus", "waiting", "ran", "MiB", "why")
_LONGEST_NAME = 40
_ENDED = 10  # programs that have ended are listed so far back, unless all are asked for
_HAS_BEEN = {"completed": "was", "failed": "has", "cancelled": "was"}


def _cells(row: LiveProgram) -> list[Any]:
    def seconds(value: float | None) -> float | None:
        return None if value is None else round(value, 1)

    return [
        row.id,
        row.name if len(row.name) <= _LONGEST_NAME else row.name[: _LONGEST_NAME - 3] + "...",
        row.state,
        row.cores,
        row.desired,
        row.actual,
        ",".join(map(str, row.cpus)),
        ",".join(map(str, row.gpus)),
        seconds(row.waiting_s),
        seconds(row.service_s),
        seconds(row.cpu_s),
        None if row.closed else round(row.memory_mib),
        row.exit,
        _why(row.why, row.exit, row.state),
    ]


def _why(why: str, exit: str, state: str = "failed") -> str:
    """Why it is so; not what its exit says already.

    >>> _why("failed 3 times: exit code 3", "exit code 3"), _why("failed: exit code 3", "exit code 3")
    ('failed 3 times', '')
    >>> _why("waits for 1", "", "waiting")
    'waits for 1'
    """
    why = why.removesuffix(f": {exit}") if exit else why
    return "" if why == state else why


def _lately(rows: Sequence[LiveProgram]) -> list[LiveProgram]:
    """The programs that have not ended, and in their places those that ended last."""
    ended = sorted((row for row in rows if row.closed), key=lambda row: (row.arrived_s or 0) + (row.turnaround_s or 0))
    last = {row.id for row in ended[-_ENDED:]}
    return [row for row in rows if not row.closed or row.id in last]


def list_(*, all: Flag = False, format: Format = "table", state: Path | None = None) -> None:
    """List the programs: what was asked, what ought to be, what is, and why one waits.

    Example: dovetail host list --all --format json

    Parameters
    ----------
    all
        All that have ended, not only the ten that ended last.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        rows, about = client.list(all=True), client.about()
    rows = rows if all else _lately(rows)
    if format == "json":
        print_json(rows)
    else:
        _print(rows, about)


def _print(rows: Sequence[LiveProgram], about: DaemonInfo) -> None:
    print_table(_COLUMNS, map(_cells, rows))
    for gpu in about.gpus:
        print(_gpu_line(gpu))
    if about.trouble:
        print(f"\ntrouble: {printable(about.trouble)}")


def top_(*, every: float = 1.0, once: Flag = False, state: Path | None = None) -> None:
    """Show the programs as they change, until Ctrl-C.

    Example: dovetail host top

    Parameters
    ----------
    every
        Seconds between two looks.
    once
        Look once; as without a terminal.
    state
        Folder of the daemon's state.
    """
    within("--every", every, "seconds, 0.1 or more", 0.1, 86_400)
    if once or not sys.stdout.isatty():
        with connect(state) as client:
            _print(client.list(), client.about())
        return
    from rich.live import Live

    with connect(state) as client, Live(screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_Screen(client.list(), client.about()), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _gpu_line(gpu: GpuStatus) -> str:
    """What is used of a GPU, in a line.

    >>> from dovetail.host import GpuStatus
    >>> _gpu_line(GpuStatus(0, "NVIDIA L4", 23034, 11000.4, 0.87, ("3", "5")))
    'GPU 0 NVIDIA L4: 87 % in use, 11000 of 23034 MiB; programs 3, 5'
    >>> _gpu_line(GpuStatus(1, "NVIDIA L4", 23034))
    'GPU 1 NVIDIA L4: 23034 MiB; no program'
    """
    use = "" if gpu.use is None else f"{100 * gpu.use:.0f} % in use, "
    used = "" if gpu.used_mib is None else f"{gpu.used_mib:.0f} of "
    told = f"programs {', '.join(gpu.programs)}" if gpu.programs else "no program"
    return printable(f"GPU {gpu.number} {gpu.type}: {use}{used}{gpu.memory_mib} MiB; {told}")


class _Screen:
    """What `top` shows, as wide as there is room: no figure is cut."""

    def __init__(self, rows: Sequence[LiveProgram], about: DaemonInfo) -> None:
        self._rows, self._about = rows, about

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        yield Text.from_ansi("\n".join(self._lines(options.max_width)), overflow="fold")

    def _lines(self, room: int) -> Iterator[str]:
        about = self._about
        counts = ", ".join(f"{count} {state}" for state, count in about.programs.items())
        title = f"{sum(row.actual for row in self._rows)} of {len(about.cpus)} cores in use; {counts}; "
        yield from textwrap.wrap(f"{title}paused programs hold {about.paused_memory_mib:.0f} MiB", room)
        columns = [column for column in _NARROW if about.gpus or column != "gpus"]
        content = []
        for row in self._rows:
            cells = dict(zip(_COLUMNS, _cells(row), strict=True))
            cells["has/due/asked"] = f"{row.actual}/{row.desired}/{row.cores}"
            content.append([cells[column] for column in columns])
        yield from table_lines(columns, content, room=room)
        for line in filter(None, [*map(_gpu_line, about.gpus), printable(about.trouble)]):
            yield from textwrap.wrap(line, room)


def logs_(
    program: Annotated[str, HOST_PROGRAMS],
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
    stderr: Flag = False,
    state: Path | None = None,
) -> None:
    """Print what a program has written.

    Example: dovetail host logs -f 3

    Parameters
    ----------
    program
        Number of a program.
    follow
        Go on until it has ended.
    stderr
        What it has written to standard error, if that is kept apart (`submit --split-stderr`).
    state
        Folder of the daemon's state.
    """
    path = log_path(program, state, stderr)
    if not follow and path.exists():  # as it is, with or without a daemon
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        return
    with connect(state) as client:
        for piece in client.logs(program, follow, stderr):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def explain_(
    program: Annotated[str, HOST_PROGRAMS],
    /,
    *,
    journal: Path | None = None,
    format: Format = "table",
    state: Path | None = None,
) -> None:
    """Tell why a program waits, or what was decided about it and why.

    Example: dovetail host explain 3

    Parameters
    ----------
    program
        Number of a program.
    journal
        Ask no daemon: read the journal of a run, simulated or live.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    if journal is not None:
        _explain_recorded(program, journal, format)
        return
    with connect(state) as client:
        row, past = client.status(program), client.past(program)
    if format == "json":
        print_json({name: getattr(row, name) for name in row.__struct_fields__} | {"past": past})
        return
    said = [f"{program} {_HAS_BEEN.get(row.state, 'is')} {row.state}", _why(row.why, row.exit, row.state), row.exit]
    print(printable(": ".join(filter(None, said))))
    table = [[round(e.t, 3), e.what, None if e.cores is None else list(e.cores), e.why] for e in past]
    print_table(["t s", "what", "cores", "why"], table)


def _explain_recorded(program: str, journal: Path, format: Format) -> None:
    from dovetail.host import HostRun

    told = HostRun.read(journal).explain(program)
    if format == "json":
        print_json(told.stories)
    else:
        print(printable(str(told), keep="\n"))


def metrics_(*, csv: Path | None = None, format: Format = "table", state: Path | None = None) -> None:
    """Figures of the run so far: per program and for the whole.

    Example: dovetail host metrics --csv programs.csv

    Parameters
    ----------
    csv
        Write the figures per program here.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        found = client.metrics(csv)
    if format == "json":
        print_json(found)
        return
    print_table(["figure", "value"], [[name, value] for name, value in found.items() if name != "per_program"])


def journal_(out: Path, /, *, state: Path | None = None) -> None:
    """Write what has happened so far as a journal, for `dovetail check`, `report` and replay.

    Example: dovetail host journal run.jsonl

    Parameters
    ----------
    out
        File to write.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        client.journal(out)
        print(f"{client.about().steps} steps written to {out}")


def rates_(out: Path, /, *, state: Path | None = None) -> None:
    """Write what was measured of the programs as a table of rates, which other levels read.

    Speed-ups and steps per second on so many cores, of programs that tell their steps; what a restart and a pause cost.

    Example: dovetail host rates rates.json

    Parameters
    ----------
    out
        File to write.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        table = client.rates(out)
    print(f"{len(table.rates) + len(table.switches)} rates and prices written to {out}")


def wait_(*program: Annotated[str, HOST_PROGRAMS], state: Path | None = None) -> int:
    """Wait until programs have ended, or all; ends with the exit code of the first that was not completed.

    128 and more is a signal; 1 may also be a program that never ran.

    Example: dovetail host wait 3 4

    Parameters
    ----------
    program
        Numbers of programs or arrays; without any, all there are.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        return exit_status(client.wait(*program))
