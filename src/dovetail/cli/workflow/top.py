"""`dovetail workflow top`: what a running service does, as it changes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from dovetail.cli.common import Flag, Format, print_json
from dovetail.cli.workflow.place import PLACE, PlaceFlags
from dovetail.core.errors import within

if TYPE_CHECKING:
    from dovetail.workflow import Overview


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
        print_json(client.overview())
        return
    from rich.console import Console

    if once or not sys.stdout.isatty():
        with (console := Console(width=None if sys.stdout.isatty() else 200)).capture() as shown:
            console.print(screen(client.overview()))
        print("\n".join(line.rstrip() for line in shown.get().splitlines()))
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        now = None
        try:
            while True:
                now = client.overview(now)
                live.update(screen(now), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def screen(now: Overview) -> Any:
    """A service at one moment: the whole, its GPUs, its models."""
    from rich.console import Group

    head = f"{now.url}: {now.state} for {now.uptime_s:.0f} s, policy {now.policy}; "
    head += f"{now.queued} runs wait, {now.running} run; a new one would wait {now.wait_s:.1f} s"
    gpus = [[g.gpu, g.type, g.host, g.state, ", ".join(g.models), _few(g.running)] for g in now.gpus]
    columns = ("model", "resident", "waiting", "running", "calls", "loads", "calls_per_s", "tokens_per_s", "ttft_s")
    shown = tuple("on gpu" if column == "resident" else column for column in columns)
    models = [[getattr(model, column) for column in columns] for model in now.models]
    return Group(head, _table(("gpu", "type", "host", "state", "models", "running"), gpus), _table(shown, models))


def _few(running: list[str]) -> str:
    """The first few of what runs, and how many more.

    >>> _few(["a/x", "b/x", "c/x", "d/x"])
    'a/x, b/x and 2 more'
    """
    if len(running) <= 3:
        return ", ".join(running)
    return f"{', '.join(running[:2])} and {len(running) - 2} more"


def _table(columns: tuple[str, ...], rows: list[list[Any]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return "-" if value in (None, "") else str(value)
