"""What is seen of programs while they run: processor time, memory, and how fast they are on their cores."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.errors import DovetailError
from dovetail.core.events import Measured
from dovetail.core.inbox import Inbox
from dovetail.host.live.control import Control
from dovetail.host.live.reconciler import Attempt
from dovetail.host.program import TASK

_RATE_NEWS = 0.2  # a share of the rate


class Samples:
    """The scheduler hears of a program's speed, as its agent tells it, when it is new or has changed a good deal."""

    def __init__(self, inbox: Inbox, control: Control) -> None:
        self._inbox, self._control = inbox, control
        self._rates: dict[str, dict[int, float]] = {}  # what the scheduler was told

    def look(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.state not in ("running", "paused"):
                continue
            try:
                attempt.usage = attempt.executor.usage(attempt.run) or attempt.usage
            except (OSError, DovetailError):
                continue  # it ends just now
            line = self._control.line(attempt.run)
            if line is not None and line.progress.cores and line.progress.rate:
                self._learn(attempt.job, line.progress.cores, line.progress.rate)

    def _learn(self, job: str, cores: int, rate: float) -> None:
        known = self._rates.setdefault(job, {})
        if abs(rate - known.get(cores, 0.0)) > _RATE_NEWS * rate:
            known[cores] = rate
            self._inbox.put(Measured(job, TASK, cores, rate))
