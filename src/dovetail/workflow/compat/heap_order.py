"""What `--compat gswarm` needs to give the older scheduler's numbers to the last bit: its order of simultaneous events.

It kept arrivals and completions in one `heapq` that compares times only, so ties fall as its sifting leaves them; and
it called a GPU free from the instant on at which its node ends, even if that completion was still in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import inf
from typing import Any

from dovetail.core.events import Arrived, Failed, Finished, Instruction, Observed, Reject, Stimulus, Woke
from dovetail.core.journal import Observer
from dovetail.workflow.inputs.request_entries import SAME_ID
from dovetail.workflow.policies.base import Place, Wait
from dovetail.workflow.policies.ready import OpenRequest
from dovetail.workflow.policies.view import View
from dovetail.workflow.scheduler import WorkflowScheduler

_NEVER = 1 << 30  # more nodes than any waits for
_TAKEN = "completion taken"  # what was told before, when its GPUs became free


class _ByTime:
    __slots__ = ("at_s", "stimulus")

    def __init__(self, at_s: float, stimulus: Stimulus) -> None:
        self.at_s = at_s
        self.stimulus = stimulus

    def __lt__(self, other: _ByTime) -> bool:
        return self.at_s < other.at_s


class HeapOrder:
    """An agenda without a total order: all arrivals are pushed first, and one event is taken at a time.

    A step is what was taken, last, and before it whatever ends at the same instant and was not told yet. An end that
    was told is only observed when its turn in the heap comes. What ends as it begins is told at once.
    """

    def __init__(self, arrivals: Iterable[tuple[float, Arrived]]) -> None:
        self._heap: list[_ByTime] = []
        self._now = -inf
        self._ends: dict[float, list[Finished | Failed]] = {}  # by instant, what ends then and was not told
        for at_s, request in arrivals:
            self.push(at_s, request)

    def push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._heap, _ByTime(at_s, stimulus))
        if isinstance(stimulus, Finished | Failed):
            self._ends.setdefault(at_s, []).append(stimulus)

    def cancel(self, stimulus: Stimulus) -> None:
        self._heap = [event for event in self._heap if event.stimulus is not stimulus]
        heapq.heapify(self._heap)
        for at_s, ends in self._ends.items():
            self._ends[at_s] = [end for end in ends if end is not stimulus]

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        if not self._heap:
            return None
        now = self._heap[0].at_s
        ends = self._ends.pop(now, [])
        if ends and now == self._now:
            return now, [*ends, Woke()]
        self._now = now
        taken = heapq.heappop(self._heap).stimulus
        if isinstance(taken, Finished | Failed):
            others = [end for end in ends if end is not taken]
            if len(others) == len(ends):
                taken = Observed(_TAKEN, {"job": taken.job, "task": taken.task})
            return now, [*others, taken]
        return now, [*ends, taken]


class HeapScheduler(WorkflowScheduler):
    """Takes one event at a time, as `HeapOrder` gives them: of what merely ends too, only the GPUs become free.

    A request with the id of an earlier one takes its place: of that one, what is ready goes on, and the rest is lost.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._told: dict[tuple[str, str], Stimulus] = {}
        self._chooses, self._choose = self._choose, self._choose_on
        self._over = False
        self._latest: dict[str, str] = {}  # of those that share an id, who arrived last
        self._lost: list[OpenRequest] = []

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        *ends, taken = stimuli
        self.view.now, self._over = now, False
        for end in ends:
            assert isinstance(end, Finished | Failed)
            key = (end.job, end.task)
            self._release(key, self._running[key][1])
            self._told[key] = end
        if isinstance(taken, Observed) and taken.what == _TAKEN:
            taken = self._told[taken.facts["job"], taken.facts["task"]]
        return super().handle([taken], now)

    def _release(self, key: tuple[str, str], window: tuple[int, ...]) -> None:
        if self._told.pop(key, None) is None:
            super()._release(key, window)

    def _arrived(self, event: Arrived, now: float, out: list[Instruction]) -> None:
        super()._arrived(event, now, out)
        id = event.facts.get(SAME_ID, event.job)
        earlier = self._requests.get(self._latest.get(id, id))
        if id != event.job or id in self._latest:
            self._latest[id] = event.job
            if earlier is not None and any(earlier.waiting):
                earlier.waiting = [count and _NEVER for count in earlier.waiting]
                self._lost.append(earlier)

    def close(self, now: float) -> list[Instruction]:
        out = super().close(now)
        for request in [request for request in self._lost if request.id in self._requests]:
            out.append(Reject(request.id, "its id was used again: nodes that were not ready then never run"))
            del self._requests[request.id]
        return out

    def _start(self, choice: Place, now: float, out: list[Instruction]) -> None:
        super()._start(choice, now, out)
        self._over = self.view.until[choice.window[0]] <= now if choice.window else False

    def _choose_on(self, view: View) -> Place | Wait | None:
        """Nobody is placed after what ends as it begins, until its GPUs are known to be free again."""
        return None if self._over else self._chooses(view)


class AsTaken:
    """Tells a log of a run when completions were taken, as the older scheduler wrote them down, not when they ended."""

    def __init__(self, log: Observer) -> None:
        self._log = log
        self._told: dict[tuple[str, str], Finished | Failed] = {}

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        shown: list[Any] = []
        for event, following in zip_longest(events, events[1:]):
            if isinstance(event, Finished | Failed) and isinstance(following, Stimulus):
                self._told[event.job, event.task] = event
            elif isinstance(event, Observed) and event.what == _TAKEN:
                shown.append(self._told.pop((event.facts["job"], event.facts["task"])))
            else:
                shown.append(event)
        self._log.step(n, t, shown)
