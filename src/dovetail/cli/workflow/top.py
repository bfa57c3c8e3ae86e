"""`dovetail workflow top`: what a running service does, as it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.cli.common import Flag, Format, live_table, print_json, show_live
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
    now: Overview | None = None

    def look() -> Any:
        nonlocal now
        now = client.overview(now)
        return screen(now)

    show_live(look, every, once)


def screen(now: Overview) -> Any:
    """A service at one moment: the whole, its GPUs, its models."""
    from rich.console import Group

    head = f"{now.url}: {now.state} for {now.uptime_s:.0f} s, policy {now.policy}; "
    head += f"{now.queued} runs wait, {now.running} run; a new one would wait {now.wait_s:.1f} s"
    gpus = [[g.gpu, g.type, g.host, g.state, ", ".join(g.models), _few(g.running)] for g in now.gpus]
    columns = ("model", "resident", "waiting", "running", "calls", "loads", "calls_per_s", "tokens_per_s", "ttft_s")
    shown = tuple("on gpu" if column == "resident" else column for column in columns)
    models = [[getattr(model, column) for column in columns] for model in now.models]
    return Group(
        head, live_table(("gpu", "type", "host", "state", "models", "running"), gpus), live_table(shown, models)
    )


def _few(running: list[str]) -> str:
    """The first few of what runs, and how many more.

    >>> _few(["a/x", "b/x", "c/x", "d/x"])
    'a/x, b/x and 2 more'
    """
    if len(running) <= 3:
        return ", ".join(running)
    return f"{', '.join(running[:2])} and {len(running) - 2} more"
