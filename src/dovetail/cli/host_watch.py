"""`dovetail host list`, `top`, `logs`, `explain`, ...: the commands that only look at a live host."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import Format, atomic_write, print_json, print_table
from dovetail.cli.host_live import Flag, connect, state_folder
from dovetail.core.errors import InputError

_COLUMNS = ("id", "name", "state", "cores", "desired", "actual", "cpus", "waiting", "ran", "cpu", "MiB", "exit", "why")
_CLOSED = ("completed", "failed", "cancelled")
_LOOK_EVERY_S = 0.3


def _cells(row: dict[str, Any]) -> list[Any]:
    def seconds(name: str) -> float | None:
        return None if row.get(name) is None else round(row[name], 1)

    open_ = row["state"] not in _CLOSED
    return [
        row["id"],
        row.get("name", ""),
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
        row.get("why", ""),
    ]


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
    from rich.table import Table

    busy = sum(row.get("actual", 0) for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in about["programs"].items())
    title = f"{busy} of {len(about['cpus'])} cores in use; {counts}; paused programs hold "
    table = Table(title=title + f"{about['paused_memory_mib']:.0f} MiB", title_justify="left", expand=True)
    for column in _COLUMNS:
        table.add_column(column)
    for row in rows:
        if row["state"] not in _CLOSED:
            table.add_row(*("" if cell is None else str(cell) for cell in _cells(row)))
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
        text = file.read()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return offset + len(text)


def _row(client: Any, program: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = client.ask("list")
    for row in rows:
        if row["id"] == program:
            return row
    raise InputError(f"there is no program {program}")


def explain_(program: str, /, *, format: Format = "table", state: Path | None = None) -> None:
    """Tell why a program waits, or what was decided about it and why.

    Example: dovetail host explain 3

    Parameters
    ----------
    program
        Number of a program.
    format
        table or json.
    state
        Folder of the daemon's state.
    """
    with connect(state) as client:
        row = _row(client, program)
        past = client.ask("past", work=program)
    if format == "json":
        print_json(row | {"past": past})
        return
    print(f"{program} is {row['state']}" + (f": {row['why']}" if row.get("why") else ""))
    print_table(["t s", "what", "cores", "why"], [[round(e["t"], 3), e["what"], e["cores"], e["why"]] for e in past])


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
    from dovetail.host.live.metrics import COLUMNS, as_csv, figures

    with connect(state) as client:
        rows = [row for row in client.ask("list") if "arrived_s" in row]
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
            if strange := [each for each in program if each not in known]:
                raise InputError(f"there is no program {strange[0]}")
            if all(row["state"] in _CLOSED for row in rows):
                return 0 if all(row["state"] == "completed" for row in rows) else 1
            time.sleep(_LOOK_EVERY_S)


def _is_of(work: str, programs: tuple[str, ...]) -> bool:
    return work in programs or work.partition(".")[0] in programs
