"""What is seen of programs while they run: processor time, memory, and how fast they are on their cores."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.core.errors import DovetailError
from dovetail.core.events import Measured
from dovetail.core.loop.inbox import Inbox
from dovetail.host.live.control import Control
from dovetail.host.live.executors import Usage
from dovetail.host.live.gpus import GpuWatch
from dovetail.host.live.reconciler import Attempt
from dovetail.host.program import TASK

_RATE_NEWS = 0.2  # a share of the rate


class Samples:
    """The scheduler hears of a program's speed, as its agent tells it, when it is new or has changed a good deal."""

    def __init__(self, inbox: Inbox, control: Control, gpus: GpuWatch) -> None:
        self._inbox, self._control, self._gpus = inbox, control, gpus
        self._rates: dict[str, dict[int, float]] = {}  # what the scheduler was told

    def look(self, attempts: Iterable[Attempt]) -> None:
        self._gpus.look()
        for attempt in attempts:
            if attempt.state not in ("running", "paused"):
                continue
            try:
                attempt.usage = _newer(attempt.usage, attempt.executor.usage(attempt.run))
            except (OSError, DovetailError):
                continue  # it ends just now
            attempt.gpu_mib = self._gpus.memory_mib(attempt.usage.processes if attempt.usage else ())
            line = self._control.line(attempt.run)
            if line is not None and line.progress.cores and line.progress.rate:
                self._learn(attempt.job, line.progress.cores, line.progress.rate)

    def _learn(self, job: str, cores: int, rate: float) -> None:
        known = self._rates.setdefault(job, {})
        if abs(rate - known.get(cores, 0.0)) > _RATE_NEWS * rate:
            known[cores] = rate
            self._inbox.put(Measured(job, TASK, cores, rate))


def _newer(before: Usage | None, now: Usage | None) -> Usage | None:
    """What is seen now, with the most memory that was ever seen."""
    return now or before if before is None or now is None else replace(now, peak_mib=max(before.peak_mib, now.peak_mib))
