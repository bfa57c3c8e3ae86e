"""Many runs at once: one function over a grid of cells, in local processes, with results in the order of the cells."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from dovetail.core.errors import DovetailError

Cell = TypeVar("Cell")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Cell], Result],
    cells: Sequence[Cell],
    jobs: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Result]:
    """Apply a picklable function to every cell. An error or Ctrl-C stops the rest at once.

    >>> run_all(abs, [-1, -2], jobs=1)
    [1, 2]
    """
    jobs = min(jobs or os.cpu_count() or 1, len(cells))
    if jobs <= 1:
        results = []
        for done, cell in enumerate(cells, start=1):
            results.append(function(cell))
            progress(done)
        return results
    from concurrent.futures import ProcessPoolExecutor, as_completed  # a single run has no use for them
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    try:
        with _without_main(function, cells):
            futures = [pool.submit(function, cell) for cell in cells]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(done)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise DovetailError("a run's process was ended from outside; too little memory for this many jobs?") from None
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_main(*used: object) -> Iterator[None]:
    """Processes that begin in here do not run the user's script again, as they otherwise would to have its names:
    unless what they are to do needs these."""
    main = sys.modules["__main__"]
    if b"__main__" not in pickle.dumps(used):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C in a terminal reaches every process; one of them telling about it is enough."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
