"""What is seen of programs while they run: processor time, memory, and how fast they are on their cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.core.errors import DovetailError
from dovetail.core.events import Measured, Stimulus
from dovetail.host.live.control import Control
from dovetail.host.live.executors import Usage
from dovetail.host.live.reconciler import Attempt
from dovetail.host.program import TASK

_RATE_NEWS = 0.2  # a share of the rate


class Samples:
    """`usage` is by run. If it `learns`, the scheduler hears of every program's speed, as its agent tells it."""

    def __init__(self, put: Callable[[Stimulus], None], control: Control, learns: bool) -> None:
        self.usage: dict[str, Usage] = {}
        self._put, self._control, self._learns = put, control, learns
        self._rates: dict[str, dict[int, float]] = {}  # what the scheduler was told

    def look(self, programs: Iterable[Attempt]) -> None:
        for attempt in programs:
            if attempt.state not in ("running", "paused"):
                continue
            try:
                usage = attempt.executor.usage(attempt.run)
            except (OSError, DovetailError):
                continue  # it ends just now
            if usage is not None:
                self.usage[attempt.run] = usage
            if self._learns:
                self._learn(attempt)

    def _learn(self, attempt: Attempt) -> None:
        """Tell of a speed when it is new, or has changed a good deal."""
        line = self._control.line(attempt.run)
        if line is None or not line.progress.cores or not line.progress.rate:
            return
        cores, rate = line.progress.cores, line.progress.rate
        known = self._rates.setdefault(attempt.job, {})
        if abs(rate - known.get(cores, 0.0)) > _RATE_NEWS * rate:
            known[cores] = rate
            self._put(Measured(attempt.job, TASK, cores, rate))
