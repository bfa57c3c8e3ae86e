"""What only live runs tell: GPUs that go and come back, models that are loaded, requests that nobody wants any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Complete,
    Failed,
    Finished,
    Observed,
    Prepare,
    Reject,
    Settled,
    Start,
    Stop,
)
from dovetail.core.findings import Findings
from dovetail.core.journal import Header
from dovetail.workflow.capacity import BACK, EMPTIED, GONE, NUMBER
from dovetail.workflow.check.starts import StartRules
from dovetail.workflow.gpus.sharing import FIRST_TOKEN, TOKENS

Key = tuple[str, str]


class LiveRules:
    """Follows what was seen, tells the rules of starts of it, and finds what cannot be or was not heeded."""

    def __init__(self, header: Header, rules: StartRules | None, faults: Findings) -> None:
        self._rules, self._faults = rules, faults
        self._size = len(header.pool)
        self._away: set[int] = set()
        self._open: set[str] = set()
        self._running: dict[Key, Start] = {}
        self._told: dict[Key, set[str]] = {}  # what was seen of a node that runs
        self._seen = 0  # GPUs, loaded models, tokens
        self._numbered = False  # older journals are not

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        stopped = {(event.job, event.task) for event in events if type(event) is Stop}
        cancelled = {event.job for event in events if type(event) is Reject and event.cancelled}
        ended = {event.job for event in events if isinstance(event, Arrived | Finished | Failed)}
        asked = set[str]()
        self._count(events)
        for event in events:
            kind = type(event)
            if kind is Start:
                self._start(t, event)
            elif kind is Prepare and (gone := self._away.intersection(event.devices)):
                where = f"begun at {t} s on GPU {min(gone)}, which is gone then"
                self._faults.add("off", f"preload {event.id}", where)
            elif kind is Finished or kind is Failed:
                self._running.pop((event.job, event.task), None)
                self._told.pop((event.job, event.task), None)
            elif kind is Arrived:
                self._open.add(event.job)
            elif kind is Asked and event.what == "cancel" and event.job in self._open:
                asked.add(event.job)
            elif kind is Complete or kind is Reject:
                self._open.discard(event.job)
            else:
                self._see(event)
        for job in sorted(asked | cancelled):
            self._cancel(job, job in asked, job in cancelled, stopped, job in ended)
        for job, task in stopped:
            if job not in cancelled:
                self._faults.add("cancel", f"{job}/{task}", "stopped, but its request was not cancelled")

    def _count(self, events: Sequence[Any]) -> None:
        """Each observation says how many there were with it; those of one step are sorted by kind."""
        before = self._seen
        self._seen += sum(isinstance(event, Observed | Settled) for event in events)
        for event in (event for event in events if isinstance(event, Observed)):
            number = event.facts.get(NUMBER)
            if number is None and not self._numbered:
                continue
            self._numbered = True
            if not isinstance(number, int) or not before < number <= self._seen:
                found = f"found {event.what} as number {number} of what was seen"
                self._faults.add("seen", "", f"{found}, expected {before + 1} to {self._seen}: something is missing")
                self._seen = max(number if isinstance(number, int) else 0, self._seen)

    def _start(self, t: float, start: Start) -> None:
        self._running[start.job, start.task] = start
        if gone := self._away.intersection(start.devices):
            where = f"started at {t} s on GPU {min(gone)}, which is gone then"
            self._faults.add("off", f"{start.job}/{start.task}", where)

    def _cancel(self, job: str, asked: bool, cancelled: bool, stopped: set[Key], ended: bool) -> None:
        if not asked:
            self._faults.add("cancel", job, "cancelled, but nobody asked for that")
            return
        if not cancelled:
            if job in self._open or not ended:  # else it was closed before it was asked
                self._faults.add("cancel", job, "asked to be cancelled, but it was not")
            return
        for key in self._running:
            if key[0] == job and key not in stopped:
                self._faults.add("cancel", "/".join(key), "its request was cancelled, but it was not stopped")

    def _see(self, event: Any) -> None:
        if isinstance(event, Added):
            self._size += len(event.devices)
            if self._rules is not None:
                self._rules.extend(event)
        elif isinstance(event, Settled):
            key, start = (event.job, event.task), self._running.get((event.job, event.task))
            if start is not None and start.devices != event.devices:
                found = f"found it loaded on {list(event.devices)}, but it was started on {list(start.devices)}"
                self._faults.add("seen", "/".join(key), found)
            self._tell(key, "loaded")
        elif isinstance(event, Observed) and event.what in (EMPTIED, GONE, BACK):
            self._gpus(event)
        elif isinstance(event, Observed) and event.what in (FIRST_TOKEN, TOKENS):
            self._tell((str(event.facts.get("job")), str(event.facts.get("task"))), event.what)

    def _tell(self, key: Key, what: str) -> None:
        """A node is loaded, then its first token comes, then it is told how many there were, each once."""
        told, who = self._told.setdefault(key, set()), "/".join(key)
        if key not in self._running:
            self._faults.add("seen", who, f"told {what}, but it does not run")
        elif what in told:
            self._faults.add("seen", who, f"told {what} twice")
        elif told and what == "loaded":
            self._faults.add("seen", who, f"told {what} after {min(told)}")
        told.add(what)

    def _gpus(self, event: Observed) -> None:
        gpus = event.facts.get("gpus")
        if not isinstance(gpus, list) or not all(type(gpu) is int and 0 <= gpu < self._size for gpu in gpus):
            self._faults.add("seen", "", f"found GPUs {gpus} {event.what}, expected a list of 0 to {self._size - 1}")
            return
        if event.what == BACK:
            self._away.difference_update(gpus)
            return
        if event.what == GONE:
            self._away.update(gpus)
        if self._rules is not None:
            for gpu in gpus:
                self._rules.empty(gpu)
