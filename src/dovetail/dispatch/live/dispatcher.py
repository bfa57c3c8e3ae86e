"""Run a batched function over all the devices of a node, as if it were called once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from math import inf
from pathlib import Path
from threading import Event
from time import perf_counter
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from dovetail.core.errors import DovetailError, InputError, check_functions, is_out_of_memory, within
from dovetail.core.files import as_path
from dovetail.core.plain import scalar
from dovetail.core.recorder import host_clock
from dovetail.core.run import JournalFile
from dovetail.dispatch.bounds import measured_peak
from dovetail.dispatch.chunk import Chunk, gaps
from dovetail.dispatch.inputs.batch import (
    Source,
    SourceCursor,
    TensorBatch,
    TreeBatch,
    WholeBatch,
    as_source,
    form_of,
    handed_over,
    tensor_form,
)
from dovetail.dispatch.inputs.cursor import Cursor, LocalCursor
from dovetail.dispatch.inputs.devices import NodeDevice, carrier, devices_with
from dovetail.dispatch.live.assembly import BatchOutput, Collected, Preallocated
from dovetail.dispatch.live.batch_run import NOWHERE, BatchRun, Calling, Hook, Modes, home_of, placed_on
from dovetail.dispatch.live.errors import Failure
from dovetail.dispatch.live.outcome import BatchOutcome
from dovetail.dispatch.live.pool import WorkerPool
from dovetail.dispatch.live.progress import RunProgress, follow
from dovetail.dispatch.live.stream import Piece, Streamed, pieces_of
from dovetail.dispatch.live.tuning_cache import TuningCache, cache_folder
from dovetail.dispatch.metrics import BatchReport, DispatchRun, report_of
from dovetail.dispatch.policies import chosen, default_policy
from dovetail.dispatch.policies.base import Policy
from dovetail.dispatch.policies.fixed import Fixed
from dovetail.dispatch.recording import LIVE, BatchJournal, header_of
from dovetail.dispatch.replay import RecordedScheduler
from dovetail.dispatch.scheduler import ChunkScheduler

_SILENT: AbstractContextManager[None] = nullcontext()


class Dispatcher:
    """Calls a function on chunks of a batch, each on the device that is free, and puts the results together.

    >>> import torch
    >>> with Dispatcher(lambda x: 2 * x, "cpu", sizes=3, cache=False) as double:
    ...     double.run(torch.arange(10)).tolist()
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]

    Parameters
    ----------
    function
        Any callable over batched tensors, an nn.Module (copied to each device), or an object with `on(device)`.
    devices
        Names such as `cuda:0` and `cpu`, or `Device`s.
    policy
        Its name, or a Policy; `options` are its options.
    sizes, capacities, priorities
        One for all devices, or one each. Size None is found by measuring, 0 is all at once.
    dim
        The dimension of the batch.
    mode
        `async`: every device has its thread; `sync`: one chunk after the other on the calling thread.
    preprocess, postprocess
        Called with a chunk's work, or result, and the device; by default work goes to the device and results back.
    reduce
        Puts the list of results together; by default they are concatenated along `dim`.
    init, teardown
        Called with each device on its thread, before its first chunk and after its last.
    backup
        Let an idle device redo what the last one is late with; only for functions without side effects.
    on_error, retries
        `retry`: another device tries a failed chunk; `fail`: stop at once; `skip`: go on without it.
    pool
        Share the devices of a pool with other dispatchers; `weight` is this one's share.
    backend
        `thread`, `process` (for functions that hold Python's lock) or `ray` (devices of several machines).
    progress
        True for a bar, or a function that is told.
    trace
        Write a trace of each run here, for Perfetto.
    journal
        Record each run here, in the place of the one before; True: in a file of its own that goes with its outcome.
    cache
        Where curves are kept between programs: True for the user's cache folder, False for nowhere.
    """

    def __init__(
        self,
        function: Any,
        devices: str | NodeDevice | Sequence[str | NodeDevice] = "cpu",
        policy: str | Policy | type[Policy] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        sizes: int | Sequence[int] | None = None,
        capacities: int | Sequence[int] | None = None,
        priorities: float | Sequence[float] | None = None,
        dim: int = 0,
        mode: Literal["async", "sync"] = "async",
        preprocess: Hook | None = None,
        postprocess: Hook | None = None,
        reduce: Callable[[list[Any]], Any] | None = None,
        init: Callable[[NodeDevice], None] | None = None,
        teardown: Callable[[NodeDevice], None] | None = None,
        backup: bool = True,
        on_error: Literal["retry", "fail", "skip"] = "retry",
        retries: int = 1,
        pool: WorkerPool | None = None,
        weight: float = 1.0,
        backend: str = "thread",
        progress: bool | Callable[[RunProgress], None] | None = None,
        trace: str | Path | None = None,
        journal: bool | str | Path | None = None,
        cache: bool | str | Path = True,
    ) -> None:
        if mode not in ("async", "sync"):
            raise InputError(f"mode {mode!r}: expected 'async' or 'sync'")
        if on_error not in ("retry", "fail", "skip"):
            raise InputError(f"on_error {on_error!r}: expected 'retry', 'fail' or 'skip'")
        dim, retries, weight = scalar(dim), scalar(retries), scalar(weight)
        within("weight", weight, "more than 0", 1e-12, optional=False)
        within("retries", retries, "0 or more", whole=True, optional=False)
        within("dim", dim, "a dimension", -1e3, 1e3, whole=True, optional=False)
        if pool is not None and not isinstance(pool, WorkerPool):
            raise InputError(f"pool {pool!r}: expected a dispatch.Pool")
        check_functions(preprocess=preprocess, postprocess=postprocess, reduce=reduce, init=init, teardown=teardown)
        check_functions(progress=None if isinstance(progress, bool) else progress)
        self._own_pool = pool is None
        self._backend = backend
        if pool is None:
            given = devices_with(devices, sizes, capacities, priorities, exist=backend != "ray")
            pool = WorkerPool(given, backend, init=init, teardown=teardown)
        self.pool = pool
        self.devices = pool.devices if self._own_pool else devices_with(pool.devices, sizes, capacities, priorities)
        self._cuda = any(device.kind == "cuda" for device in self.devices)
        if policy is None:
            policy = default_policy(all(device.size is not None for device in self.devices))
        self.policy_name, self.policy = chosen(policy, options)
        self._by_name, self._options = isinstance(policy, str), dict(options or {})
        self.function = placed_on(function)
        self.dim, self.mode, self.reduce = dim, mode, reduce
        self.preprocess, self.postprocess = preprocess, postprocess
        self.backup, self.on_error, self.retries, self.weight = backup, on_error, retries, weight
        self.progress = progress
        self.trace = as_path(trace, "trace") if trace is not None else None
        self.journal = bool(journal) if journal is None or isinstance(journal, bool) else as_path(journal, "journal")
        self._written = self.trace or self.journal
        folder = cache_folder() if cache is True else as_path(cache, "cache") if cache else None
        slots = [worker.slots for worker in pool.workers]
        self.tuning = TuningCache(function, self.devices, slots, folder, getattr(self.policy, "learns", True))
        self._latest: Callable[[], BatchReport] | None = None
        self._recorded: Callable[[], DispatchRun] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False
        self._direct_up_to: float = -1
        self._direct_like: Any = None
        self._prepare_direct()

    # -- what one calls

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result for the whole batch, in order. Several arguments are cut alike."""
        if self._direct_up_to >= 0 and len(args) == 1 and not kwargs:
            batch = args[0]
            fits = type(batch) is Tensor and batch.is_cpu and -batch.ndim <= self.dim < batch.ndim
            if fits and batch.shape[self.dim] <= self._direct_up_to:
                like = self._direct_like
                if like is None or like == tensor_form(batch, self.dim):
                    return self._run_direct(batch)
        return self.attempt(*args, **kwargs).unwrap()

    def attempt(
        self, *args: Any, cursor: Cursor | None = None, resume: BatchOutcome | None = None, **kwargs: Any
    ) -> BatchOutcome:
        """As `run`, but errors of the work are in the outcome, beside what succeeded.

        `resume` does only what an earlier outcome of the same batch lacks; Ctrl-C carries one too, as its `outcome`.
        """
        self._check_open()
        source, spread = self._source(args, kwargs)
        if source.total == 0 and resume is None:
            return self._empty(source, spread)
        if resume is not None and not isinstance(source, WholeBatch):
            raise InputError("what was read from a generator is gone: only a batch of known size can be resumed")
        output = self._output(source) if resume is None or resume.output is None else resume.output
        run, form = self._batch_run(source, output, spread, cursor, resume)
        try:
            self._carry_out(run)
        except KeyboardInterrupt as stop:
            stop.outcome = self._outcome(run, form, whole=cursor is None)  # type: ignore[attr-defined]
            raise
        return self._outcome(run, form, whole=cursor is None)

    def stream(
        self, *args: Any, ordered: bool = True, cursor: Cursor | None = None, ahead: int = 4, **kwargs: Any
    ) -> Iterator[Piece]:
        """Results chunk by chunk as they come, in the order of the batch or as they end; `ahead` chunks may wait."""
        if ordered and cursor is not None:
            raise InputError("a stream over a shared cursor has gaps; give ordered=False")
        self._check_open()
        source, spread = self._source(args, kwargs)
        output = Streamed()
        run, form = self._batch_run(source, output, spread, cursor, None)
        run.room = len(self.devices) * 2 + ahead
        run.modes = Modes()
        return pieces_of(self.pool, run, output, ordered, lambda: self._outcome(run, form, whole=False).unwrap())

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a run and give its future; `asyncio.wrap_future` awaits it."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(thread_name_prefix="dovetail submit")
        modes = Modes()

        def begin() -> Any:
            with ExitStack() as stack:
                modes.enter(stack)
                return self.attempt(*args, **kwargs).unwrap()

        return self._executor.submit(begin)

    @property
    def report(self) -> BatchReport:
        """The report of the run that ended last."""
        if self._latest is None:
            raise InputError("nothing has run yet")
        return self._latest()

    @property
    def recorded(self) -> DispatchRun:
        """The run that ended last: its figures, and with `journal` its journal and what can be asked of it."""
        if self._latest is None:
            raise InputError("nothing has run yet")
        return _run_of(NOWHERE, self._latest, self.policy_name) if self._recorded is None else self._recorded()

    def close(self) -> None:
        """End the workers, unless they belong to a shared pool."""
        self._closed, self._direct_up_to = True, -1
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self._own_pool:
            self.pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DovetailError("the dispatcher is closed")

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the direct path: one chunk on one device where the batch is, with nothing around the call

    def _may_be_direct(self) -> bool:
        pool = self.pool
        hooks = (self.preprocess, self.postprocess, self.reduce, pool.init, pool.teardown, self._written, self.progress)
        alone = len(self.devices) == 1 and self.devices[0].kind == "cpu"
        return alone and self._own_pool and self._backend == "thread" and not any(hooks)

    def _prepare_direct(self) -> None:
        device = self.devices[0]
        if isinstance(self.policy, Fixed) and self._may_be_direct():
            size = self.policy.size if device.size is None else device.size
            self._direct_up_to = size or inf

    def _learn_direct(self, form: Any, source: Source, run: BatchRun) -> None:
        """A batch that one call of the best size can do needs no engine next time."""
        state = run.scheduler.view.devices[0]
        if isinstance(self.policy, Fixed) or not isinstance(source, TensorBatch) or state.curve is None:
            return
        if not self._may_be_direct():
            return
        if state.size is None and (state.settled or state.curve.best == state.curve.sizes[-1]):
            self._direct_like = form
            self._direct_up_to = min(state.curve.tail if state.settled else state.best, state.limit)

    def _run_direct(self, batch: Any) -> Any:
        call = self.function(self.devices[0])
        begun = perf_counter()
        try:
            result = call(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return self.attempt(batch).unwrap()
        self._latest = partial(self._report_direct, batch.shape[self.dim], begun, perf_counter())
        self._recorded = None
        return result

    def _report_direct(self, items: int, begun_s: float, ended_s: float) -> BatchReport:
        scheduler = ChunkScheduler(LocalCursor(0, 0), self.policy, self.tuning.states(self._direct_like))
        scheduler.rows.append((0, 0, items, begun_s, ended_s, 1, "done"))
        return report_of(scheduler, [self.devices[0].name], begun_s, ended_s)

    # -- the engine's way

    def _source(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Source, bool]:
        if len(args) == 1 and not kwargs:
            return as_source(args[0], self.dim), False
        return TreeBatch((args, kwargs), self.dim), True

    def _output(self, source: Source) -> BatchOutput:
        home = home_of(source)
        if self.reduce is not None or source.total is None or not isinstance(source, TensorBatch | TreeBatch):
            return Collected(self.dim, home, self.reduce)
        pinned = home is not None and home.type == "cpu" and self._cuda
        return Preallocated(source.total, self.dim, None if self.postprocess else home, pinned)

    def _batch_run(
        self, source: Source, output: BatchOutput, spread: bool, cursor: Cursor | None, resume: BatchOutcome | None
    ) -> tuple[BatchRun, Any]:
        form = form_of(source, self.dim)
        states = self.tuning.states(form)
        shared = cursor is not None
        if cursor is None:
            if resume is not None:
                cursor = LocalCursor(0, 0)
            elif isinstance(source, WholeBatch):
                cursor = LocalCursor(0, source.total)
            else:
                cursor = SourceCursor(source)
        total = cursor.remaining if source.total is None or resume is None else source.total
        scheduler = (RecordedScheduler if self.journal else ChunkScheduler)(
            cursor,
            self.policy,
            states,
            total=total,
            backup=self.backup and len(states) > 1,
            retries=self.retries,
            on_error=self.on_error,
        )
        if resume is not None:
            scheduler.returned += [Chunk(start, stop, -1) for start, stop in resume.missing]
            scheduler.rows += [row for row in resume.report.rows if row.state == "done"]
            scheduler.done_items = sum(row.stop - row.start for row in scheduler.log)
        calling = Calling(self.function, self.preprocess, self.postprocess, spread)
        run = BatchRun(source, scheduler, output, calling, self.devices, self.pool.lock, self.weight)
        run.spans = [] if self.trace is not None else None
        if isinstance(scheduler, RecordedScheduler):
            run.file = file = JournalFile(None if self.journal is True else self.journal)
            before = gaps(resume.missing, source.total or 0) if resume is not None else []
            facts = {"done_before": before, "shared": shared}
            run.record = partial(self._begin_journal, file, scheduler, source.total, facts)
        return run, form

    def _begin_journal(
        self, file: JournalFile, scheduler: RecordedScheduler, items: int | None, facts: dict[str, Any], ended: Event
    ) -> BatchJournal:
        header = header_of(
            scheduler,
            policy=self.policy_name,
            mode=LIVE,
            items=items,
            peaks=[measured_peak(state.curve) for state in scheduler.view.devices],
            options=self._options,
            clock=host_clock(),
            zero_s=perf_counter(),
            hardware={device.name: carrier(device) for device in self.devices},
            facts={**facts, "by_name": self._by_name},
        )
        assert file.path is not None
        return BatchJournal(file.path, header, scheduler, self.pool.lock, ended)

    def _carry_out(self, run: BatchRun) -> None:
        alone = len(self.devices) == 1 and self.devices[0].kind == "cpu" and self._backend == "thread"
        here = self.mode == "sync" or (self._own_pool and alone)
        with follow(self.progress, run) if self.progress else _SILENT as notify:
            if here and self.pool.run_here(run, notify):
                return
            run.modes = Modes()
            try:
                self.pool.add(run)
                while not run.ended.wait(0.1 if notify else None):
                    if notify is not None:
                        notify()
            except BaseException:
                self.pool.cancel(run)  # what is under way ends; nothing more begins
                run.ended.wait()
                raise

    def _outcome(self, run: BatchRun, form: Any, whole: bool) -> BatchOutcome:
        scheduler = run.scheduler
        self.tuning.learn(form, scheduler.view.devices)
        names = [device.name for device in self.devices]
        begun_s, ended_s, spans = run.begun_s, run.ended_s or perf_counter(), run.spans or ()
        self._latest = lambda: report_of(scheduler, names, begun_s, ended_s, spans)
        if self.trace is not None:
            self._latest().write_trace(self.trace)
        claims = run.journal.end(perf_counter()) if run.journal is not None else {}
        file, run.file = run.file, NOWHERE  # copies of a chunk know each other, and their run: it would stay with them
        own = None if self._by_name else self.policy
        self._recorded = partial(_run_of, file, self._latest, self.policy_name, own, claims)
        self._learn_direct(form, run.source, run)
        late = any(self.pool.workers[chunk.device].late for chunk in scheduler.active)
        if late and isinstance(run.output, Preallocated):
            run.output.detached = True
        failures = [
            Failure(names[chunk.device], chunk.start, chunk.stop, chunk.attempt, error)
            for chunk, error in scheduler.failures
        ]
        total = run.source.total
        missing = scheduler.missing(total) if whole and total is not None and scheduler.done_items != total else []
        result = run.output.result() if self.reduce is None or not failures else None
        if self._cuda:
            handed_over(result)
        return BatchOutcome(result, missing, failures, self._latest, run.output, self._recorded)

    def _empty(self, source: Source, spread: bool) -> BatchOutcome:
        """No items: one call on none of them gives an empty result of the right form."""
        device = self.devices[0]
        call = Calling(self.function, self.preprocess, self.postprocess, spread).on(device, home_of(source))
        result = call(source.slice(0, 0))
        now = perf_counter()
        report = BatchReport(0, 0.0, [], [], now)
        self._latest, self._recorded = lambda: report, partial(_run_of, NOWHERE, lambda: report, self.policy_name)
        result = self.reduce([result]) if self.reduce else result
        return BatchOutcome(result, [], [], self._latest, None, self._recorded)


def _run_of(
    file: JournalFile,
    report: Callable[[], BatchReport],
    name: str,
    own: Policy | None = None,
    claims: Mapping[str, Any] = MappingProxyType({}),
) -> DispatchRun:
    """A run as it is told to who asks; `own`: a policy that has no name, `claims`: what its journal ends with."""
    return DispatchRun(file, {**report().metrics(name), **claims}, own)
