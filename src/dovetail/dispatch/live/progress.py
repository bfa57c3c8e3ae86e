"""How far a run is: a function that is told, or a bar with rates and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from msgspec import Struct

from dovetail.dispatch.chunk import ChunkRow
from dovetail.dispatch.live.batch_run import BatchRun

_EVERY_S = 0.1


class RunProgress(Struct, frozen=True):
    """Items done, of how many (None: not known), each device's items per second so far, and the seconds left."""

    done: int
    total: int | None
    rates: dict[str, float]
    left_s: float | None


@contextmanager
def follow(progress: bool | Callable[[RunProgress], None] | None, run: BatchRun) -> Iterator[Callable[[], None] | None]:
    """Give a function to be called now and then during the run; None when nobody wants to know."""
    if not progress or (progress is True and not sys.stderr.isatty()):
        yield None
        return
    if progress is True:
        with _bar(run) as tell:
            yield _Follower(run, tell)
        return
    follower = _Follower(run, progress)
    yield follower
    follower.tell_now()


class _Follower:
    """Counts the rows that were added since it last looked, for there may be many, and tells."""

    def __init__(self, run: BatchRun, tell: Callable[[RunProgress], None]) -> None:
        self.run, self.tell = run, tell
        self.items = dict.fromkeys((device.name for device in run.devices), 0)
        self.seen = 0
        self.last_s = 0.0

    def __call__(self) -> None:
        now = perf_counter()
        if now - self.last_s >= _EVERY_S:
            self.last_s = now
            self.tell_now()

    def tell_now(self) -> None:
        run, rows = self.run, self.run.scheduler.rows
        new = rows[self.seen :]
        self.seen += len(new)
        for row in map(ChunkRow._make, new):
            if row.state == "done":
                self.items[run.devices[row.device].name] += row.stop - row.start
        elapsed_s = max(perf_counter() - run.begun_s, 1e-9)
        done, total = sum(self.items.values()), run.source.total
        left_s = (total - done) * elapsed_s / done if total is not None and done else None
        self.tell(RunProgress(done, total, {name: count / elapsed_s for name, count in self.items.items()}, left_s))


@contextmanager
def _bar(run: BatchRun) -> Iterator[Callable[[RunProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    count = "{task.completed}" if run.source.total is None else "{task.completed}/{task.total}"
    columns = (
        BarColumn(),
        TextColumn(count),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=run.source.total)

        def tell(now: RunProgress) -> None:
            rates = "  ".join(f"{name} {rate:,.0f}/s" for name, rate in now.rates.items())
            bar.update(task, completed=now.done, description=rates)

        yield tell
