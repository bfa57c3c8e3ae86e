"""What `dovetail host top` and `list` show."""

from __future__ import annotations

import io

from rich.console import Console

from dovetail.cli.host.watch import _screen
from dovetail.host import DaemonInfo, LiveProgram


def test_figures_and_states_are_whole_in_a_narrow_window() -> None:
    row = LiveProgram(
        id="12.10",
        name="python3.11" * 9,
        state="running",
        why="because " * 9,
        cores=2,
        desired=2,
        actual=1,
        cpus=(0,),
        waiting_s=0.1,
        service_s=1234.56,
        cpu_s=1.0,
        memory_mib=4711.2,
    )
    about = DaemonInfo(1, "/state", (0, 1), {}, 7, {"running": 1, "completed": 1}, 0.0, "no room")
    console = Console(width=80, file=io.StringIO())
    console.print(_screen([row], about))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("1 of 2 cores", "12.10", "running", "1/2/2", "1234.6", "4711", "because", "no room"):
        assert word in shown
