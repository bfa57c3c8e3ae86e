"""The loop of a live service: decides, keeps, carries out, in one segment of the journal after the other.

What must survive is on disk before it is acted on: outputs and a step of the journal before the step is carried out.
After a restart the recorded steps are replayed, and open runs go on.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dovetail.core.errors import InputError, ReplayError
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Failed,
    Finished,
    Observed,
    Prepare,
    PrepareEnded,
    Settled,
    Start,
    Stimulus,
)
from dovetail.core.journal import Header, Step
from dovetail.core.loop.engine import serve
from dovetail.core.service.access import own_folder
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import StoreError
from dovetail.core.tasks import TaskGraphRecord
from dovetail.workflow.capacity import GONE, GONE_BEFORE
from dovetail.workflow.live.book import NodeOutput, PackedInput, RunBook, RunEnd, RunRecord
from dovetail.workflow.live.data_flow import data_flows
from dovetail.workflow.live.door import Door
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.live.loop import SegmentInbox, ServiceExecutor, TimedScheduler
from dovetail.workflow.live.progress import LiveRun, ProgressTable
from dovetail.workflow.live.remainder import remainder
from dovetail.workflow.live.run_values import RunValues
from dovetail.workflow.live.runs import Blame, NodeStatus, RunRequest, RunState
from dovetail.workflow.live.segments import JournalSegment, JournalSegments, fingerprint
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.specs import live_policy
from dovetail.workflow.live.telemetry import Telemetry
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import scheduler_for

_FULL_RETRY_S = 1.0
_EVENTS = 1_000_000_000  # more than a run has: the events of the next process are numbered on behind these
_TOO_LONG = 4  # times as many lines as a segment is to have, after which it is ended by force
_OF_FILES = ("requests", "estimates", "forecast")  # what a header tells of a file of requests


class ServiceLoop:
    """All that a service remembers, and the thread that changes it. What several threads look at is under `lock`."""

    def __init__(
        self,
        problem: WorkflowProblem,
        folder: Path,
        settings: LiveSettings,
        policy: Any,
        options: Mapping[str, Any] | None,
        telemetry: Telemetry,
    ) -> None:
        self.settings, self.telemetry = settings, telemetry
        flows = data_flows(problem.system)
        self.problem = replace(problem, graphs={name: flow.graph for name, flow in flows.items()})
        telemetry.expect(problem.models, self.problem.graphs)
        self._policy, self._options = policy, dict(options or {})
        self.header = self._new_header()
        self._decided_by = fingerprint(self.header)
        power = settings.durability == "power"
        own_folder(folder)
        self.book = RunBook(folder / "runs.db", "full" if power else "normal")
        self.segments = JournalSegments(folder / "journals", self.book.store, sync=power)
        self.now = LastingClock(self.book.store, self.segments.last_s())  # seconds since the service first began
        self.began_s = self.now()
        self.values = RunValues(problem.system, flows, self.book, settings.max_values_mib)
        starts = self.book.store.get("starts", int) or 0
        self.book.store.set("starts", starts + 1)
        self.progress = ProgressTable(starts * _EVENTS)
        self.lock = self.progress.lock
        self.door = Door(settings, problem.tenancy, len(problem.pool))
        self.inbox = SegmentInbox()
        self.carrier: ServiceExecutor
        self.segment: JournalSegment | None = None
        self.scheduler: WorkflowScheduler | None = None
        self._running: set[tuple[str, str | int]] = set()  # nodes, and loads by number, whose end was not reported
        self._held_back: list[Arrived] | None = None  # arrivals that are for the next segment
        self.ready, self.closing = threading.Event(), threading.Event()
        self.trouble = ""
        self.failed = False  # for good: nothing is decided any more

    def _new_header(self) -> Header:
        """Queues are bounded at the door: what has been accepted is not turned away any more."""
        name, _ = live_policy(deepcopy(self._policy), self._options)
        tenancy, limits = self.problem.tenancy, self.settings
        decided = replace(self.problem, tenancy=None if tenancy is None else tenancy.without_queues())
        tries = {"retries": limits.retries, "lost_retries": limits.lost_retries}
        header = decided.header(name, self._options, 0, live=True, **tries)
        return replace(header, facts={name: fact for name, fact in header.facts.items() if name not in _OF_FILES})

    # --- segment after segment ----------------------------------------------------------------------------

    def run(self) -> None:
        """One segment of the journal after the other."""
        try:
            segment = None if self.values.forget_references() else self.segments.resume(self._decided_by)
            if segment is None or not self._follow(segment, resumed=True):
                segment = self._begin(self.book.open(), restarted=True)
                self._follow(segment)
            while not self.closing.is_set():
                segment.finish()
                segment.close()
                self.segments.tidy(self.settings.journal_mib)
                segment = self._begin([])
                self._follow(segment)
            self._learned()
            if not self.progress.open and not self._running:
                segment.finish()
            segment.close()
        except Exception as error:
            self.failed = True
            self.trouble = f"the service has ended: {type(error).__name__}: {error}"
            self.telemetry.log.write("service failed", why=self.trouble, trace=traceback.format_exc())
        finally:
            self.ready.set()
            with self.lock:
                self.progress.changed.notify_all()

    def _begin(self, runs: Sequence[str], restarted: bool = False) -> JournalSegment:
        """A new segment, in which these runs arrive anew: without the nodes that have finished."""
        graphs, growth, now_s = dict(self.problem.graphs), dict(self.problem.growth), self.now()
        arrivals: list[Stimulus] = []
        for run in runs:
            record, progress = self.book.record(run), LiveRun(self.book.record(run), self.progress.base)
            self.progress.add(progress)
            if (why := self._renew(record)) is not None:
                self._end_now(progress, "failed", why)
                continue
            outputs = self.book.outputs(run)
            left = remainder(record, self.problem.graphs[record.workflow], outputs, now_s)
            if outputs:
                progress.nodes = {node: NodeStatus(model="", state="completed") for node in outputs}
                progress.state, progress.started_s = "running", now_s
            if left is None:  # only the journal's last word on it was lost
                self._end_now(progress, "completed")
                continue
            arrivals.append(left.arrival)
            graphs[left.graph.name] = left.graph
            if record.workflow in growth:
                growth[left.graph.name] = growth[record.workflow]
        facts = self.header.facts | ({"growth": msgspec.to_builtins(growth)} if growth else {})
        if learned := self._learned():
            facts["rates"] = learned
        records = tuple(TaskGraphRecord.of(graph) for graph in graphs.values())
        pool = self.header.pool
        if not restarted and self.scheduler is not None:  # GPUs have joined, and some may be gone
            pool, off = self.scheduler.view.pool, [*self.scheduler.view.off]
            arrivals += [Observed(GONE, {"gpus": off, "why": GONE_BEFORE})] if off else []
        header = replace(self.header, graphs=records, facts=facts, pool=pool)
        decided_by = self._decided_by if pool == self.header.pool else ""  # another engine has other GPUs
        segment = self.segments.begin(header, decided_by, now_s)
        with self.lock:
            held, self._held_back = self._held_back or [], None
            self.inbox.seen = 0
            self.inbox.put_first([*arrivals, *held])  # what came since the cut comes after
        return segment

    def _renew(self, record: RunRecord) -> str | None:
        """A run whose workflow is another now begins anew; why it cannot, or None."""
        if record.workflow not in self.values.flows:
            return f"there is no workflow {record.workflow!r} any more"
        if record.shape != self.shape_of(record.workflow):
            self.book.forget_outputs(record.id, self.book.done(record.id))
            given, options = self.book.input(record.id), record.options
            asked = RunRequest(workflow=record.workflow, input=given, options=options, tenant=record.tenant)
            try:
                record.sizes, record.facts = self.values.expected(record.id, asked)
            except InputError as error:
                return f"its workflow is another now: {error}"
            record.shape = self.shape_of(record.workflow)
            self.book.change(record)
        return None

    def shape_of(self, workflow: str) -> str:
        """The nodes of a workflow and their order, in short."""
        return hashlib.sha256(msgspec.json.encode(TaskGraphRecord.of(self.problem.graphs[workflow]))).hexdigest()[:16]

    def _end_now(self, run: LiveRun, state: RunState, error: str = "", blame: Blame = "place") -> None:
        """A run that no journal will tell the end of."""
        now_s, size = self.now(), run.record.bytes + self.book.bytes_of(run.record.id)
        run.error, run.blame = error, blame if state == "failed" else None
        end = RunEnd(
            state=state,
            ended_s=now_s,
            started_s=run.started_s,
            nodes=run.nodes,
            error=error,
            blame=run.blame,
            bytes=size,
        )
        self.book.keep({}, {run.record.id: end})
        self.progress.end(run, now_s, state)
        self.telemetry.end(run)

    def _learned(self) -> dict[str, Any] | None:
        """The rates and loads that were measured so far under what decides now: what is known is kept."""
        if self.scheduler is not None:
            table = self.scheduler.view.rates
            known = {"rates": [*table.rates.values()], "switches": [*table.switches.values()]}
            self.book.store.set("learned", {self._decided_by: known})
        return (self.book.store.get("learned", dict) or {}).get(self._decided_by)

    def _follow(self, segment: JournalSegment, resumed: bool = False) -> bool:
        """Serve until the segment is cut, or the service closed. False if what it holds is decided otherwise now."""
        reader, replayed = segment.reader, False
        self.segment = segment
        self.progress.graphs = graphs = reader.header.build_graphs()
        _, policy = live_policy(deepcopy(self._policy), self._options)
        self.scheduler = scheduler_for(reader, policy)
        scheduler = TimedScheduler(self.scheduler, self.telemetry.decisions.observe)

        def history() -> Iterator[Step]:
            nonlocal replayed
            for step in segment.history():
                if any(isinstance(event, Added) and event.devices for event in step[2]):
                    raise ReplayError("GPUs joined the engine that was there then")
                yield step
                self._recall(*step)
            self._take_up(resumed)
            replayed = True

        try:
            serve(
                scheduler,
                self.problem.pool,
                graphs,
                self.inbox,
                self.carrier,
                lambda: self.now() - segment.record.began_s,
                [self],
                history(),
                LiveGuard(reader.header, reader.path),
            )
        except Exception as error:
            if replayed or not resumed:
                raise
            why = f"{reader.path.name} cannot be decided again as it was: {type(error).__name__}: {error}"
            self.telemetry.log.write("new journal", why=why)
            segment.close()
            self.read_book()
            return False
        return True

    def _recall(self, n: int, t: float, events: Sequence[Any]) -> None:
        """A step that was recorded before the service was started: what became of runs then."""
        with self.lock:
            for event in events:
                if isinstance(event, Arrived) and event.job in self.book.records:
                    self.progress.add(LiveRun(self.book.records[event.job], self.progress.base))
            self.progress.step(self._service_s(t), events)
            self.progress.tell()
            self._note_running(events)
            self.inbox.seen += sum(isinstance(event, Observed | Settled) for event in events)

    def _take_up(self, resumed: bool) -> None:
        """The past is known: put the book right by it, and let what is open go on."""
        with self.lock:
            if self.ready.is_set():  # it goes on in another segment
                return
            for run, progress in self.progress.open.items():
                if run in self.book.ends:
                    self.book.reopen(run)
                if progress.arrived:
                    nodes = progress.nodes
                    for name in self.book.done(run):  # those that finished before this segment began
                        nodes.setdefault(name, NodeStatus(model="", state="completed"))
                    lost = [name for name in self.book.done(run) if nodes[name].state != "completed"]
                    self.book.forget_outputs(run, lost)
                elif resumed:
                    self.inbox.put(self._arrival(progress.record))
                if progress.started_s is None:
                    self._enter(progress.record)
                if progress.record.wish is not None:
                    self.inbox.put(Asked(run, "cancel"))
            self.ready.set()

    def _service_s(self, t: float) -> float:
        assert self.segment is not None
        return t + self.segment.record.began_s

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Keep a step, with the outputs and ends in it, before it is carried out; then tell who follows. While the disk
        is full, nothing is decided."""
        segment, now_s = self.segment, self._service_s(t)
        assert segment is not None
        with self.lock:
            self.telemetry.step(events, now_s, self.progress.open.get)
            outputs = self.values.take(events)
            ended = self.progress.step(now_s, events)
            for run in ended:
                run.kept = False
            ends = {run.record.id: run.end(segment.record.number, self._bytes_of(run, outputs)) for run in ended}
            self._keep(lambda: self.book.keep(outputs, ends))
            self._keep(lambda: segment.step(n, t, events))
            for event in events:
                if isinstance(event, Start):
                    self.door.leave(event.job, now_s, started=True)
            for run in ended:
                run.kept = True
                self.door.leave(run.record.id, now_s, started=False)
                self.telemetry.end(run)
                self.values.forget(run.record.id)
            self.progress.tell()
            self._note_running(events)
            self._cut_if_long(segment)

    def _note_running(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Start):
                self._running.add((event.job, event.task))
            elif isinstance(event, Prepare):
                self._running.add(("preload", event.id))
            elif isinstance(event, PrepareEnded):
                self._running.discard(("preload", event.id))
            elif isinstance(event, Finished | Failed):
                self._running.discard((event.job, event.task))

    def _cut_if_long(self, segment: JournalSegment) -> None:
        """End a long segment when nothing of it is open any more; if that takes too long, who comes waits for it."""
        if segment.lines < self.settings.journal_lines:
            return
        if not self._running and not any(run.arrived for run in self.progress.open.values()):
            self.inbox.cut()
        elif segment.lines >= _TOO_LONG * self.settings.journal_lines and self._held_back is None:
            self._held_back = []

    def _keep(self, write: Callable[[], None]) -> None:
        """Write until it is written: what is not kept may not be done."""
        while True:
            try:
                write()
                break
            except (StoreError, InputError) as error:
                if self.closing.is_set():
                    raise
                if not self.trouble:
                    self.telemetry.log.write("cannot keep", why=str(error))
                self.trouble = f"{error}; nothing is decided until there is room"
                self.progress.changed.wait(_FULL_RETRY_S)
        self.trouble = ""

    def _bytes_of(self, run: LiveRun, outputs: Mapping[tuple[str, str], NodeOutput]) -> int:
        """What a run that ends holds on disk."""
        record = run.record
        kept = sum(output.size for (job, _), output in outputs.items() if job == record.id)
        return record.bytes + self.book.bytes_of(record.id) + kept

    def read_book(self) -> None:
        """What is known of runs without the journal."""
        self._running.clear()
        base = self.progress.base
        for run, record in self.book.records.items():
            end = self.book.ends.get(run)
            self.progress.add(LiveRun(record, base) if end is None else LiveRun.ended(record, end, base))

    def _arrival(self, record: RunRecord) -> Arrived:
        return Arrived(record.id, record.workflow, record.sizes, record.due_s, record.weight, facts=record.facts)

    def _enter(self, record: RunRecord) -> None:
        """At the door, until something of it has started."""
        work_s, longest_s = self.work_of(record.workflow, record.sizes)
        self.door.enter(record.id, record.tenant, work_s, record.workflow, self.now(), longest_s)

    def work_of(self, workflow: str, sizes: Sequence[float]) -> tuple[float, float]:
        """The GPU-seconds of a request, and the seconds of its longest node."""
        tasks = self.problem.graphs[workflow].tasks
        on_gpus = [(size, task.width) for size, task in zip(sizes, tasks, strict=False) if task.width]
        return sum(size * width for size, width in on_gpus), max((size for size, _ in on_gpus), default=0.0)

    def ask_to_end(self, record: RunRecord, state: Literal["cancelled", "failed"], why: str) -> None:
        waits = [arrival for arrival in self._held_back or () if arrival.job == record.id]
        if waits and self._held_back is not None:  # no journal knows it yet
            self._end_now(self.progress.open[record.id], state, why, "queue")
            self._held_back.remove(waits[0])
            self.door.leave(record.id, self.now(), started=False)
            return
        self.book.change(replace(record, wish=(state, why)))
        record.wish = (state, why)
        self.inbox.put(Asked(record.id, "cancel"))

    def accept(self, record: RunRecord, given: PackedInput) -> None:
        """Keep a request, and let it arrive."""
        self.book.add(record, given)
        self.progress.add(LiveRun(record, self.progress.base))
        self._enter(record)
        self.telemetry.accepted.add(workflow=record.workflow)
        if self._held_back is None:
            self.inbox.put(self._arrival(record))
        else:
            self._held_back.append(self._arrival(record))
