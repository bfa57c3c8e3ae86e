"""Whether every start was on GPUs that were there, from the header's counts over time alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from dovetail.core.events import Failed, Finished, Prepare, PrepareEnded, Start
from dovetail.core.findings import Findings, close
from dovetail.workflow.check.starts import StartRules
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime


class GpusOnRules:
    """Finds starts on GPUs that are off, tells the rules of starts of those that come back empty, and recounts what was
    paid for."""

    def __init__(self, given: GpusOverTime, size: int, rules: StartRules | None, faults: Findings) -> None:
        self._steps, self._delay_s = given.steps, given.scale_up_s
        self._times = [at_s for at_s, _ in given.steps]
        self._known: dict[tuple[int, int], float | None] = {}
        self._rules, self._faults = rules, faults
        returns = {at_s + self._delay_s for at_s, _ in self._steps[1:]}
        self._returns = sorted((t, gpu) for t in returns for gpu in range(size) if self._comes_back(gpu, t))
        self._next = 0
        self._size = size
        self._began: dict[tuple[str, str | int], tuple[float, tuple[int, ...]]] = {}
        self._running: Counter[int] = Counter()
        self._late: list[list[tuple[float, float]]] = [[] for _ in range(size)]  # tasks that had a GPU while it went
        self._end_s = 0.0

    def _since(self, gpu: int, t: float) -> float | None:
        """Since when a GPU is wanted that is wanted at this instant."""
        last = bisect_right(self._times, t) - 1
        if (gpu, last) not in self._known:
            first = last
            while first >= 0 and gpu < self._steps[first][1]:
                first -= 1
            self._known[gpu, last] = self._times[first + 1] if first < last else None
        return self._known[gpu, last]

    def _on(self, gpu: int, t: float) -> bool:
        since = self._since(gpu, t)
        return since is not None and (since == 0 or t >= since + self._delay_s)

    def _comes_back(self, gpu: int, t: float) -> bool:
        """Whether it can be used at this instant for the first time again."""
        since = self._since(gpu, t)
        return since is not None and since > 0 and since + self._delay_s == t

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._return(lambda at_s: at_s < t)
        for event in events:
            if type(event) is Finished or type(event) is Failed:
                self._ended((event.job, event.task), t)
                self._end_s = max(self._end_s, t)
            elif type(event) is PrepareEnded:
                self._ended(("preload", event.id), t)
        self._return(lambda at_s: at_s == t)
        for event in events:
            if isinstance(event, Start | Prepare):
                key = (event.job, event.task) if isinstance(event, Start) else ("preload", event.id)
                self._began[key] = (t, event.devices)
                self._running.update(event.devices)
                for gpu in event.devices:
                    if gpu < self._size and not self._on(gpu, t):
                        who = f"{key[0]}/{key[1]}"
                        self._faults.add("off", who, f"started at {t} s on GPU {gpu}, which is off then")

    def _return(self, due: Any) -> None:
        while self._next < len(self._returns) and due(self._returns[self._next][0]):
            gpu = self._returns[self._next][1]
            if self._rules is not None and not self._running[gpu]:
                self._rules.empty(gpu)
            self._next += 1

    def _ended(self, key: tuple[str, str | int], t: float) -> None:
        began, gpus = self._began.pop(key, (t, ()))
        self._running.subtract(gpus)
        for gpu in gpus:
            if gpu < self._size and ((since := self._since(gpu, t)) is None or since > began):
                self._late[gpu].append((began, t))

    def check_claim(self, claimed: float | None) -> None:
        """The GPU-hours that a run says it was paid for: wanted or held, until the last task ended."""
        paid_s = 0.0
        for gpu in range(self._size):
            wanted = [(a, b) for (a, gpus), b in zip(self._steps, [*self._times[1:], inf], strict=True) if gpu < gpus]
            until = 0.0
            for begin, gone in sorted([*wanted, *self._late[gpu]]):
                end = min(gone, self._end_s)
                paid_s += max(0.0, end - max(begin, until))
                until = max(until, end)
        if claimed is None or not close(claimed, paid_s / 3600):
            self._faults.add("summary", "gpu_hours", f"found {claimed}, expected {paid_s / 3600}")
