"""How far a run is: a function that is told, or a bar with rates and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from msgspec import Struct

from dovetail.dispatch.job import Job
from dovetail.dispatch.ledger import Row

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
            yield _Follower(job, tell)
        return
    follower = _Follower(job, progress)
    yield follower
    follower.tell_now()


class _Follower:
    """Counts the rows that were added since it last looked, for there may be many, and tells."""

    def __init__(self, job: Job, tell: Callable[[Told], None]) -> None:
        self.job, self.tell = job, tell
        self.items = dict.fromkeys((device.name for device in job.devices), 0)
        self.seen = 0
        self.last_s = 0.0

    def __call__(self) -> None:
        now = perf_counter()
        if now - self.last_s >= _EVERY_S:
            self.last_s = now
            self.tell_now()

    def tell_now(self) -> None:
        job, rows = self.job, self.job.ledger.rows
        new = rows[self.seen :]
        self.seen += len(new)
        for row in map(Row._make, new):
            if row.state == "done":
                self.items[job.devices[row.device].name] += row.stop - row.start
        elapsed_s = max(perf_counter() - job.begun_s, 1e-9)
        done, total = sum(self.items.values()), job.source.total
        left_s = (total - done) * elapsed_s / done if total is not None and done else None
        self.tell(Told(done, total, {name: count / elapsed_s for name, count in self.items.items()}, left_s))


@contextmanager
def _bar(job: Job) -> Iterator[Callable[[Told], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    count = "{task.completed}" if job.source.total is None else "{task.completed}/{task.total}"
    columns = (
        BarColumn(),
        TextColumn(count),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=job.source.total)

        def tell(told: Told) -> None:
            rates = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in told.rates.items())
            bar.update(task, completed=told.done, description=rates)

        yield tell
