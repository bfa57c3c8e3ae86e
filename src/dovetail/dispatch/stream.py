"""Results as they come: pieces of a run, in the order of the batch or as they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from dovetail.dispatch.batch import handed_over
from dovetail.dispatch.job import Job
from dovetail.dispatch.pool import Pool


class Piece(NamedTuple):
    """The result of the items from start to stop."""

    start: int
    stop: int
    value: Any


class Streamed:
    """An output that hands results on instead of keeping them."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Piece] = SimpleQueue()

    def write(self, start: int, stop: int, result: Any) -> None:
        self.queue.put(Piece(start, stop, result))

    def result(self) -> Any:
        return None


def pieces_of(
    pool: Pool, job: Job, output: Streamed, ordered: bool, raise_failures: Callable[[], object]
) -> Iterator[Piece]:
    """Run the job while its pieces are read; a reader who stops reading stops it."""
    pool.add(job)
    cuda = any(device.kind == "cuda" for device in job.devices)
    held: dict[int, Piece] = {}
    at = 0
    try:
        while True:
            piece = _next(job, output)
            if piece is None:
                break
            held[piece.start if ordered else id(piece)] = piece
            while held and (at in held or not ordered):
                piece = held.pop(at) if ordered else held.popitem()[1]
                at = piece.stop
                _make_room(pool, job)
                job.source.forget(at) if ordered else None
                handed_over(piece.value) if cuda else None
                yield piece
        for start in sorted(held):  # what lies behind a range that failed
            yield held[start]
        raise_failures()
    finally:
        job.ledger.stop()
        pool.wake()


def _next(job: Job, output: Streamed) -> Piece | None:
    """The next piece, as soon as there is one; None when no more will come."""
    while True:
        over = job.ended.is_set()
        try:
            return output.queue.get_nowait() if over else output.queue.get(timeout=0.05)
        except Empty:
            if over:
                return None


def _make_room(pool: Pool, job: Job) -> None:
    with pool.lock:
        job.room += 1
        if job.room <= 1 and pool.waiting:
            pool.changed.notify_all()
