"""MPI as its ranks use it: the library, a communicator, and steps that fail on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from dovetail.core.errors import DovetailError, MissingExtraError

T = TypeVar("T")


def mpi() -> Any:
    """mpi4py's interface, or an error that says how to install it."""
    try:
        return import_module("mpi4py.MPI")
    except ModuleNotFoundError:
        raise MissingExtraError("mpi", "mpi4py", "the MPI scheduler") from None
    except (ImportError, RuntimeError) as error:
        raise DovetailError(f"mpi4py finds no MPI library ({error}): pip install mpich") from None


def communicator(comm: Any = None) -> Any:
    """The given communicator, or the one of all ranks."""
    return mpi().COMM_WORLD if comm is None else comm


def agreed(comm: Any, step: Callable[[], T]) -> T:
    """Do a step on every rank; if it fails on one, all fail, so that none waits for another for ever."""
    result: T | None = None
    error: Exception | None = None
    try:
        result = step()
    except Exception as caught:
        error = caught
    texts = comm.allgather(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise DovetailError(f"rank {rank} of {comm.size} failed: {text}")
    return result  # type: ignore[return-value]
