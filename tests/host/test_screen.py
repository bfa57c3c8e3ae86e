"""What `dovetail host top` and `list` show."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from dovetail.cli.common import table_lines
from dovetail.cli.host.watch import _Screen
from dovetail.host import DaemonInfo, LiveProgram


@pytest.mark.parametrize("width", [160, 80, 60, 40, 24])
def test_figures_and_states_are_whole_in_a_narrow_window(width: int) -> None:
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
    console = Console(width=width, file=io.StringIO())
    console.print(_Screen([row], about))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("1 of 2 cores", "12.10", "running", "1/2/2", "1234.6", "4711", "because", "no room"):
        assert word in shown


def test_no_line_is_wider_than_the_window() -> None:
    columns = ["id", "state", "cpus", "ran", "why"]
    rows = [["12.10", "running", "0,1,10,11", 12345.6, "4 of 4 asked"], ["13", "waiting", "", 0.0, "needs 12 cores"]]
    for width in range(24, 80):
        lines = list(table_lines(columns, rows, room=width))
        plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
        assert max(map(len, plain)) <= width
        assert any("0,1,10,11" in line for line in plain)
        assert any("12345.6" in line for line in plain)
