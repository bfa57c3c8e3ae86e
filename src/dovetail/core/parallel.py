"""Many runs at once: one function over a grid of cells, in local processes or on Ray, with results in their order."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, get_args

from dovetail.core.errors import DovetailError, InputError, did_you_mean

Cell = TypeVar("Cell")
Result = TypeVar("Result")
CellEngine = Literal["local", "ray"]  # processes of this machine, or the nodes of a Ray cluster


def cell_engine(engine: CellEngine | None, address: str | None) -> CellEngine:
    """Where cells run: an address says that it is Ray. What can be known to be wrong is told before anything is done.

    >>> cell_engine(None, None), cell_engine("ray", None)
    ('local', 'ray')
    """
    known = get_args(CellEngine)
    if engine is not None and engine not in known:
        raise InputError(f"engine: expected {' or '.join(known)}, found {engine!r}{did_you_mean(str(engine), known)}")
    if address is not None and not isinstance(address, str):
        raise InputError(f"address: expected that of a Ray cluster, found {address!r}")
    if engine == "local" and address is not None:
        raise InputError(f"address {address}: is that of a Ray cluster, but the engine is local")
    if engine is None and address is None:
        return "local"
    if engine != "local":
        from dovetail.core.service.ray_start import check_reachable, import_ray

        import_ray("the ray engine")
        check_reachable(address)
    return engine or "ray"


def run_all(
    function: Callable[[Cell], Result],
    cells: Sequence[Cell],
    jobs: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    *,
    engine: CellEngine | None = None,
    address: str | None = None,
    shared: Sequence[Path] = (),
) -> list[Result]:
    """Apply a picklable function to every cell, `jobs` at a time. An error or Ctrl-C stops the rest at once.

    With the ray engine cells run on the nodes of the cluster at an address, or of a private one; those of a node that
    dies are repeated. `shared` are folders that cells write to, which all nodes must see.

    >>> run_all(abs, [-1, -2], jobs=1)
    [1, 2]
    """
    if cell_engine(engine, address) == "ray":
        from dovetail.core.service.ray_cells import run_on_ray

        return run_on_ray(function, cells, jobs, progress, address, shared)
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
