"""`dovetail host list`, `top`, `logs`, `explain`, ...: the commands that only look at a live host."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, atomic_write, print_json, print_table
from dovetail.core.errors import InputError
from dovetail.host.live.client import connect, state_folder

_COLUMNS = ("id", "name", "state", "cores", "desired", "actual", "cpus", "waiting", "ran", "cpu", "MiB", "exit", "why")
_NARROW = ("id", "name", "state", "has/due/asked", "cpus", "waiting", "ran", "MiB", "why")
_LONGEST_NAME = 40
_CLOSED = ("completed", "failed", "cancelled")
_HAS_BEEN = {"completed": "was", "failed": "has", "cancelled": "was"}
_LOOK_EVERY_S = 0.3


def _cells(row: dict[str, Any]) -> list[Any]:
    def seconds(name: str) -> float | None:
        return None if row.get(name) is None else round(row[name], 1)

    open_ = row["state"] not in _CLOSED
    return [
        row["id"],
        _short(row.get("name", "")),
        row["state"],
        row["cores"],
        row.get("desired"),
        row.get("actual"),
        ",".join(map(str, row.get("cpus", ()))),
        seconds("waiting_s"),
        seconds("service_s"),
        seconds("cpu_s"),
        round(row.get("memory_mib", 0)) if open_ else None,
        row.get("exit", ""),
        _why(row),
    ]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def _why(row: dict[str, Any]) -> str:
    """Why it is so; not what its exit says already.

    >>> row = {"exit": "exit code 3", "why": "failed 3 times: exit code 3"}
    >>> _why(row), _why({"exit": "exit code 3", "why": "failed: exit code 3"}), _why({"exit": "", "why": "waits for 1"})
    ('failed 3 times', '', 'waits for 1')
    """
    why: str = row.get("why", "")
    why = why.removesuffix(f": {row['exit']}") if row.get("exit") else why
    return "" if why == row.get("state", "failed") else why


def list_(*, all: Flag = False, format: Format = "table", state: Path | None = None) -> None:
    """List the programs: what was asked, what ought to be, what is, and why one waits.

    Example: dovetail host list --all --format json

    Parameters
    ----------
    all
        Also those that have ended.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        rows = client.ask("list")
        about = client.ask("about")
    rows = [row for row in rows if all or row["state"] not in _CLOSED]
    if format == "json":
        print_json(rows)
        return
    print_table(_COLUMNS, map(_cells, rows))
    if about["trouble"]:
        print(f"\ntrouble: {about['trouble']}")


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
    if once or not sys.stdout.isatty():
        list_(state=state)
        return
    from rich.live import Live

    with connect(state) as client, Live(screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_screen(client.ask("list"), client.ask("about")), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _screen(rows: list[dict[str, Any]], about: dict[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    busy = sum(row.get("actual", 0) for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in about["programs"].items())
    title = f"{busy} of {len(about['cpus'])} cores in use; {counts}; paused programs hold "
    title += f"{about['paused_memory_mib']:.0f} MiB"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), expand=True)
    for column in _NARROW:  # in a narrow window the words get short, not the figures
        table.add_column(column, no_wrap=column not in ("name", "why"))
    for row in rows:
        if row["state"] not in _CLOSED:
            cells = dict(zip(_COLUMNS, ("" if cell is None else str(cell) for cell in _cells(row)), strict=True))
            cells["has/due/asked"] = f"{cells['actual']}/{cells['desired']}/{cells['cores']}"
            table.add_row(*(cells[column] for column in _NARROW))
    if about["trouble"]:
        table.caption = about["trouble"]
    return table


def logs_(
    program: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative=())] = False,
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
    state
        Folder of the daemon's state.
    """
    path = state_folder(state) / "logs" / f"{program}.log"
    if not follow and path.exists():  # as it is, with or without a daemon
        _copy(path, 0)
        return
    offset = 0
    with connect(state) as client:
        while True:
            now = _row(client, program)["state"]  # asked before reading: what is written until then is read
            if path.exists():
                offset = _copy(path, offset)
            if not follow:
                raise InputError(f"program {program} has written nothing: it is {now}")
            if now in _CLOSED:
                return
            time.sleep(_LOOK_EVERY_S)


def _copy(path: Path, offset: int) -> int:
    """Print a file from an offset on; gives where it ends."""
    with path.open("rb") as file:
        file.seek(offset)
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return file.tell()


def _row(client: Any, program: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = client.ask("list")
    for row in rows:
        if row["id"] == program:
            return row
    members = [row["id"] for row in rows if _is_of(row["id"], (program,))]
    if members:
        raise InputError(f"{program} is an array: name one of {members[0]} to {members[-1]}")
    raise InputError(f"there is no program {program}")


def explain_(
    program: str, /, *, journal: Path | None = None, format: Format = "table", state: Path | None = None
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
        row = _row(client, program)
        past = client.ask("past", job=program)
    if format == "json":
        print_json(row | {"past": past})
        return
    said = [f"{program} {_HAS_BEEN.get(row['state'], 'is')} {row['state']}", _why(row), row.get("exit")]
    print(": ".join(filter(None, said)))
    print_table(["t s", "what", "cores", "why"], [[round(e["t"], 3), e["what"], e["cores"], e["why"]] for e in past])


def _explain_recorded(program: str, journal: Path, format: Format) -> None:
    from dovetail.core.explain import explain, sentences
    from dovetail.core.journal import open_journal

    stories = explain(open_journal(journal), program)
    if format == "json":
        print_json(stories)
    else:
        print("\n".join(line for story in stories for line in sentences(story)))


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
    from dovetail.host.live.figures import COLUMNS, as_csv, figures

    with connect(state) as client:
        rows = [row for row in client.ask("list") if row["arrived_s"] is not None]
        whole = figures(rows, len(client.ask("about")["cpus"]))
    if csv is not None:
        atomic_write(csv, as_csv(rows))
    if format == "json":
        print_json(whole | {"per_program": [{name: row[name] for name in COLUMNS} for row in rows]})
        return
    print_table(["figure", "value"], [[name, value] for name, value in whole.items()])


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
        steps = client.ask("journal", path=str(out.absolute()))
    print(f"{steps} steps written to {out}")


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
        entries = client.ask("rates", path=str(out.absolute()))
    print(f"{entries} rates and prices written to {out}")


def wait_(*program: str, state: Path | None = None) -> int:
    """Wait until programs have ended, or all; exit code 1 unless all of them were completed.

    Example: dovetail host wait 3 4

    Parameters
    ----------
    program
        Numbers of programs or arrays; without any, all there are.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        while True:
            rows = [row for row in client.ask("list") if not program or _is_of(row["id"], program)]
            known = {row["id"] for row in rows} | {row["id"].partition(".")[0] for row in rows}
            if unknown := [each for each in program if each not in known]:
                raise InputError(f"there is no program {unknown[0]}")
            if all(row["state"] in _CLOSED for row in rows):
                return 0 if all(row["state"] == "completed" for row in rows) else 1
            time.sleep(_LOOK_EVERY_S)


def _is_of(job: str, programs: tuple[str, ...]) -> bool:
    return job in programs or job.partition(".")[0] in programs
