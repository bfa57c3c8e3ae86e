"""A file of requests for real: the scheduler that is simulated, on wall-clock time, in this process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from dovetail.core.errors import InputError, check_functions, within
from dovetail.core.events import Arrived, Asked, Complete, Grew, Observed, Reject, Start
from dovetail.core.files.document import as_path
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.files.plain import scalar
from dovetail.core.journal import Observer, Writer
from dovetail.core.loop.engine import serve
from dovetail.core.loop.inbox import Inbox
from dovetail.core.results.run import JournalFile, JournalPath
from dovetail.core.service.interrupts import interrupts
from dovetail.workflow.choices import DEFAULT_POLICY, DEFAULT_RETRIES, REQUEST_LINES, check_count
from dovetail.workflow.live.engines.choice import DeviceKind, EngineName, engine_for
from dovetail.workflow.live.estimates import TokenEstimator
from dovetail.workflow.live.executor import LiveExecutor
from dovetail.workflow.live.figures import LiveFigures
from dovetail.workflow.live.file_requests import SHOWN, FileRequests
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.live.loop import NumberedInbox
from dovetail.workflow.live.protocol import Answer, AnswerPiece, BackEndError, ModelCall, Reference
from dovetail.workflow.live.references import NOTHING, Brought, EngineReferences, found_in
from dovetail.workflow.live.run_data import RunData
from dovetail.workflow.live.specs import check_extras, live_policy, live_settings, model_specs
from dovetail.workflow.live.values import Fetch, to_json
from dovetail.workflow.metrics import RejectionReasons
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.problem import WorkflowProblem, checked
from dovetail.workflow.simulate import WorkflowRun, new_scheduler

_READY_S = 120.0
_LOOK_S = 0.02
_GOES_ON = "No more requests begin; {} that have begun go on to their end; once more ends them at once"
_INTERRUPT: dict[str, Any] = {}  # in the place of a result: somebody wants the run to end


class LiveWorkflowRun(WorkflowRun):
    """A run of a file of requests for real. `interrupted` if it was ended before its time; `results` are the outputs
    of each request, in the order in which they ended, where no file was asked for."""

    called = True
    results: list[dict[str, Any]]
    interrupted: bool = False


def run_live(
    problem: WorkflowProblem,
    policy: str | WorkflowPolicy | type[WorkflowPolicy] | Callable[[], WorkflowPolicy] = DEFAULT_POLICY,
    *,
    options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    journal: JournalPath = None,
    results: str | Path | None = None,
    speed: float = 1.0,
    engine: EngineName | None = None,
    address: str | None = None,
    device: DeviceKind = "auto",
    progress: Callable[[int], None] | None = None,
    notice: Callable[[str], None] | None = None,
    observers: Iterable[Observer] = (),
) -> LiveWorkflowRun:
    """Run a problem for real: its requests arrive at their times (`speed` times as fast; all at once in mode offline),
    models are loaded from their `source` and called, and outputs flow from node to node.

    Workers are processes of this machine, or with `engine="ray"` actors of the Ray cluster at `address`; GPUs are
    CUDA's, or such that the processor works for (`device`). Every model must have a source. Outputs go to `results`,
    JSON lines, else into the run's `results`. Ctrl-C lets what has started end, a second one cancels that too, and
    `notice` is told so; the journal is whole in any case. Other arguments are those of `run`.
    """
    checked(problem)
    check_functions(progress=progress, notice=notice)
    retries, speed = scalar(retries), scalar(speed)
    check_count("--retries", retries)
    within("--speed", speed, "a positive number", 1e-9, optional=False)
    if problem.compat:
        raise InputError("--compat gswarm: that scheduler never called a model; live runs have none of its ways")
    if problem.gpus_over_time is not None:
        raise InputError("gpus_over_time: a live run has the GPUs that are there")
    name, chosen = live_policy(policy, options)
    unused = None if isinstance(policy, str) else deepcopy(chosen)
    served, settings = model_specs(problem.system), live_settings(problem.system)
    wanted = FileRequests(problem, settings.max_values_mib)
    file, rows = JournalFile(journal), None if results is None else as_path(results, "results")
    outputs = [path for path in (file.path, rows) if path is not None]
    refuse_overwrite(outputs, problem.source.files, REQUEST_LINES)
    carried, problem = engine_for(problem, engine, address, device, silence_s=settings.limits.silence_s)
    tries = {"retries": retries, "lost_retries": settings.lost_retries}
    left_out = {"skipped": wanted.skipped, "skipped_why": wanted.notes[:SHOWN], "asked_mode": problem.mode}
    header = replace(problem.header(name, options or {}, 0, live=True, **tries, **left_out), mode="online")
    figures, rejections, inbox = LiveFigures(header), RejectionReasons(), NumberedInbox()
    runs = _FileRuns(wanted, inbox, TokenEstimator(problem.system), EngineReferences(carried).fetch)
    executor = LiveExecutor(carried, inbox, runs, served, problem.models, problem.pool, problem.costs, settings.limits)
    with (
        interrupts(lambda: runs.ended.put(_INTERRUPT)),
        _closed(executor),
        Writer(file.path, header) if file.path is not None else nullcontext() as writer,
        _rows(rows) as write,
    ):
        written: list[Observer] = [] if writer is None else [_Flushed(writer)]
        followers: list[Observer] = [figures, rejections, *observers, *written, runs]
        executor.start()
        _wait_for_workers(executor)
        began = time.monotonic()

        def decide() -> tuple[int, float]:
            scheduler = new_scheduler(header, chosen)
            clock: Callable[[], float] = lambda: time.monotonic() - began  # noqa: E731
            graphs = header.build_graphs()
            return serve(scheduler, problem.pool, graphs, inbox, executor, clock, followers, guard=LiveGuard(header))

        kept: list[dict[str, Any]] = []
        loop = _Loop(decide, inbox, runs, wanted, carried.drop, began, speed)
        interrupted = loop.follow(write or kept.append, progress, notice or (lambda text: None))
        steps, end_s = loop.result()
        summed = figures.summary()
        if writer is not None:
            writer.end(steps + 1, end_s, summed)
    notes = [*problem.warnings(), *(f"skipped: {text}" for text in wanted.notes)]
    if interrupted:
        ends = loop.ends
        ended = f"{ends['completed']} completed, {ends['cancelled']} cancelled, {ends['failed'] - loop.unsent} failed"
        notes.append(f"interrupted: of {len(wanted)} requests {ended}, {loop.unsent} had not come")
    told = summed | {"rejections": rejections.reasons}
    found = LiveWorkflowRun(
        file, told, notes, policy=chosen, unused=unused, figures=figures.figures, lower=figures.lower, simulation_s=0.0
    )
    found.results, found.interrupted = kept, interrupted
    return found


def check_live(problem: WorkflowProblem) -> dict[str, Any]:
    """Whether a problem can be run for real: its models have sources, and its requests what their workflows need.
    Nothing is loaded; gives what was found, in numbers."""
    served, settings = model_specs(checked(problem).system), live_settings(problem.system)
    check_extras(served.values())
    wanted = FileRequests(problem, settings.max_values_mib)
    sources = Counter(next(iter(model.source)) for model in served.values())
    return {"sources": dict(sources), "requests": len(wanted), "left_out": wanted.skipped}


class _Flushed:
    """A journal that has every step before it is carried out."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self._writer.step(n, t, events)
        self._writer.flush()


class _FileRuns:
    """What nodes are called with, and what they gave. As an observer it sees requests end, and says so."""

    def __init__(self, wanted: FileRequests, inbox: Inbox, estimator: TokenEstimator, fetch: Fetch) -> None:
        self._wanted, self._inbox, self._estimator, self._fetch = wanted, inbox, estimator, fetch
        self._lock = threading.Lock()
        self._open: dict[str, RunData] = {}
        self._brought: Brought = {}  # for who has the lock
        self._of: dict[str, str] = {}
        self._times: dict[str, list[float]] = {}  # arrival, first start
        self._tokens: dict[str, list[int]] = {}
        self._all_sent = False
        self.sent = self._closed = 0
        self.ended: SimpleQueue[dict[str, Any] | None] = SimpleQueue()

    def arrive(self, request: Arrived) -> None:
        """A request has come; what is expected of it is estimated now."""
        with self._lock:
            if not request.fault:
                data = self._wanted.data(request, size=self._estimator.size_s, fetch=self._find)
                sizes, tokens = self._estimator.arrived(data)
                facts = request.facts | ({"tokens": tokens} if tokens else {})
                request = replace(request, sizes=sizes, facts=facts)
                self._open[request.job] = data
            self.sent += 1
        self._inbox.put(request)

    def all_sent(self) -> None:
        """Nothing more will come."""
        with self._lock:
            self._all_sent = True
            if self.sent == self._closed:
                self._inbox.close()

    def _find(self, reference: Reference) -> Any:
        return found_in(self._brought, reference)

    def call(self, job: str, task: str, model: str, id: str, brought: Brought = NOTHING) -> ModelCall:
        with self._lock:
            self._brought = brought
            if (data := self._open.get(job)) is None:
                raise BackEndError(f"{job} has ended", "call")
            inputs, options = data.call(task)
        return ModelCall(id=id, model=model, inputs=inputs, options=options)

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        pass  # nobody watches

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> Grew | None:
        with self._lock:
            self._brought = brought
            if (data := self._open.get(job)) is None:
                return None
            _, grew = data.ended(task, answer.outputs)
            self._estimator.answered(data, task, answer.read, answer.written)
            return grew

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if type(event) is Arrived:
                self._of[event.job], self._times[event.job] = event.of, [t]
            elif type(event) is Start:
                self._times[event.job][1:] = self._times[event.job][1:] or [t]
            elif type(event) is Observed and event.what == "tokens":
                counts = self._tokens.setdefault(event.facts["job"], [0, 0])
                counts[0] += event.facts["input"]
                counts[1] += event.facts["output"]
            elif type(event) is Complete or type(event) is Reject:
                self._end(t, event)

    def _end(self, t: float, event: Complete | Reject) -> None:
        with self._lock:
            data = self._open.pop(event.job, None)
            self._closed += 1
            if self._all_sent and self.sent == self._closed:
                self._inbox.close()
        times, tokens = self._times.pop(event.job), self._tokens.pop(event.job, None)
        state, why = "completed", ""
        if isinstance(event, Reject):
            state, why = ("cancelled" if event.cancelled else "failed"), event.why
        self.ended.put(
            {
                "request_id": event.job,
                "workflow_id": self._of.pop(event.job),
                "state": state,
                "answer": data.answer() if data is not None else {},
                "outputs": data.outputs if data is not None else {},
                **({"error": why} if why else {}),
                **({"tokens": {"input": tokens[0], "output": tokens[1]}} if tokens is not None else {}),
                "arrived_s": times[0],
                **({"started_s": times[1]} if times[1:] else {}),
                "ended_s": t,
            }
        )

    def fetched(self, row: dict[str, Any], drop: Callable[[list[Reference]], None]) -> dict[str, Any]:
        """A result as JSON, with the values that stayed in an object store, where they are no longer needed."""
        brought: dict[Reference, Any] = {}  # the answer is one of the outputs

        def whole(value: Any) -> Any:
            if isinstance(value, Reference):
                if value not in brought:
                    try:
                        brought[value] = to_json(self._fetch(value))
                    except BackEndError as error:
                        brought[value] = {"lost": str(error), "bytes": value.bytes}
                return brought[value]
            if isinstance(value, dict):
                return {name: whole(item) for name, item in value.items()}
            return [whole(item) for item in value] if isinstance(value, list | tuple) else to_json(value)

        found = {name: whole(value) if name in ("answer", "outputs") else value for name, value in row.items()}
        if brought:
            drop(list(brought))
        return found

    def cancel(self, also_started: bool) -> int:
        """Ask what is open to end; without `also_started` only that of which nothing runs yet. How many go on?"""
        with self._lock:
            waiting = [job for job in self._open if also_started or len(self._times.get(job, ())) < 2]
            self._inbox.put(*(Asked(job, "cancel") for job in waiting))
            return len(self._open) - len(waiting)


class _Loop:
    """The threads of a run: one decides, one lets requests arrive; this one writes what comes of them."""

    def __init__(
        self,
        decide: Callable[[], tuple[int, float]],
        inbox: Inbox,
        runs: _FileRuns,
        wanted: FileRequests,
        drop: Callable[[list[Reference]], None],
        began: float,
        speed: float,
    ) -> None:
        self._decide, self._inbox, self._runs, self._wanted, self._drop = decide, inbox, runs, wanted, drop
        self._began, self._speed = began, speed
        self._stop = threading.Event()
        self._result: tuple[int, float] = (0, 0.0)
        self.unsent = 0
        self.ends: Counter[str] = Counter()  # by state
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=target, name=f"live run: {name}", daemon=True)
            for name, target in (("decides", self._serve), ("arrivals", self._feed))
        ]

    def follow(
        self,
        write: Callable[[dict[str, Any]], None],
        progress: Callable[[int], None] | None,
        notice: Callable[[str], None],
    ) -> bool:
        """Until all has ended; whether it was interrupted."""
        interrupts, done = 0, 0
        for thread in self._threads:
            thread.start()
        try:
            while (row := self._runs.ended.get()) is not None:
                if row is _INTERRUPT:
                    interrupts += 1
                    self._stop.set()
                    begun = self._runs.cancel(also_started=interrupts > 1)
                    notice(_GOES_ON.format(begun) if interrupts == 1 else "what runs is cancelled")
                    continue
                write(self._runs.fetched(row, self._drop))
                self.ends[row["state"]] += 1
                done += 1
                if progress is not None:
                    progress(done)
        finally:
            self._stop.set()
            self._inbox.close()
            for thread in self._threads:
                thread.join()
        return interrupts > 0

    def result(self) -> tuple[int, float]:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # it would hold this frame, and all that the run has
        return self._result

    def _serve(self) -> None:
        try:
            self._result = self._decide()
        except BaseException as error:
            self._error = error
        finally:
            self._stop.set()
            self._runs.ended.put(None)

    def _feed(self) -> None:
        try:
            for at_s, request in self._wanted.arrivals:
                if self._stop.wait(max(self._began + at_s / self._speed - time.monotonic(), 0.0)):
                    self.unsent += 1
                    request = Arrived(request.job, request.of, fault="the run was interrupted before it came")
                self._runs.arrive(request)
        except BaseException as error:
            self._error = error
            self._inbox.close()
        finally:
            self._runs.all_sent()


def _wait_for_workers(executor: LiveExecutor) -> None:
    """Time begins when workers can be told something; one that takes very long is lost time of the run's own."""
    until = time.monotonic() + _READY_S
    while any(row.get("state") == "starting" for row in executor.status()) and time.monotonic() < until:
        time.sleep(_LOOK_S)


@contextmanager
def _closed(executor: LiveExecutor) -> Iterator[None]:
    try:
        yield
    finally:
        executor.close()


@contextmanager
def _rows(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Writes rows to a file, each as it comes; a run that fails leaves what it has."""
    if path is None:
        yield None
        return
    with path.open("wb") as file:
        yield lambda row: _write(file, row)


def _write(file: BinaryIO, row: dict[str, Any]) -> None:
    file.write(msgspec.json.encode(row) + b"\n")
    file.flush()
