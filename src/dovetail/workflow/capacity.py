"""GPUs that come and go while a run goes on: the scheduler's side, and what they are paid for."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from dovetail.core.events import (
    Added,
    Decided,
    Failed,
    Finished,
    Instruction,
    Observed,
    Prepare,
    PrepareEnded,
    Start,
    WakeAt,
)
from dovetail.core.resources import devices_text
from dovetail.workflow.inputs.gpus_over_time import GpusOverTime
from dovetail.workflow.policies.view import View

EMPTIED, GONE, BACK = "emptied", "gone", "back"  # what a live run observes of GPUs
GONE_BEFORE = "they were gone before"  # said at the start of a journal
NUMBER = "n"  # the how-manieth thing that a live run saw: GPUs, loaded models and tokens count


def follow(event: Observed | Added, view: View) -> bool:
    """GPUs have joined, lost what they held, are gone with it, or are back: whether it is about GPUs at all."""
    if isinstance(event, Added):
        if event.devices:
            view.extend(view.pool.joined(event.devices, event.types))
        return bool(event.devices)
    if event.what not in (EMPTIED, GONE, BACK):
        return False
    gpus: list[int] = event.facts["gpus"]
    if event.what == BACK:
        view.resize([gpu for gpu in gpus if gpu in view.off], {})
    else:
        view.empty(gpus)
        view.resize((), {gpu: inf for gpu in gpus if event.what == GONE and gpu not in view.off})
    return True


class CapacityFollower:
    """Opens and closes the GPUs of a view when it is time to."""

    def __init__(self, given: GpusOverTime, view: View) -> None:
        self._view = view
        self._left = given.changes(view.size)[::-1]  # the next one last
        self._wake_s = -inf

    def follow(self, now: float, out: list[Instruction]) -> bool:
        """Whether anything changed at this instant."""
        changed = False
        while self._left and self._left[-1].at_s <= now:
            change = self._left.pop()
            self._view.resize(change.opened, change.closed)
            changed = True
            facts = {"opened": list(change.opened), "closed": list(change.closed), "gpus": self._view.size}
            out.append(Decided("gpus", _why(change.opened, tuple(change.closed)), facts))
        if self._left and self._left[-1].at_s != self._wake_s:
            self._wake_s = self._left[-1].at_s
            out.append(WakeAt(self._wake_s))
        return changed


def _why(opened: tuple[int, ...], closed: tuple[int, ...]) -> str:
    said = [f"{text} {devices_text(gpus)}" for text, gpus in (("opens", opened), ("closes", closed)) if gpus]
    return f"the plan {' and '.join(said)}"


class GpuHours:
    """What is paid for: a GPU from when it is wanted until it has gone, at the latest until all is done."""

    def __init__(self, given: GpusOverTime, size: int) -> None:
        self._wanted = [given.wanted(gpu) for gpu in range(size)]
        self._began: dict[tuple[str, str | int], tuple[float, tuple[int, ...]]] = {}
        self._late = [dict[float, float]() for _ in range(size)]  # when what ran at a closing ended
        self._end_s = 0.0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Start:
                self._began[event.job, event.task] = (t, event.devices)
            elif type(event) is Finished or type(event) is Failed:
                self._end_s = t
                self._ended((event.job, event.task), t)
            elif type(event) is Prepare:
                self._began["preload", event.id] = (t, event.devices)
            elif type(event) is PrepareEnded:
                self._ended(("preload", event.id), t)

    def _ended(self, key: tuple[str, str | int], t: float) -> None:
        began, gpus = self._began.pop(key, (t, ()))
        for gpu in gpus:
            for _, gone in self._wanted[gpu]:
                if began < gone < t:
                    self._late[gpu][gone] = t

    def total(self) -> float:
        paid_s = 0.0
        for gpu, wanted in enumerate(self._wanted):
            until = 0.0
            for since, gone in wanted:
                begin, until = max(since, until), max(until, min(self._end_s, self._late[gpu].get(gone, gone)))
                paid_s += max(until - begin, 0.0)
        return paid_s / 3600
