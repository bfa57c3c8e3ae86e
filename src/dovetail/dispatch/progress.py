"""How far a run is: a function that is told, or a bar with rates and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from msgspec import Struct

from dovetail.dispatch.job import Job

_EVERY_S = 0.1


class Told(Struct, frozen=True):
    """Items done, of how many (None: not known), each device's items per second so far, and the seconds left."""

    done: int
    total: int | None
    rates: dict[str, float]
    left_s: float | None


@contextmanager
def follow(progress: bool | Callable[[Told], None] | None, job: Job) -> Iterator[Callable[[], None] | None]:
    """Give a function to be called now and then during the run; None when nobody wants to know."""
    if not progress or (progress is True and not sys.stderr.isatty()):
        yield None
        return
    if progress is True:
        with _bar(job) as tell:
            yield _now_and_then(job, tell)
        return
    yield _now_and_then(job, progress)
    progress(_told(job))


def _now_and_then(job: Job, tell: Callable[[Told], None]) -> Callable[[], None]:
    last = 0.0

    def told() -> None:
        nonlocal last
        now = perf_counter()
        if now - last >= _EVERY_S:
            last = now
            tell(_told(job))

    return told


def _told(job: Job) -> Told:
    elapsed = max(perf_counter() - job.begun_s, 1e-9)
    items = dict.fromkeys((device.name for device in job.devices), 0)
    for row in job.ledger.log:
        if row.state == "done":
            items[job.devices[row.device].name] += row.stop - row.start
    done = sum(items.values())
    total = job.source.total
    left = (total - done) * elapsed / done if total is not None and done else None
    return Told(done, total, {name: count / elapsed for name, count in items.items()}, left)


@contextmanager
def _bar(job: Job) -> Iterator[Callable[[Told], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=job.source.total)

        def tell(told: Told) -> None:
            rates = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in told.rates.items())
            bar.update(task, completed=told.done, description=rates)

        yield tell
