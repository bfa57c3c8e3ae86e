"""Many runs at once: one function over a grid of cells, in local processes, with results in the order of the cells."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Cell = TypeVar("Cell")
Result = TypeVar("Result")


def sweep(
    function: Callable[[Cell], Result],
    cells: Sequence[Cell],
    jobs: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Result]:
    """Apply a picklable function to every cell. An error or Ctrl-C stops the rest at once.

    >>> sweep(abs, [-1, -2], jobs=1)
    [1, 2]
    """
    jobs = min(jobs or os.cpu_count() or 1, len(cells))
    if jobs <= 1:
        results = []
        for done, cell in enumerate(cells, start=1):
            results.append(function(cell))
            progress(done)
        return results
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        futures = [pool.submit(function, cell) for cell in cells]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(done)
        return [future.result() for future in futures]
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
