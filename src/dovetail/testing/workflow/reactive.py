"""The rule that a plan over time must beat: as many GPUs in the next interval as the use of the last one asks for."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from msgspec.structs import replace

from dovetail.core.events import Finished, Start
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.simulate import WorkflowRun, run


class _BusyTime:
    """GPU-seconds that were held between two instants."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._begin_s, self._end_s = begin_s, end_s
        self._since: dict[tuple[str, str], tuple[float, int]] = {}
        self.seconds = 0.0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Start):
                self._since[event.job, event.task] = (t, len(event.devices))
            elif isinstance(event, Finished):
                began, width = self._since.pop((event.job, event.task))
                self.seconds += width * max(0.0, min(t, self._end_s) - max(began, self._begin_s))


def scale_on_use(
    problem: WorkflowProblem, policy: str, *, intervals: int, every_s: float, scale_up_s: float, use: float, least: int
) -> tuple[list[int], WorkflowRun]:
    """The numbers of GPUs that it has, the first from all that there are, and the run with them: it decides at the
    end of each interval, so those that it adds are there `scale_up_s` later."""
    counts = [len(problem.pool)]
    while True:
        steps = [(i * every_s, count) for i, count in enumerate(counts) if i == 0 or count != counts[i - 1]]
        busy = _BusyTime((len(counts) - 1) * every_s, len(counts) * every_s)
        changed = replace(problem, gpus_over_time=GpusOverTime(tuple(steps), scale_up_s))
        found = run(changed, policy, journal=False, observers=[busy])
        if len(counts) == intervals:
            return counts, found
        counts.append(min(max(ceil(busy.seconds / every_s / use), least), len(problem.pool)))
