"""What `dovetail host top` and `list` show."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from dovetail.cli.host.watch import _screen


def test_figures_and_states_are_whole_in_a_narrow_window() -> None:
    row: dict[str, Any] = {
        "id": "12.10",
        "name": "python3.11" * 9,
        "state": "running",
        "cores": 2,
        "desired": 2,
        "actual": 1,
    }
    row |= {
        "cpus": [0],
        "waiting_s": 0.1,
        "service_s": 1234.56,
        "cpu_s": 1.0,
        "memory_mib": 4711.2,
        "why": "because " * 9,
    }
    about = {"cpus": [0, 1], "programs": {"running": 1, "completed": 1}, "paused_memory_mib": 0, "trouble": "no room"}
    console = Console(width=80, file=io.StringIO())
    console.print(_screen([row, row | {"id": "1", "state": "completed", "actual": 0}], about))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("1 of 2 cores", "12.10", "running", "1/2/2", "1234.6", "4711", "because", "no room"):
        assert word in shown
    assert "\n 1 " not in shown, "what has ended is not shown"
