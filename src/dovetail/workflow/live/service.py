"""The service: takes requests for workflows, and tells what becomes of them. A request is on disk before it is
accepted; what follows is the loop's business (`service_loop.py`).
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.core.errors import DovetailError, InputError, did_you_mean, within
from dovetail.core.events import Grew
from dovetail.core.journal import Reader
from dovetail.core.loop.inbox import Inbox
from dovetail.core.results.run import Account
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.core.service.store import StoreError
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.explain import account
from dovetail.workflow.inputs.tenants import NOBODY, Tenancy
from dovetail.workflow.live.book import LARGE, PackedInput, RunRecord
from dovetail.workflow.live.executor import LiveExecutor
from dovetail.workflow.live.loop import ServiceExecutor
from dovetail.workflow.live.progress import Follower, LiveRun
from dovetail.workflow.live.protocol import Answer, AnswerPiece, BackEndError, Engine, ModelCall
from dovetail.workflow.live.references import NOTHING, Brought, EngineReferences
from dovetail.workflow.live.runs import (
    RunRequest,
    RunResult,
    Runs,
    RunState,
    RunStatus,
    UnknownRunError,
    UnknownWorkflowError,
    WorkflowInfo,
)
from dovetail.workflow.live.service_loop import ServiceLoop
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.specs import model_specs
from dovetail.workflow.live.telemetry import Telemetry
from dovetail.workflow.live.values import MIB
from dovetail.workflow.live.wire import pack
from dovetail.workflow.problem import WorkflowProblem

_LOOK_EVERY_S = 0.5
_LONGEST_NAME = 200
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
        self.folder, self.telemetry = folder, Telemetry(log or LogLines())
        self._loop = loop = ServiceLoop(problem, folder, self.settings, policy, options, self.telemetry)
        loop.carrier = carrier(loop.inbox, self)
        self.problem, self.now = loop.problem, loop.now
        self._lock, self._book, self._values = loop.lock, loop.book, loop.values
        self._progress, self._door = loop.progress, loop.door
        self._draining = False
        self._no_room = ""  # why the last request could not be kept
        self._threads = [
            threading.Thread(target=loop.run, name="workflow service", daemon=True),
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
        service._values.references = EngineReferences(engine)
        return service

    # --- the loop ---------------------------------------------------------------------------------------

    def start(self) -> WorkflowService:
        """Go on with what is open, and take requests; returns when the past has been gone through."""
        self._loop.read_book()
        self._loop.carrier.start()
        for thread in self._threads:
            thread.start()
        self._loop.ready.wait()
        if self.failed:
            self.close()
            raise DovetailError(self.trouble)
        return self

    def __enter__(self) -> WorkflowService:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trouble(self) -> str:
        """Why nothing is decided: for now, or if it has `failed` for good."""
        return self._loop.trouble or self._no_room

    @property
    def failed(self) -> bool:
        return self._loop.failed

    def _watch(self) -> None:
        """What time alone brings: those who waited too long, and what is kept no longer."""
        pause_s = _LOOK_EVERY_S
        while not self._loop.closing.wait(pause_s):
            pause_s = _LOOK_EVERY_S
            try:
                with self._lock:
                    pause_s = self._look_at(self.now())
            except StoreError:
                pass  # what cannot be kept now is looked at again
            except Exception:  # who waits, and what is kept, is looked at all the same
                self.telemetry.log.write("watch failed", trace=traceback.format_exc())

    def _look_at(self, now_s: float) -> float:
        """End who is due; gives how long to wait for the next."""
        limits, next_s = self.settings, _LOOK_EVERY_S
        if self._no_room:
            self._book.store.set("room", now_s)
            self._no_room = ""
        for run in [run for run in self._progress.waiting() if run.record.wish is None]:
            left_s = max(run.record.arrived_s, self._loop.began_s) + limits.max_wait_s - now_s
            if left_s <= 0:
                self._loop.ask_to_end(run.record, "failed", f"it waited for {limits.max_wait_s:g} s (max_wait_s)")
            else:
                next_s = min(next_s, left_s)
        if self._book.tidy(now_s, limits.keep_runs, limits.keep_mib, limits.keep_s):
            self._progress.forget(self._book.records)
            if self._values.references is not None:
                self._values.references.let_go(self._book.records)
        return next_s

    # --- requests ---------------------------------------------------------------------------------------

    def submit(self, request: RunRequest) -> str:
        """Take a request; gives the run's id when it is kept on disk. The same idempotency key, or the same id, with
        the same content is the same run. Raises `BusyError`, `DrainingError`, `UnknownWorkflowError`, `ConflictError`
        or another `InputError`."""
        self._check(request)
        packed, digest = _packed("input", request.input), _digest(request)
        if len(packed) > self.settings.max_input_mib * MIB:
            found = f"{len(packed) / MIB:.1f} MiB"
            raise InputError(f"input: expected at most {self.settings.max_input_mib:g} MiB, found {found}")
        run, given = request.id or f"run-{secrets.token_hex(8)}", PackedInput(packed)
        try:
            if len(packed) > LARGE:  # nobody else waits while it is written
                with self._lock:
                    if self._same(request) is None:
                        self._let_in(request)
                given = self._book.set_aside(run, packed)
            return self._accept(request, run, digest, given, len(packed))
        except StoreError as error:
            self._no_room = f"{error}; no request is taken until there is room"
            self.telemetry.refused.add(reason="no room")
            raise DrainingError(self._no_room) from error

    def _accept(self, request: RunRequest, run: str, digest: str, given: PackedInput, size: int) -> str:
        taken = False
        try:
            with self._lock:
                known = self._same(request)
                if known is not None:
                    if known.digest != digest:
                        what = "idempotency_key" if request.idempotency_key is not None else "id"
                        raise ConflictError(f"{what}: it is that of run {known.id}, which asks for something else")
                    return known.id
                sizes, facts = self._values.expected(run, request)
                self._let_in(request, sizes)
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
                    shape=self._loop.shape_of(request.workflow),
                    bytes=size,
                )
                self._loop.accept(record, given)
                taken = True
                return run
        finally:
            if not taken:
                self._book.drop_aside(given)

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

    def _let_in(self, request: RunRequest, sizes: Sequence[float] = ()) -> None:
        if self._draining or not self._loop.ready.is_set() or self._loop.closing.is_set():
            self.telemetry.refused.add(reason="draining")
            raise DrainingError("the service takes no more requests: it is about to end")
        if self.trouble:
            raise DrainingError(self.trouble)
        try:
            work_s, longest_s = self._loop.work_of(request.workflow, sizes)
            self._door.check(request.tenant, self.now(), request.workflow, work_s, longest_s)
        except BusyError:
            self.telemetry.refused.add(reason="busy")
            raise

    def cancel(self, run: str, why: str = "cancelled") -> RunStatus:
        """Ask a run to end; what it runs is stopped. One that has ended stays as it is."""
        with self._lock:
            record = self._book.record(run)
            if run in self._progress.open and record.wish is None:
                self._loop.ask_to_end(record, "cancelled", why)
            return self._progress.runs[run].status()

    # --- what an executor asks ----------------------------------------------------------------------------

    def call(self, job: str, task: str, model: str, id: str, brought: Brought = NOTHING) -> ModelCall:
        if job not in self._progress.open:
            raise BackEndError(f"{job} has ended", "call")
        inputs, options = self._values.call(job, task, brought)
        return ModelCall(id=id, model=model, inputs=inputs, options=options, stream=self._book.record(job).stream)

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        self._progress.piece(job, task, piece.text, piece.tokens, self.now())

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> Grew | None:
        return self._values.answered(job, task, answer, brought) if job in self._progress.open else None

    # --- questions ----------------------------------------------------------------------------------------

    def status(self, run: str) -> RunStatus:
        with self._lock:
            return self._found(run).status()

    def _found(self, run: str) -> LiveRun:
        with self._lock:  # what is tidied away is forgotten in two places
            self._book.record(run)
            return self._progress.runs[run]

    def runs(self, state: RunState | None = None, after: str | None = None, limit: int = 50) -> list[RunStatus]:
        """The last runs, those that came last first; `after` a run: those that came before it."""
        with self._lock:
            newest = reversed(self._progress.runs.values())
            if after is not None:
                number = self._book.record(after).number
                newest = (run for run in newest if run.record.number < number)
            return list(islice((told for run in newest if state in (None, (told := run.status()).state)), limit))

    def result(self, run: str) -> RunResult:
        """What came of a run so far, or for good."""
        status, outputs = self.status(run), self._book.outputs(run)
        values = {node: self._values.shown(output) for node, output in outputs.items()}
        answering = self._values.answering(status.workflow, outputs)
        return RunResult(
            id=run,
            state=status.state,
            outputs=values,
            answer={} if answering is None else values[answering],
            answered_by=answering or "",
            read=_sum(output.read for output in outputs.values()),
            written=_sum(output.written for output in outputs.values()),
            finish_reason="" if answering is None else outputs[answering].finish_reason,
            error=status.error,
            blame=status.blame,
        )

    def wait(self, run: str, timeout_s: float | None = None) -> RunStatus:
        """Wait for a run to end; gives its status then, or when the time is over."""
        with self._lock:
            found = self._found(run)
            self._progress.changed.wait_for(lambda: found.status().ended_s is not None or self.failed, timeout_s)
            if self.failed and found.ended_s is None:
                raise DovetailError(self.trouble)
            return found.status()

    def follow(self, run: str, callback: Follower, after: int = 0) -> Callable[[], None]:
        """Be told what has happened to a run after its `after`-th event, and then what comes, each once and in order;
        gives what ends that. The callback may come from any thread, and must neither block nor raise. What a node gave
        is not among it: `output` tells that."""
        return self._progress.follow(self._found(run), callback, after)

    def output(self, run: str, node: str) -> dict[str, Any]:
        """What a node has given; large values that stay elsewhere are told by their size."""
        found = self._book.output(run, node)
        return {} if found is None else found.values

    def workflows(self) -> list[WorkflowInfo]:
        """What can be asked for: the configuration's workflows, and each model as one of a single node."""
        return [
            WorkflowInfo(
                name=name,
                nodes=tuple(task.name for task in graph.tasks),
                models=tuple(dict.fromkeys(task.kind for task in graph.tasks)),
                answer=self._values.flows[name].answer,
                implicit=self._values.flows[name].implicit,
                grows=self._values.flows[name].grows,
            )
            for name, graph in self.problem.graphs.items()
        ]

    def models(self) -> list[str]:
        return list(self.problem.models)

    def estimate(self, model: str, input: Mapping[str, Any], options: Mapping[str, Any]) -> float:
        """Seconds that one call of a model is expected to take, once it is loaded."""
        if model not in self.problem.models:
            raise UnknownWorkflowError(f"there is no model {model!r}{did_you_mean(model, self.problem.models)}")
        sizes, _ = self._values.expected(
            "estimate", RunRequest(workflow=model, input=dict(input), options=dict(options))
        )
        return sum(sizes)

    def explain(self, run: str, node: str | None = None) -> Account:
        """Why a run, or one node of it, waited and went where it went, from the journal that it is in."""
        end = self._book.ends.get(run)
        found = self._found(run)
        if not (found.arrived if end is None else end.segment):
            return Account(f"{run} is {found.state}: {found.error or 'nothing is wrong'}; no journal tells of it.", [])
        assert self._loop.segment is not None
        path = self._loop.segment.path if end is None else self._loop.segments.path(end.segment)
        if not path.exists():
            raise UnknownRunError(f"{run}: its journal is kept no longer (live.journal_mib)")
        return account(Reader(path), run, node)

    def journal(self) -> Path:
        """The journal that is being written."""
        assert self._loop.segment is not None
        return self._loop.segment.path

    def about(self) -> dict[str, Any]:
        """The service as a whole."""
        with self._lock:
            states = Counter(run.state for run in self._progress.open.values())
            return {
                "pid": os.getpid(),
                "folder": str(self.folder),
                "policy": self._loop.header.policy,
                "uptime_s": self.now() - self._loop.began_s,
                "draining": self._draining,
                "trouble": self.trouble,
                "queued": states["queued"],
                "running": states["running"],
                "queue": self._door.by_tenant,
                "wait_s": self._door.wait_s(self.now()),
                "journal": str(self._loop.segment.path) if self._loop.segment is not None else "",
                "gpus": self._loop.carrier.status(),
                "learned": self._known(),
            }

    def _known(self) -> list[dict[str, Any]]:
        """What was measured of models, as far as it is used."""
        learning = None if self._loop.scheduler is None else self._loop.scheduler.learning
        return [] if learning is None else [msgspec.structs.asdict(known) for known in learning.known()]

    def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        told = self.telemetry
        with self._lock:
            open_runs = self._progress.open.values()
            queues = {tenant or NOBODY: n for tenant, n in self._door.by_tenant.items()}
            told.queue.set("tenant", queues or {NOBODY: 0})
            told.open.set("state", {"queued": 0, "running": 0}, (run.state for run in open_runs))
            for state, family in (("waiting", told.waiting_nodes), ("running", told.running_nodes)):
                nodes = (node for run in open_runs for node in run.nodes.values())
                none = dict.fromkeys(self.problem.models, 0)
                family.set("model", none, (node.model for node in nodes if node.state == state))
            rows = enumerate(self._loop.carrier.status())
            told.resident.put({(("gpu", str(gpu)), ("model", name)): 1 for gpu, row in rows for name in row["models"]})
            return told.figures.text()

    # --- the end ------------------------------------------------------------------------------------------

    def drain(self, limit_s: float | None = None) -> bool:
        """Take nothing more, and wait until all that is open has ended, for `drain_s` at most unless another limit is
        given. True if nothing is open any more; what is, goes on at the next start."""
        with self._lock:
            self._draining = True
            limit = self.settings.drain_s if limit_s is None else limit_s
            self._progress.changed.wait_for(lambda: self._nothing_open() or self.failed, limit)
            return self._nothing_open()

    def _nothing_open(self) -> bool:
        return not self._progress.open and not self._loop.trouble  # what has ended is kept

    def close(self) -> None:
        """End the service. What is open is kept, and goes on at the next start."""
        self._loop.closing.set()
        self._loop.inbox.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._loop.carrier.close()
        if self._loop.segment is not None:
            self._loop.segment.close()
        self._book.close()


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _packed(name: str, values: Any) -> bytes:
    try:
        return pack(values)
    except BackEndError as error:
        raise InputError(f"{name}: {error}") from None


def _digest(request: RunRequest) -> str:
    """What tells two requests apart, whatever they are called."""
    content = msgspec.structs.asdict(replace(request, id=None, idempotency_key=None, trace_id=None))
    return hashlib.sha256(_packed("options", content)).hexdigest()
