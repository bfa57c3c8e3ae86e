"""What became of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dovetail.dispatch.live.errors import Failure, combined
from dovetail.dispatch.metrics import BatchReport, DispatchRun


class BatchOutcome(Struct, frozen=True):
    """The result, the ranges that it lacks and why, and the report of the run.

    `recorded` is the run as journals tell it: `metrics` always, and with `Dispatcher(journal=...)` also `journal`,
    `check()`, `replay()`, `report(path)`, `plot()` and the rest.
    """

    result: Any
    missing: list[tuple[int, int]]
    failures: list[Failure]
    reporting: Callable[[], BatchReport]
    output: Any
    recording: Callable[[], DispatchRun]

    def __repr__(self) -> str:
        lacks = f", lacks {self.missing}" if self.missing else ""
        return f"<Outcome of {self.recorded!r}{lacks}, {len(self.failures)} failures>"

    @property
    def report(self) -> BatchReport:
        return self.reporting()

    @property
    def recorded(self) -> DispatchRun:
        return self.recording()

    @property
    def metrics(self) -> dict[str, Any]:
        return self.recorded.metrics

    def unwrap(self) -> Any:
        """The result; or the error, if something failed, with this outcome as its attribute `outcome`."""
        if self.failures:
            error = combined(self.failures)
            error.outcome = self  # type: ignore[attr-defined]
            raise error
        return self.result
