"""`dovetail workflow top`: what a running service does, as it changes."""

from __future__ import annotations

import sys
import time
from typing import Any

from dovetail.cli.common import Flag, Format, print_json
from dovetail.cli.workflow.place import PLACE, PlaceFlags
from dovetail.core.errors import within


def top(*, every: float = 1.0, once: Flag = False, format: Format = "table", place: PlaceFlags = PLACE) -> None:
    """Show GPUs and what is on them, models, queues and rates of a service as they change, until Ctrl-C.

    Example: dovetail workflow top --once --format json

    Parameters
    ----------
    every
        Seconds between two looks.
    once
        Look once; as without a terminal.
    format
        table or json; json looks once.
    """
    within("--every", every, "seconds, more than 0", 0.01)
    client = place.connect()
    if format == "json":
        print_json(client.about())
        return
    from rich.console import Console

    if once or not sys.stdout.isatty():
        with (console := Console(width=None if sys.stdout.isatty() else 200)).capture() as shown:
            console.print(screen(client.about()))
        print("\n".join(line.rstrip() for line in shown.get().splitlines()))
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen(client.about()), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def screen(about: dict[str, Any]) -> Any:
    """A service at one moment: the whole, its GPUs, its models."""
    from rich.console import Group

    state = "draining" if about["draining"] else f"trouble: {about['trouble']}" if about.get("trouble") else "up"
    head = f"{state} for {about.get('uptime_s', 0):.0f} s, policy {about.get('policy', '-')}; "
    head += f"{about['queued']} runs wait, {about['running']} run; a new one would wait {about.get('wait_s', 0):.1f} s"
    gpus = [
        [number, gpu.get("type"), gpu.get("host"), gpu.get("state"), ", ".join(gpu["models"]), _few(gpu.get("running"))]
        for number, gpu in enumerate(about["gpus"])
    ]
    parts = [head, _table(("gpu", "type", "host", "state", "models", "running"), gpus)]
    if models := about.get("models"):
        columns = ("waiting", "running", "calls", "tokens_per_s", "ttft_s")
        rows = [[name, *(told.get(column) for column in columns)] for name, told in models.items()]
        parts.append(_table(("model", *columns), rows))
    return Group(*parts)


def _few(running: Any) -> Any:
    """The first few of what runs, and how many more.

    >>> _few(["a/x", "b/x", "c/x", "d/x"])
    'a/x, b/x and 2 more'
    """
    if not isinstance(running, list) or len(running) <= 3:
        return ", ".join(running) if isinstance(running, list) else running
    return f"{', '.join(running[:2])} and {len(running) - 2} more"


def _table(columns: tuple[str, ...], rows: list[list[Any]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [f"{cell:.3g}" if isinstance(cell, float) else "-" if cell in (None, "") else str(cell) for cell in row]
        table.add_row(*cells)
    return table
