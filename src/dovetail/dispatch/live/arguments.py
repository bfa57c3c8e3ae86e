"""What a dispatcher is called with, and what of it is refused."""

from __future__ import annotations

from typing import Any

from dovetail.core.errors import InputError, check_functions, within
from dovetail.dispatch.inputs.batch import Source, WholeBatch
from dovetail.dispatch.live.outcome import BatchOutcome, mark_of
from dovetail.dispatch.live.pool import WorkerPool


def check_options(
    *,
    dim: Any,
    mode: Any,
    reduce: Any,
    join: Any,
    backup: Any,
    on_error: Any,
    retries: Any,
    pool: Any,
    weight: Any,
    progress: Any,
    shapes: Any,
) -> None:
    """Refuse options that are none."""
    if shapes not in (None, "any", "few", "padded"):
        raise InputError(f"shapes {shapes!r}: expected 'any', 'few' or 'padded'")
    if mode not in ("async", "sync"):
        raise InputError(f"mode {mode!r}: expected 'async' or 'sync'")
    if on_error not in ("retry", "fail", "skip"):
        raise InputError(f"on_error {on_error!r}: expected 'retry', 'fail' or 'skip'")
    within("weight", weight, "more than 0", 1e-12, optional=False)
    within("retries", retries, "0 or more", whole=True, optional=False)
    within("dim", dim, "a dimension", -1e3, 1e3, whole=True, optional=False)
    if not isinstance(backup, bool):
        raise InputError(f"backup {backup!r}: expected True or False")
    if pool is not None and not isinstance(pool, WorkerPool):
        raise InputError(f"pool {pool!r}: expected a dispatch.Pool")
    if join is not None and (reduce is not None or not (join == "list" or callable(join))):
        raise InputError(f"join {join!r}: expected a function or 'list', and no reduce beside it")
    check_functions(reduce=reduce, progress=None if isinstance(progress, bool) else progress)


def check_cursor(cursor: Any) -> None:
    """Refuse what hands out no ranges."""
    if cursor is not None and not (hasattr(cursor, "take") and hasattr(cursor, "remaining")):
        raise InputError(f"cursor {cursor!r}: expected an object with take(n) and remaining")


def check_resume(resume: Any, source: Source) -> None:
    """Refuse to resume what is no outcome of this batch."""
    if resume is None:
        return
    if not isinstance(resume, BatchOutcome):
        raise InputError(f"resume {resume!r}: expected the outcome of an earlier attempt")
    if not isinstance(source, WholeBatch):
        raise InputError("what was read from a generator is gone: only a batch of known size can be resumed")
    before = getattr(resume.output, "total", None)
    if before not in (None, source.total):
        raise InputError(f"resume: the outcome is of a batch of {before} items, found one of {source.total}")
    if resume.mark and mark_of(source, resume.missing) not in ("", resume.mark):
        start, stop = resume.missing[0]
        raise InputError(f"resume: the outcome is of another batch: its items from {start} to {stop} were others")
