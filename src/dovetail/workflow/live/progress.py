"""What becomes of live runs, as the journal's steps tell it: their state, their nodes, and who follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dovetail.core.events import (
    Arrived,
    Complete,
    Failed,
    Finished,
    Grew,
    Observed,
    Reject,
    Settled,
    Start,
)
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.capacity import EMPTIED
from dovetail.workflow.gpus.sharing import FIRST_TOKEN
from dovetail.workflow.live.book import RunEnd, RunRecord
from dovetail.workflow.live.protocol import unloadable
from dovetail.workflow.live.runs import Blame, EventKind, NodeStatus, RunEvent, RunState, RunStatus

Follower = Callable[[RunEvent], None]


class LiveRun:
    """A run from its acceptance to its end; ended ones stay as long as the book keeps them."""

    __slots__ = (
        *("arrived", "base", "blame", "ended_s", "error", "events", "first_token_s", "followers", "kept", "nodes"),
        *("notes", "record", "started_s", "state"),
    )

    def __init__(self, record: RunRecord, base: int = 0) -> None:
        self.record = record
        self.base = base  # events are numbered on from here
        self.state: RunState = "queued"
        self.nodes: dict[str, NodeStatus] = {}
        self.events: list[RunEvent] = []
        self.followers: list[Follower] = []
        self.arrived = False  # in the journal
        self.kept = True  # its end is on disk, if it has ended
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.ended_s: float | None = None
        self.error = ""
        self.blame: Blame | None = None
        self.notes: tuple[str, ...] = ()

    def status(self) -> RunStatus:
        record = self.record
        return RunStatus(
            id=record.id,
            workflow=record.workflow,
            state=self.state if self.kept else "running",
            tenant=record.tenant,
            created=record.created,
            arrived_s=record.arrived_s,
            started_s=self.started_s,
            first_token_s=self.first_token_s,
            ended_s=self.ended_s if self.kept else None,
            nodes={name: replace(node) for name, node in self.nodes.items()},
            error=self.error,
            blame=self.blame,
            trace_id=record.trace_id,
            notes=self.notes,
        )

    def end(self, segment: int, size: int) -> RunEnd:
        assert self.ended_s is not None
        return RunEnd(
            state=self.state,
            ended_s=self.ended_s,
            started_s=self.started_s,
            first_token_s=self.first_token_s,
            nodes=self.nodes,
            error=self.error,
            blame=self.blame,
            segment=segment,
            bytes=size,
        )

    @classmethod
    def ended(cls, record: RunRecord, end: RunEnd, base: int = 0) -> LiveRun:
        """One that ended before the service was last started."""
        run = cls(record, base)
        run.state, run.nodes, run.error, run.blame = end.state, end.nodes, end.error, end.blame
        run.started_s, run.first_token_s, run.ended_s = end.started_s, end.first_token_s, end.ended_s
        run.arrived = True
        run.tell("queued", record.arrived_s)
        kind: EventKind = (
            "completed" if end.state == "completed" else "failed" if end.state == "failed" else "cancelled"
        )
        run.tell(kind, end.ended_s, data={"error": end.error} if end.error else {})
        return run

    def tell(
        self, kind: EventKind, t: float, node: str | None = None, text: str = "", tokens: int = 0, data: Any = None
    ) -> RunEvent:
        event = RunEvent(
            n=(self.events[-1].n if self.events else self.base) + 1,
            t=t,
            kind=kind,
            node=node,
            text=text,
            tokens=tokens,
            data=data or {},
        )
        self.events.append(event)
        return event


class ProgressTable:
    """All runs by id. Followers are called under the lock of all, in order: they must not block, nor raise.

    A step is first followed and then, once it is kept, told to those who follow; what comes meanwhile is told with it.
    """

    def __init__(self, base: int) -> None:
        """`base` is what events are numbered on from."""
        self.base = base
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.runs: dict[str, LiveRun] = {}
        self.open: dict[str, LiveRun] = {}
        self.graphs: Mapping[str, TaskGraph] = {}  # of the journal's segment
        self._untold: list[tuple[LiveRun, RunEvent]] = []
        self._keeping = False  # a step was followed, and is not kept yet
        self._emptied: set[tuple[str, str]] = set()  # nodes whose GPU was emptied while they were there

    def add(self, run: LiveRun) -> None:
        with self.lock:
            self.runs[run.record.id] = run
            self.open.pop(run.record.id, None)
            if run.ended_s is None:
                self.open[run.record.id] = run

    def forget(self, known: Mapping[str, Any]) -> None:
        """Let go of the runs that the book does not know any more."""
        with self.lock:
            for run in [run for run in self.runs if run not in known and run not in self.open]:
                del self.runs[run]

    def follow(self, run: LiveRun, callback: Follower, after: int = 0) -> Callable[[], None]:
        with self.lock:
            if 0 < after <= run.base:  # of an earlier process: what it told is told anew
                callback(RunEvent(n=run.base, t=run.record.arrived_s, kind="restarted"))
            untold = {event.n for other, event in self._untold if other is run}  # told when they are kept
            for event in run.events:
                last = run.ended_s is not None and event is run.events[-1]
                if (event.n > after or last) and event.n not in untold:
                    callback(event)
            if run.ended_s is None or not run.kept:
                run.followers.append(callback)

        def unsubscribe() -> None:
            with self.lock:
                if callback in run.followers:
                    run.followers.remove(callback)

        return unsubscribe

    def piece(self, job: str, task: str, text: str, tokens: int, t: float) -> None:
        """A part of a streamed answer."""
        with self.lock:
            if (run := self.open.get(job)) is not None and run.record.stream:
                self._untold.append((run, run.tell("piece", t, task, text, tokens)))
                self._tell_kept()

    def step(self, t: float, events: Sequence[Any]) -> list[LiveRun]:
        """Follow a step, `t` in seconds since the service first began; gives the runs that ended in it."""
        ended: list[LiveRun] = []
        self._keeping = True
        for event in events:
            run = self.open.get(getattr(event, "job", "")) if type(event) is not Observed else None
            if run is not None:
                self._follow(run, t, event)
                if run.ended_s is not None:
                    ended.append(run)
                    del self.open[run.record.id]
            elif type(event) is Observed and event.what == FIRST_TOKEN:
                self._first_token(t, event)
            elif type(event) is Observed and event.what == EMPTIED:
                self._empty(set(event.facts["gpus"]))
        return ended

    def _empty(self, gpus: set[int]) -> None:
        """What fails next on these GPUs is not to blame for it."""
        for run in self.open.values():
            for name, node in run.nodes.items():
                if node.state == "running" and not gpus.isdisjoint(node.gpus):
                    self._emptied.add((run.record.id, name))

    def end(self, run: LiveRun, t: float, state: RunState) -> None:
        """A run has ended, though no step says so."""
        with self.lock:
            self._end(run, t, state)
            del self.open[run.record.id]
            self._tell_kept()

    def _tell_kept(self) -> None:
        if not self._keeping:
            self.tell()

    def tell(self) -> None:
        """What was followed is kept: let those know who follow it."""
        self._keeping = False
        told, self._untold = self._untold, []
        for run, event in told:
            for follower in tuple(run.followers):
                follower(event)
            if run.ended_s is not None and event is run.events[-1]:
                run.followers.clear()
        self.changed.notify_all()

    def _follow(self, run: LiveRun, t: float, event: Any) -> None:
        if type(event) is Arrived:
            self._arrive(run, event)
        elif type(event) is Start:
            self._start(run, t, event)
        elif type(event) is Settled:
            run.nodes[event.task].why = "its model is loaded"
        elif type(event) is Grew:
            run.nodes |= {task.name: NodeStatus(model=task.kind) for task in event.tasks}
        elif type(event) is Finished:
            node = run.nodes[event.task]
            node.state, node.ended_s, node.why = "completed", t, ""
            self._tell(run, "node done", t, event.task)
        elif type(event) is Failed:
            node = run.nodes[event.task]
            node.state, node.ended_s, node.why = "waiting", t, event.why
            not_loaded = not node.gpus and event.why.startswith(unloadable(node.model))
            innocent = event.lost or not_loaded or (event.job, event.task) in self._emptied
            self._emptied.discard((event.job, event.task))
            run.error, run.blame = event.why, "place" if innocent else "call"
        elif type(event) is Complete:
            run.error, run.blame = "", None
            self._end(run, t, "completed")
        elif type(event) is Reject:
            self._reject(run, t, event)

    def _arrive(self, run: LiveRun, event: Arrived) -> None:
        run.arrived = True
        for task in self.graphs[event.of].tasks if event.of in self.graphs else ():
            run.nodes.setdefault(task.name, NodeStatus(model=task.kind))
        if not run.events:
            self._tell(run, "queued", run.record.arrived_s)

    def _start(self, run: LiveRun, t: float, event: Start) -> None:
        node = run.nodes[event.task]
        node.state, node.gpus, node.started_s, node.why = "running", event.devices, t, event.why
        node.attempts += 1
        if run.started_s is None:
            run.started_s, run.state = t, "running"
        kind: EventKind = "restarted" if node.attempts > 1 else "started"
        self._tell(run, kind, t, event.task, data={"model": event.kind, "gpus": list(event.devices), "why": event.why})

    def _first_token(self, t: float, event: Observed) -> None:
        run = self.open.get(event.facts.get("job", ""))
        node = None if run is None else run.nodes.get(event.facts.get("task", ""))
        if run is None or node is None:
            return
        node.first_token_s = t
        if run.first_token_s is None:
            run.first_token_s = t
        self._tell(run, "first token", t, event.facts["task"])

    def _reject(self, run: LiveRun, t: float, event: Reject) -> None:
        wish = run.record.wish
        if event.cancelled and wish is not None:
            state, run.error = wish
            run.blame = "queue" if state == "failed" else None
        else:
            state = "cancelled" if event.cancelled else "failed"
            run.error = event.why
            run.blame = None if event.cancelled else run.blame or ("queue" if event.queue else "call")
        self._end(run, t, state)

    def _end(self, run: LiveRun, t: float, state: RunState) -> None:
        run.state, run.ended_s = state, t
        for node in run.nodes.values():
            if node.state in ("waiting", "running"):
                node.state, node.ended_s = "cancelled" if state == "cancelled" else "failed", t
        run.events = [event for event in run.events if event.kind != "piece"]
        kind: EventKind = "completed" if state == "completed" else "failed" if state == "failed" else "cancelled"
        self._tell(run, kind, t, data={"error": run.error} if run.error else None)

    def _tell(self, run: LiveRun, kind: EventKind, t: float, node: str | None = None, data: Any = None) -> None:
        self._untold.append((run, run.tell(kind, t, node, data=data)))

    def waiting(self) -> Iterator[LiveRun]:
        """Open runs of which nothing has started, the oldest first."""
        return (run for run in self.open.values() if run.started_s is None)
