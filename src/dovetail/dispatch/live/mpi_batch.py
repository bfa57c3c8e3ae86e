"""One batch over all ranks of a communicator: a shared cursor to pull from, and the gathering of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from dovetail.core.errors import DovetailError, InputError
from dovetail.dispatch.chunk import gaps
from dovetail.dispatch.inputs.batch import as_source
from dovetail.dispatch.live.assembly import Collected
from dovetail.dispatch.live.mpi import agreed, mpi
from dovetail.dispatch.live.packing import Packed, unpack

Range = tuple[int, int]
Part = tuple[int, int, Any]


class RmaCursor:
    """A cursor in the first rank's memory, which every rank moves by itself: nobody has to serve it.

    All ranks make it and close it together.
    """

    def __init__(self, comm: Any, total: int) -> None:
        self.total = total
        self.taken: list[Range] = []
        self._share = comm.size
        self._at = 0  # as last seen
        self._window = mpi().Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
        if comm.rank == 0:
            np.frombuffer(self._window.tomemory(), dtype=np.int64)[0] = 0
        comm.Barrier()
        self._window.Lock_all()
        self._step = np.zeros(1, dtype=np.int64)
        self._found = np.zeros(1, dtype=np.int64)

    def __enter__(self) -> RmaCursor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._window.Unlock_all()
        self._window.Free()

    @property
    def remaining(self) -> float:
        """This rank's share of what is left: a policy that knows no other ranks then leaves them theirs."""
        return float(max(0, -(-(self.total - self._at) // self._share)))

    def take(self, n: int) -> Range:
        self._step[0] = n
        self._window.Fetch_and_op(self._step, self._found, 0)
        self._window.Flush(0)
        start = min(int(self._found[0]), self.total)
        stop = min(start + n, self.total)
        self._at = stop
        if stop > start:
            self.taken.append((start, stop))
        return start, stop


def run_over_ranks(
    dispatcher: Any,
    batch: Any,
    comm: Any,
    root: int | None = None,
    dim: int = 0,
    reduce: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Every rank's dispatcher pulls from the same batch; results are gathered on all ranks, or on `root` only.

    What a rank failed to do, the others do. If all fail, or one fails again, every rank raises an error.
    """
    source = agreed(comm, lambda: as_source(_shared(comm, batch), dim))
    if not source.total:
        return agreed(comm, lambda: _alone(dispatcher, source))
    parts: list[Part] = []
    failure: Exception | None = None
    with RmaCursor(comm, source.total) as cursor:
        try:
            parts.extend(dispatcher.stream(source, ordered=False, cursor=cursor))
        except Exception as error:
            failure = error
    mine = missing_of(cursor.taken, [part[:2] for part in parts])
    lost = sorted(each for ranges in comm.allgather(mine) for each in ranges)
    if lost:
        parts += _redone(dispatcher, source, comm, lost, failure)
    return gathered(comm, parts, root, dim, reduce)


def _shared(comm: Any, batch: Any) -> Any:
    """The batch on every rank: as it was given, or from the one rank that has it."""
    has = comm.allgather(batch is not None)
    if all(has):
        return batch
    if sum(has) != 1:
        raise InputError(f"{sum(has)} of {comm.size} ranks have a batch; expected all of them, or one")
    return comm.bcast(batch, root=has.index(True))


def _alone(dispatcher: Any, source: Any) -> Any:
    if source.total is None:
        raise InputError("a batch of unknown length cannot be spread over ranks")
    return dispatcher.run(source.slice(0, 0))


def missing_of(taken: Sequence[Range], done: Sequence[Range]) -> list[Range]:
    """What was taken and is not done.

    >>> missing_of([(0, 4), (8, 12)], [(0, 4), (10, 12)])
    [(8, 10)]
    """
    end = max((stop for _, stop in taken), default=0)
    return gaps([*gaps(taken, end), *done], end)


def _redone(dispatcher: Any, source: Any, comm: Any, lost: list[Range], failure: Exception | None) -> list[Part]:
    """Lost ranges, pulled one by one by the ranks that did not fail."""
    failed = comm.allgather(None if failure is None else f"{type(failure).__name__}: {failure}")
    if all(failed):
        raise failure or DovetailError("all ranks failed")

    def again() -> list[Part]:
        parts = []
        while failure is None:
            ticket, end = cursor.take(1)
            if ticket == end:
                break
            start, stop = lost[ticket]
            parts.append((start, stop, dispatcher.run(source.slice(start, stop))))
        return parts

    with RmaCursor(comm, len(lost)) as cursor:
        return agreed(comm, again)


def gathered(
    comm: Any, parts: Sequence[Part], root: int | None, dim: int, reduce: Callable[[list[Any]], Any] | None
) -> Any:
    """The parts of all ranks, put together in the order of the batch; None on ranks that are not the root."""
    packed = Packed.of([value for *_, value in parts])
    mine = torch.empty(packed.size, dtype=torch.uint8)
    packed.pack(mine)
    sent = comm.allgather(([part[:2] for part in parts], packed.layout, packed.size))
    sizes = [size for *_, size in sent]
    here = root is None or comm.rank == root
    everything = torch.empty(sum(sizes) if here else 0, dtype=torch.uint8)
    target = [everything.numpy(), sizes, None, mpi().BYTE]
    if root is None:
        comm.Allgatherv([mine.numpy(), mpi().BYTE], target)
    else:
        comm.Gatherv([mine.numpy(), mpi().BYTE], target if here else None, root=root)
    if not here:
        return None
    collected = Collected(dim, None, reduce)
    at = 0
    for ranges, layout, size in sent:
        for (start, stop), value in zip(ranges, unpack(layout, everything[at : at + size]), strict=True):
            collected.write(start, stop, value)
        at += size
    return collected.result()
