"""What became of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Event
from time import perf_counter
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from dovetail.core.journal.recorder import host_clock
from dovetail.core.results.run import JournalFile
from dovetail.dispatch.bounds import measured_peak
from dovetail.dispatch.inputs.batch import Source
from dovetail.dispatch.inputs.devices import NodeDevice, carrier
from dovetail.dispatch.live.errors import Failure, combined
from dovetail.dispatch.live.mapping.fingerprint import fingerprint
from dovetail.dispatch.metrics import BatchReport, DispatchRun
from dovetail.dispatch.policies.base import Policy
from dovetail.dispatch.recording import LIVE, BatchJournal, header_of
from dovetail.dispatch.replay import RecordedScheduler

_MARKED = 8  # ranges of an outcome


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
    mark: str = ""  # of some of the items that are missing

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


def mark_of(source: Source, missing: Sequence[tuple[int, int]]) -> str:
    """A few letters for the first items of the ranges that are missing; none if they cannot be written down."""
    try:
        return fingerprint([source.slice(start, start + 1) for start, _ in missing[:_MARKED]])
    except Exception:
        return ""


def begin_journal(
    file: JournalFile,
    scheduler: RecordedScheduler,
    items: int | None,
    facts: Mapping[str, Any],
    policy: str,
    options: Mapping[str, Any],
    devices: Sequence[NodeDevice],
    lock: AbstractContextManager[Any],
    ended: Event,
) -> BatchJournal:
    """The journal of a run that begins now."""
    header = header_of(
        scheduler,
        policy=policy,
        mode=LIVE,
        items=items,
        peaks=[measured_peak(state.curve) for state in scheduler.view.devices],
        options=options,
        clock=host_clock(),
        zero_s=perf_counter(),
        hardware={device.name: carrier(device) for device in devices},
        facts=facts,
    )
    assert file.path is not None
    return BatchJournal(file.path, header, scheduler, lock, ended)


def run_of(
    file: JournalFile,
    report: Callable[[], BatchReport],
    name: str,
    own: Policy | None = None,
    claims: Mapping[str, Any] = MappingProxyType({}),
) -> DispatchRun:
    """A run as it is told to who asks; `own`: a policy that has no name, `claims`: what its journal ends with."""
    return DispatchRun(file, {**report().metrics(name), **claims}, own)
