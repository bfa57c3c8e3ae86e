"""The service: takes requests for workflows, keeps them, decides with the scheduler that is simulated, carries out.

What must survive is on disk before it is acted on: a request before it arrives, outputs and a step of the journal
before the step is carried out. After a restart the recorded steps are replayed and open runs go on.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dovetail.core.engine import serve
from dovetail.core.errors import DovetailError, InputError, ReplayError, did_you_mean, within
from dovetail.core.events import Added, Arrived, Asked, Failed, Finished, Grew, Observed, Start, Stimulus
from dovetail.core.inbox import Inbox
from dovetail.core.journal import Reader, Step
from dovetail.core.run import Account
from dovetail.core.service.clock import LastingClock
from dovetail.core.store import StoreError
from dovetail.core.tasks import TaskGraphRecord
from dovetail.workflow.capacity import GONE
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.explain import account
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy
from dovetail.workflow.live.book import NodeOutput, RunBook, RunRecord
from dovetail.workflow.live.data_flow import data_flows
from dovetail.workflow.live.door import Door
from dovetail.workflow.live.estimates import TokenEstimator
from dovetail.workflow.live.executor import LiveExecutor
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.live.loop import SegmentInbox, ServiceExecutor, TimedScheduler
from dovetail.workflow.live.progress import Follower, LiveRun, ProgressTable
from dovetail.workflow.live.protocol import Answer, AnswerPiece, BackEndError, Engine, ModelCall
from dovetail.workflow.live.references import EngineReferences, references_in
from dovetail.workflow.live.remainder import remainder
from dovetail.workflow.live.run_data import RunData
from dovetail.workflow.live.runs import (
    BusyError,
    ConflictError,
    DrainingError,
    NodeStatus,
    RunRequest,
    RunResult,
    Runs,
    RunState,
    RunStatus,
    UnknownWorkflowError,
    WorkflowInfo,
)
from dovetail.workflow.live.segments import JournalSegment, JournalSegments, fingerprint
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.specs import model_specs
from dovetail.workflow.live.telemetry import LogLines, Telemetry
from dovetail.workflow.live.values import fetched
from dovetail.workflow.live.wire import pack
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import make_policy, scheduler_for

_MIB = 1 << 20
_LOOK_EVERY_S = 0.5
_FULL_RETRY_S = 1.0
_LONGEST_NAME = 200
_TOO_LONG = 4  # times as many steps as a segment is to have, after which it is ended by force
_OF_FILES = ("requests", "estimates", "forecast")  # what a header tells of a file of requests
_TRACE_ID = re.compile("[0-9a-f]{32}")


class WorkflowService:
    """Workflows on wall-clock time. Every public method may be called from any thread, between `start` and `close`.

    `problem` is a configuration that was loaded without requests, in mode online, for the GPUs of the engine.
    """

    def __init__(
        self,
        problem: WorkflowProblem,
        carrier: Callable[[Inbox, Runs], ServiceExecutor],
        folder: Path,
        settings: LiveSettings | None = None,
        policy: Any = DEFAULT_POLICY,
        options: Mapping[str, Any] | None = None,
        log: LogLines | None = None,
    ) -> None:
        self.settings = settings or LiveSettings()
        if (wrong := self.settings.problem()) is not None:
            raise InputError(f"live.{wrong}")
        self._flows = data_flows(problem.system)
        self.problem = replace(problem, graphs={name: flow.graph for name, flow in self._flows.items()})
        self._policy, self._options = policy, dict(options or {})
        name, _ = make_policy(deepcopy(policy), options, "online")
        tries = {"retries": self.settings.retries, "lost_retries": self.settings.lost_retries}
        decided = replace(self.problem, tenancy=None if problem.tenancy is None else problem.tenancy.without_queues())
        header = decided.header(name, self._options, 0, live=True, **tries)
        facts = {name: fact for name, fact in header.facts.items() if name not in _OF_FILES}
        self._header = replace(header, facts=facts)
        self._decided_by = fingerprint(self._header)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        power = self.settings.durability == "power"
        self._book = RunBook(folder / "runs.db", "full" if power else "normal")
        self._segments = JournalSegments(folder / "journals", self._book.store, sync=power)
        self._clock = LastingClock(self._book.store, self._segments.last_s())
        self._began_s = self._clock()
        self._progress = ProgressTable()
        self._lock = self._progress.lock
        self._door = Door(self.settings, problem.tenancy, len(problem.pool))
        self.telemetry = Telemetry(log or LogLines())
        self._inbox = SegmentInbox()
        self._carrier = carrier(self._inbox, self)
        self._estimator = TokenEstimator(problem.system)
        self._data: dict[str, RunData] = {}
        self._data_lock = threading.Lock()
        self._pending: dict[tuple[str, str], NodeOutput] = {}  # outputs that no step has told of yet
        self._segment: JournalSegment | None = None
        self._scheduler: WorkflowScheduler | None = None
        self._running: set[tuple[str, str]] = set()  # nodes that were started, and whose end was not reported
        self._held_back: list[Arrived] | None = None  # arrivals that are for the next segment
        self._references: EngineReferences | None = None
        self._ready, self._closing = threading.Event(), threading.Event()
        self._draining = False
        self.trouble = ""
        self.failed = False  # for good: nothing is decided any more
        self._threads = [
            threading.Thread(target=self._serve, name="workflow service", daemon=True),
            threading.Thread(target=self._watch, name="workflow service watch", daemon=True),
        ]

    @classmethod
    def over(
        cls,
        problem: WorkflowProblem,
        engine: Engine,
        folder: Path,
        settings: LiveSettings | None = None,
        policy: Any = DEFAULT_POLICY,
        options: Mapping[str, Any] | None = None,
        log: LogLines | None = None,
    ) -> WorkflowService:
        """A service of real models, on an engine whose GPUs are those of the problem."""
        if len(engine.places) != len(problem.pool):
            found = f"found {len(engine.places)} GPUs of the engine"
            raise InputError(f"{found}, expected the {len(problem.pool)} of the configuration")
        served = model_specs(problem.system)

        def executor(inbox: Inbox, runs: Runs) -> ServiceExecutor:
            limits = None if settings is None else settings.limits
            return LiveExecutor(engine, inbox, runs, served, problem.models, problem.pool, problem.costs, limits)

        service = cls(problem, executor, folder, settings, policy, options, log)
        service._references = EngineReferences(engine)
        return service

    # --- the loop ---------------------------------------------------------------------------------------

    def start(self) -> WorkflowService:
        """Go on with what is open, and take requests; returns when the past has been gone through."""
        self._read_book()
        self._carrier.start()
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        if self.failed:
            self.close()
            raise DovetailError(self.trouble)
        return self

    def _read_book(self) -> None:
        """What is known of runs without the journal."""
        self._running.clear()
        for run, record in self._book.records.items():
            end = self._book.ends.get(run)
            self._progress.add(LiveRun(record) if end is None else LiveRun.ended(record, end))

    def __enter__(self) -> WorkflowService:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def now(self) -> float:
        """Seconds since the service first began."""
        return self._clock()

    def _serve(self) -> None:
        """One segment of the journal after the other."""
        try:
            segment = None if self._forget_references() else self._segments.resume(self._decided_by)
            if segment is None or not self._follow(segment, resumed=True):
                segment = self._begin(self._book.open(), restarted=True)
                self._follow(segment)
            while not self._closing.is_set():
                segment.end()
                segment.close()
                self._segments.tidy(self.settings.journal_mib)
                segment = self._begin([])
                self._follow(segment)
            self._learned()
            if not self._progress.open:
                segment.end()
            segment.close()
        except Exception as error:
            self.failed = True
            self.trouble = f"the service has ended: {type(error).__name__}: {error}"
            self.telemetry.log.write("service failed", why=self.trouble, trace=traceback.format_exc())
        finally:
            self._ready.set()
            with self._lock:
                self._progress.changed.notify_all()

    def _forget_references(self) -> bool:
        """Values that stayed in an engine's store are gone with it: what gave them has not finished."""
        found = False
        for run in self._book.open():
            outputs = self._book.outputs(run)
            lost = [node for node, output in outputs.items() if any(references_in(output.values))]
            self._book.forget_outputs(run, lost)
            found = found or bool(lost)
        return found

    def _begin(self, runs: Sequence[str], restarted: bool = False) -> JournalSegment:
        """A new segment, in which these runs arrive anew: without the nodes that have finished."""
        graphs, growth, now_s = dict(self.problem.graphs), dict(self.problem.growth), self.now()
        arrivals: list[Stimulus] = []
        for run in runs:
            record, progress = self._book.record(run), LiveRun(self._book.record(run))
            self._progress.add(progress)
            if (why := self._renew(record)) is not None:
                self._end_now(progress, "failed", why)
                continue
            outputs = self._book.outputs(run)
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
        facts = self._header.facts | ({"growth": msgspec.to_builtins(growth)} if growth else {})
        if learned := self._learned():
            facts["rates"] = learned
        records = tuple(TaskGraphRecord.of(graph) for graph in graphs.values())
        pool = self._header.pool
        if not restarted and self._scheduler is not None:  # GPUs have joined, and some may be gone
            pool, off = self._scheduler.view.pool, [*self._scheduler.view.off]
            arrivals += [Observed(GONE, {"gpus": off, "why": "they were gone before"})] if off else []
        header = replace(self._header, graphs=records, facts=facts, pool=pool)
        decided_by = self._decided_by if pool == self._header.pool else ""  # another engine has other GPUs
        segment = self._segments.begin(header, decided_by, now_s)
        with self._lock:
            held, self._held_back = self._held_back or [], None
            wishes = [Asked(run.job, "cancel") for run in held if self._book.record(run.job).wish is not None]
            self._inbox.extend([*arrivals, *held, *wishes])
        return segment

    def _renew(self, record: RunRecord) -> str | None:
        """A run whose workflow is another now begins anew; why it cannot, or None."""
        if record.workflow not in self._flows:
            return f"there is no workflow {record.workflow!r} any more"
        if record.shape != self._shape(record.workflow):
            self._book.forget_outputs(record.id, self._book.done(record.id))
            given, options = self._book.input(record.id), record.options
            asked = RunRequest(workflow=record.workflow, input=given, options=options, tenant=record.tenant)
            try:
                record.sizes, record.facts = self._expected(record.id, asked)
            except InputError as error:
                return f"its workflow is another now: {error}"
            record.shape = self._shape(record.workflow)
            self._book.change(record)
        return None

    def _shape(self, workflow: str) -> str:
        """The nodes of a workflow and their order, in short."""
        return hashlib.sha256(msgspec.json.encode(TaskGraphRecord.of(self.problem.graphs[workflow]))).hexdigest()[:16]

    def _end_now(self, run: LiveRun, state: Literal["completed", "failed"], error: str = "") -> None:
        """A run that no journal will tell the end of."""
        run.error, run.blame = error, "place" if error else None
        self._progress.end(run, self.now(), state)
        self._book.keep({}, {run.record.id: run.end(0, run.record.bytes + self._book.bytes_of(run.record.id))})
        self.telemetry.end(run)

    def _learned(self) -> dict[str, Any] | None:
        """The rates and loads that were measured so far under what decides now: what is known is kept."""
        if self._scheduler is not None:
            table = self._scheduler.view.rates
            known = {"rates": [*table.rates.values()], "switches": [*table.switches.values()]}
            self._book.store.set("learned", {self._decided_by: known})
        return (self._book.store.get("learned", dict) or {}).get(self._decided_by)

    def _follow(self, segment: JournalSegment, resumed: bool = False) -> bool:
        """Serve until the segment is cut, or the service closed. False if what it holds is decided otherwise now."""
        reader, replayed = segment.reader, False
        self._segment = segment
        self._progress.graphs = graphs = reader.header.build_graphs()
        _, policy = make_policy(deepcopy(self._policy), self._options, "online")
        self._scheduler = scheduler_for(reader, policy)
        scheduler = TimedScheduler(self._scheduler, self.telemetry.decisions.observe)

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
                self._inbox,
                self._carrier,
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
            self._read_book()
            return False
        return True

    def _recall(self, n: int, t: float, events: Sequence[Any]) -> None:
        """A step that was recorded before the service was started: what became of runs then."""
        with self._lock:
            for event in events:
                if isinstance(event, Arrived) and event.job in self._book.records:
                    self._progress.add(LiveRun(self._book.records[event.job]))
            self._progress.step(self._service_s(t), events, lambda run, node: {})
            self._progress.tell()
            self._note_running(events)

    def _take_up(self, resumed: bool) -> None:
        """The past is known: put the book right by it, and let what is open go on."""
        with self._lock:
            if self._ready.is_set():  # it goes on in another segment
                return
            for run, progress in self._progress.open.items():
                if run in self._book.ends:
                    self._book.reopen(run)
                if progress.arrived:
                    nodes = progress.nodes
                    for name in self._book.done(run):  # those that finished before this segment began
                        nodes.setdefault(name, NodeStatus(model="", state="completed"))
                    lost = [name for name in self._book.done(run) if nodes[name].state != "completed"]
                    self._book.forget_outputs(run, lost)
                elif resumed:
                    self._inbox.put(self._arrival(progress.record))
                if progress.started_s is None:
                    self._door.enter(run, progress.record.tenant, self._work_s(progress.record))
                if progress.record.wish is not None:
                    self._inbox.put(Asked(run, "cancel"))
            self._ready.set()

    def _service_s(self, t: float) -> float:
        assert self._segment is not None
        return t + self._segment.record.began_s

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """Keep a step, with the outputs and ends in it, before it is carried out; then tell who follows. While the disk
        is full, nothing is decided."""
        segment, now_s = self._segment, self._service_s(t)
        assert segment is not None
        with self._lock:
            self.telemetry.step(events, now_s, self._progress.open.get)
            given = {(e.job, e.task): self._pending.pop((e.job, e.task), None) for e in events if _ends_node(e)}
            finished = [(e.job, e.task) for e in events if isinstance(e, Finished)]
            outputs = {key: output for key in finished if (output := given[key]) is not None}
            ended = self._progress.step(now_s, events, lambda run, node: _values(given.get((run, node))))
            ends = {run.record.id: run.end(segment.record.number, self._bytes_of(run, outputs)) for run in ended}
            self._keep(lambda: self._book.keep(outputs, ends))
            self._keep(lambda: segment.step(n, t, events))
            for event in events:
                if isinstance(event, Start):
                    self._door.leave(event.job, now_s, started=True)
            for run in ended:
                self._door.leave(run.record.id, now_s, started=False)
                self.telemetry.end(run)
                with self._data_lock:
                    self._data.pop(run.record.id, None)
            self._progress.tell()
            self._note_running(events)
            self._cut_if_long(segment)

    def _note_running(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Start):
                self._running.add((event.job, event.task))
            elif isinstance(event, Finished | Failed):
                self._running.discard((event.job, event.task))

    def _cut_if_long(self, segment: JournalSegment) -> None:
        """End a long segment when nothing of it is open any more; if that takes too long, who comes waits for it."""
        if segment.steps < self.settings.journal_steps:
            return
        if not self._running and not any(run.arrived for run in self._progress.open.values()):
            self._inbox.cut()
        elif segment.steps >= _TOO_LONG * self.settings.journal_steps and self._held_back is None:
            self._held_back = []

    def _keep(self, write: Callable[[], None]) -> None:
        """Write until it is written: what is not kept may not be done."""
        while True:
            try:
                write()
                break
            except (StoreError, InputError) as error:
                if self._closing.is_set():
                    raise
                if not self.trouble:
                    self.telemetry.log.write("cannot keep", why=str(error))
                self.trouble = f"{error}; nothing is decided until there is room"
                self._progress.changed.wait(_FULL_RETRY_S)
        self.trouble = ""

    def _bytes_of(self, run: LiveRun, outputs: Mapping[tuple[str, str], NodeOutput]) -> int:
        """What a run that ends holds on disk."""
        record = run.record
        kept = sum(output.size for (job, _), output in outputs.items() if job == record.id)
        return record.bytes + self._book.bytes_of(record.id) + kept

    def _watch(self) -> None:
        """What time alone brings: those who waited too long, and what is kept no longer."""
        while not self._closing.wait(_LOOK_EVERY_S):
            with self._lock, suppress(StoreError):  # what cannot be kept now is looked at again
                self._look_at(self.now())

    def _look_at(self, now_s: float) -> None:
        limits = self.settings
        for run in [run for run in self._progress.waiting() if run.record.wish is None]:
            if now_s - max(run.record.arrived_s, self._began_s) > limits.max_wait_s:
                self._ask_to_end(run.record, "failed", f"it waited for {limits.max_wait_s:g} s (max_wait_s)")
        if self._book.tidy(now_s, limits.keep_runs, limits.keep_mib, limits.keep_s):
            self._progress.forget(self._book.records)
            if self._references is not None:
                self._references.let_go(self._book.records)

    # --- requests ---------------------------------------------------------------------------------------

    def submit(self, request: RunRequest) -> str:
        """Take a request; gives the run's id when it is kept on disk. The same idempotency key, or the same id, with
        the same content is the same run. Raises `BusyError`, `DrainingError`, `UnknownWorkflowError`, `ConflictError`
        or another `InputError`."""
        self._check(request)
        packed, digest = self._packed(request), _digest(request)
        if len(packed) > self.settings.max_input_mib * _MIB:
            found = f"{len(packed) / _MIB:.1f} MiB"
            raise InputError(f"input: expected at most {self.settings.max_input_mib:g} MiB, found {found}")
        with self._lock:
            known = self._same(request)
            if known is not None:
                if known.digest != digest:
                    what = "idempotency_key" if request.idempotency_key is not None else "id"
                    raise ConflictError(f"{what}: it is that of run {known.id}, which asks for something else")
                return known.id
            run = request.id or f"run-{secrets.token_hex(8)}"
            with self._data_lock:
                sizes, facts = self._expected(run, request)
            self._let_in(request)
            record = RunRecord(
                id=run,
                number=self._book.next_number(),
                workflow=request.workflow,
                tenant=request.tenant,
                weight=request.weight,
                due_s=request.due_s,
                key=request.idempotency_key,
                digest=digest,
                stream=request.stream,
                options=request.options,
                trace_id=request.trace_id or secrets.token_hex(16),
                created=time.time(),
                arrived_s=self.now(),
                sizes=sizes,
                facts=facts,
                shape=self._shape(request.workflow),
                bytes=len(packed),
            )
            self._book.add(record, packed)
            self._progress.add(LiveRun(record))
            self._door.enter(record.id, record.tenant, self._work_s(record))
            self.telemetry.accepted.add(workflow=record.workflow)
            if self._held_back is None:
                self._inbox.put(self._arrival(record))
            else:
                self._held_back.append(self._arrival(record))
        return record.id

    def _check(self, request: RunRequest) -> None:
        graph = self.problem.graphs.get(request.workflow)
        if graph is None:
            hint = did_you_mean(request.workflow, self.problem.graphs)
            raise UnknownWorkflowError(f"workflow: there is no workflow or model {request.workflow!r}{hint}")
        for name, value in (("id", request.id), ("idempotency_key", request.idempotency_key)):
            if value is not None and not (0 < len(value) <= _LONGEST_NAME and "/" not in value and value.isprintable()):
                raise InputError(f"{name}: expected 1 to {_LONGEST_NAME} characters without '/', found {value[:80]!r}")
        for name, number in (("weight", request.weight), ("due_s", request.due_s)):
            within(name, number, "a positive number", 1e-9)
        if wrong := (self.problem.tenancy or Tenancy()).why_not(request.tenant or NOBODY, graph, self.problem.models):
            raise InputError(f"tenant: {wrong}")
        if request.trace_id is not None and not _TRACE_ID.fullmatch(request.trace_id):
            raise InputError(f"trace_id: expected 32 hexadecimal digits, found {request.trace_id[:80]!r}")

    def _same(self, request: RunRequest) -> RunRecord | None:
        if request.idempotency_key is not None:
            found = self._book.with_key(request.tenant, request.idempotency_key)
            if found is not None:
                return found
        return None if request.id is None else self._book.records.get(request.id)

    def _let_in(self, request: RunRequest) -> None:
        if self._draining or not self._ready.is_set() or self._closing.is_set():
            self.telemetry.refused.add(reason="draining")
            raise DrainingError("the service takes no more requests: it is about to end")
        if self.trouble:
            raise DovetailError(self.trouble)
        try:
            self._door.check(request.tenant, self.now())
        except BusyError:
            self.telemetry.refused.add(reason="busy")
            raise

    def _packed(self, request: RunRequest) -> bytes:
        try:
            return pack(request.input)
        except BackEndError as error:
            raise InputError(f"input: {error}") from None

    def _expected(self, run: str, request: RunRequest) -> tuple[tuple[float, ...], dict[str, Any]]:
        """Seconds of each node, and the facts of the arrival; what the workflow lacks is an error."""
        flow, size, most = self._flows[request.workflow], self._estimator.size_s, self.settings.max_values_mib
        data = RunData(run, flow, request.input, request.options, size=size, most_mib=most)
        try:
            sizes, tokens = self._estimator.arrived(data)
        except BackEndError as error:
            raise InputError(f"input: {error}") from None
        return sizes, {
            **({"tokens": tokens} if tokens else {}),
            **({"tenant": request.tenant} if request.tenant else {}),
        }

    def _arrival(self, record: RunRecord) -> Arrived:
        return Arrived(record.id, record.workflow, record.sizes, record.due_s, record.weight, facts=record.facts)

    def _work_s(self, record: RunRecord) -> float:
        graph = self.problem.graphs[record.workflow]
        return sum(size * task.width for size, task in zip(record.sizes, graph.tasks, strict=True))

    def cancel(self, run: str, why: str = "cancelled") -> RunStatus:
        """Ask a run to end; what it runs is stopped. One that has ended stays as it is."""
        with self._lock:
            record = self._book.record(run)
            if run in self._progress.open and record.wish is None:
                self._ask_to_end(record, "cancelled", why)
            return self._progress.runs[run].status()

    def _ask_to_end(self, record: RunRecord, state: Literal["cancelled", "failed"], why: str) -> None:
        self._book.change(replace(record, wish=(state, why)))
        record.wish = (state, why)
        if record.id not in {arrival.job for arrival in self._held_back or ()}:
            self._inbox.put(Asked(record.id, "cancel"))

    # --- what an executor asks ----------------------------------------------------------------------------

    def call(self, job: str, task: str, model: str, id: str) -> ModelCall:
        with self._data_lock:
            inputs, options = self._data_of(job).call(task)
        stream = self._book.record(job).stream
        return ModelCall(id=id, model=model, inputs=inputs, options=options, stream=stream)

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        self._progress.piece(job, task, piece.text, piece.tokens, self.now())

    def answered(self, job: str, task: str, answer: Answer) -> Grew | None:
        with self._data_lock:
            if job not in self._progress.open:  # it was cancelled meanwhile
                return None
            data = self._data_of(job)
            outputs, grew = data.ended(task, answer.outputs)
            if self._references is not None:
                self._references.hold(job, references_in(outputs))
            self._estimator.answered(data, task, answer.read, answer.written)
            self._pending[job, task] = NodeOutput(
                seq=self._next_seq(),
                data=pack(outputs),
                grew=grew,
                read=answer.read,
                written=answer.written,
                finish_reason=answer.finish_reason,
            )
        return grew

    def _next_seq(self) -> int:
        self._book.next_seq += 1
        return self._book.next_seq - 1

    def _data_of(self, job: str) -> RunData:
        found = self._data.get(job)
        if found is None:
            record = self._book.record(job)
            flow, given, size = self._flows[record.workflow], self._book.input(job), self._estimator.size_s
            fetch = None if self._references is None else self._references.fetch
            most = self.settings.max_values_mib
            found = RunData(job, flow, given, record.options, size=size, fetch=fetch, most_mib=most)
            self._data[job] = found
            for node, output in self._book.outputs(job).items():
                found.recall(node, output.values, output.grew)
        return found

    # --- questions ----------------------------------------------------------------------------------------

    def status(self, run: str) -> RunStatus:
        with self._lock:
            return self._found(run).status()

    def _found(self, run: str) -> LiveRun:
        self._book.record(run)
        return self._progress.runs[run]

    def runs(self, state: RunState | None = None, after: str | None = None, limit: int = 50) -> list[RunStatus]:
        """The last runs, those that came last first; `after` a run: those that came before it."""
        with self._lock:
            newest = reversed(self._progress.runs.values())
            if after is not None:
                number = self._book.record(after).number
                newest = (run for run in newest if run.record.number < number)
            return [run.status() for run in islice((r for r in newest if state in (None, r.state)), limit)]

    def result(self, run: str) -> RunResult:
        """What came of a run so far, or for good."""
        with self._lock:
            status, outputs = self._found(run).status(), self._book.outputs(run)
        answer = self._flows[status.workflow].answer if status.workflow in self._flows else ""
        last = [output for node, output in outputs.items() if node.partition("#")[0] == answer]
        return RunResult(
            id=run,
            state=status.state,
            outputs={node: self._values_of(output) for node, output in outputs.items()},
            answer=self._values_of(last[-1]) if last else {},
            read=_sum(output.read for output in outputs.values()),
            written=_sum(output.written for output in outputs.values()),
            finish_reason=last[-1].finish_reason if last else "",
            error=status.error,
            blame=status.blame,
        )

    def _values_of(self, output: NodeOutput) -> dict[str, Any]:
        if self._references is None:
            return output.values
        return {name: fetched(value, self._references.fetch) for name, value in output.values.items()}

    def wait(self, run: str, timeout_s: float | None = None) -> RunStatus:
        """Wait for a run to end; gives its status then, or when the time is over."""
        with self._lock:
            found = self._found(run)
            self._progress.changed.wait_for(lambda: found.ended_s is not None or self.failed, timeout_s)
            if self.failed and found.ended_s is None:
                raise DovetailError(self.trouble)
            return found.status()

    def follow(self, run: str, callback: Follower, after: int = 0) -> Callable[[], None]:
        """Be told what has happened to a run after its `after`-th event, and then what comes, each once and in order;
        gives what ends that. The callback may come from any thread, and must neither block nor raise."""
        return self._progress.follow(self._found(run), callback, after)

    def workflows(self) -> list[WorkflowInfo]:
        """What can be asked for: the configuration's workflows, and each model as one of a single node."""
        return [
            WorkflowInfo(
                name=name,
                nodes=tuple(task.name for task in graph.tasks),
                models=tuple(dict.fromkeys(task.kind for task in graph.tasks)),
                answer=self._flows[name].answer,
                implicit=self._flows[name].implicit,
            )
            for name, graph in self.problem.graphs.items()
        ]

    def models(self) -> list[str]:
        return list(self.problem.models)

    def estimate(self, model: str, input: Mapping[str, Any], options: Mapping[str, Any]) -> float:
        """Seconds that one call of a model is expected to take, once it is loaded."""
        if model not in self.problem.models:
            raise UnknownWorkflowError(f"there is no model {model!r}{did_you_mean(model, self.problem.models)}")
        with self._data_lock:
            sizes, _ = self._expected("estimate", RunRequest(workflow=model, input=dict(input), options=dict(options)))
        return sum(sizes)

    def explain(self, run: str, node: str | None = None) -> Account:
        """Why a run, or one node of it, waited and went where it went, from the journal that it is in."""
        end = self._book.ends.get(run)
        self._found(run)
        assert self._segment is not None
        path = self._segment.path if end is None else self._segments.path(end.segment)
        return account(Reader(path), run, node)

    def journal(self) -> Path:
        """The journal that is being written."""
        assert self._segment is not None
        return self._segment.path

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        with self._lock:
            states = Counter(run.state for run in self._progress.open.values())
            return {
                "pid": os.getpid(),
                "folder": str(self.folder),
                "policy": self._header.policy,
                "uptime_s": self.now() - self._began_s,
                "draining": self._draining,
                "trouble": self.trouble,
                "queued": states["queued"],
                "running": states["running"],
                "queue": self._door.by_tenant,
                "wait_s": self._door.wait_s(self.now()),
                "journal": str(self._segment.path) if self._segment is not None else "",
                "gpus": self._carrier.status(),
                "learned": self._known(),
            }

    def _known(self) -> list[dict[str, Any]]:
        """What was measured of models, as far as it is used."""
        learning = None if self._scheduler is None else self._scheduler.learning
        return [] if learning is None else [msgspec.structs.asdict(known) for known in learning.known()]

    def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        told = self.telemetry
        with self._lock:
            open_runs = self._progress.open.values()
            told.queue.set(("tenant",), {(tenant or NOBODY,): n for tenant, n in self._door.by_tenant.items()})
            told.open.set(("state",), Counter((run.state,) for run in open_runs))
            for state, family in (("waiting", told.waiting_nodes), ("running", told.running_nodes)):
                nodes = (node for run in open_runs for node in run.nodes.values())
                family.set(("model",), Counter((node.model,) for node in nodes if node.state == state))
            rows = enumerate(self._carrier.status())
            told.resident.set(("gpu", "model"), {(str(gpu), name): 1 for gpu, row in rows for name in row["models"]})
            return told.figures.text()

    # --- the end ------------------------------------------------------------------------------------------

    def drain(self, limit_s: float | None = None) -> bool:
        """Take nothing more, and wait until all that is open has ended, for `drain_s` at most unless another limit is
        given. True if nothing is open any more; what is, goes on at the next start."""
        with self._lock:
            self._draining = True
            limit = self.settings.drain_s if limit_s is None else limit_s
            self._progress.changed.wait_for(lambda: not self._progress.open or self.failed, limit)
            return not self._progress.open

    def close(self) -> None:
        """End the service. What is open is kept, and goes on at the next start."""
        self._closing.set()
        self._inbox.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._carrier.close()
        if self._segment is not None:
            self._segment.close()
        self._book.close()


def _ends_node(event: Any) -> bool:
    return isinstance(event, Finished | Failed)


def _values(output: NodeOutput | None) -> dict[str, Any]:
    return {} if output is None else output.values


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _digest(request: RunRequest) -> str:
    """What tells two requests apart, whatever they are called."""
    content = msgspec.structs.asdict(replace(request, id=None, idempotency_key=None, trace_id=None))
    return hashlib.sha256(pack(content)).hexdigest()
