"""Results as they come: pieces of a run, in the order of the batch or as they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from dovetail.dispatch.inputs.batch import handed_over
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.joining import Witness
from dovetail.dispatch.live.pool import WorkerPool

_POLL_S = 0.05  # after which a reader looks whether the end has come


class Piece(NamedTuple):
    """The result of the items from start to stop."""

    start: int
    stop: int
    value: Any


class Streamed:
    """An output that hands results on instead of keeping them."""

    witness: Witness | None = None

    def __init__(self) -> None:
        self.queue: SimpleQueue[Piece] = SimpleQueue()

    def write(self, start: int, stop: int, result: Any) -> None:
        self.queue.put(Piece(start, stop, result))

    def result(self) -> Any:
        return None


def pieces_of(
    pool: WorkerPool, run: BatchRun, output: Streamed, ordered: bool, raise_failures: Callable[[], object]
) -> Iterator[Piece]:
    """Run the run while its pieces are read; a reader who stops reading stops it."""
    cuda = any(device.kind == "cuda" for device in run.devices)
    held: dict[int, Piece] = {}
    at = 0
    try:
        pool.add(run)
        while True:
            over = run.ended.is_set()  # asked first: what was written before the end is then found
            piece = _next(output, over)
            if piece is not None:
                held[piece.start] = piece
            elif over:
                break
            while (start := _due(held, at, run) if ordered else next(iter(held), None)) is not None:
                piece = held.pop(start)
                at = piece.stop
                _make_room(pool, run)
                run.source.forget(at) if ordered else None
                handed_over(piece.value) if cuda else None
                yield piece
                pool.refuse_inside()
        for start in sorted(held):  # what lies behind a range that was not done
            yield held[start]
        raise_failures()
    finally:
        pool.cancel(run)


def _next(output: Streamed, over: bool) -> Piece | None:
    """The next piece; None when there is none for a while, or no more will come."""
    try:
        return output.queue.get_nowait() if over else output.queue.get(timeout=_POLL_S)
    except Empty:
        return None


def _due(held: dict[int, Piece], at: int, run: BatchRun) -> int | None:
    """The piece that is next in order, behind ranges that failed for good; None if it is not there yet."""
    if at not in held and run.scheduler.failures:
        gaps = {chunk.start: chunk.stop for chunk, _ in run.scheduler.failures if len(chunk)}
        while at in gaps:
            at = gaps[at]
    return at if at in held else None


def _make_room(pool: WorkerPool, run: BatchRun) -> None:
    with pool.lock:
        run.room += 1
        if run.room <= 1 and pool.waiting:
            pool.changed.notify_all()
