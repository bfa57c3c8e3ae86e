"""Run a batched function over all the devices of a node, as if it were called once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import copy_context
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal
from weakref import finalize

from dovetail.core.errors import DovetailError, InputError, check_functions, within
from dovetail.core.files.document import as_path
from dovetail.core.files.plain import scalar
from dovetail.core.results.run import JournalFile
from dovetail.dispatch.chunk import Chunk, ResultFormError, gaps
from dovetail.dispatch.inputs.batch import Source, SourceCursor, TreeBatch, WholeBatch, as_source, form_of, handed_over
from dovetail.dispatch.inputs.cursor import Cursor, LocalCursor
from dovetail.dispatch.inputs.devices import NodeDevice, devices_with, of_one_cpu
from dovetail.dispatch.live.arguments import check_cursor, check_options, check_resume
from dovetail.dispatch.live.assembly import BatchOutput, Preallocated, output_for
from dovetail.dispatch.live.batch_run import NOWHERE, BatchRun, Calling, Hook, Modes, home_of, placed_on
from dovetail.dispatch.live.compiled import CompiledSizes, is_compiled
from dovetail.dispatch.live.direct import (
    LAST,
    DirectCallError,
    DirectCalls,
    OneCall,
    direct_calls,
    once_on,
    report_once,
)
from dovetail.dispatch.live.errors import Failure
from dovetail.dispatch.live.input_changes import copy_of
from dovetail.dispatch.live.joining import Join
from dovetail.dispatch.live.mapping.run import MapReport, map_over
from dovetail.dispatch.live.outcome import BatchOutcome, begin_journal, mark_of, run_of
from dovetail.dispatch.live.pool import WorkerPool
from dovetail.dispatch.live.progress import RunProgress, follow
from dovetail.dispatch.live.stream import Piece, Streamed, pieces_of
from dovetail.dispatch.live.tuning_cache import TuningCache, cache_folder
from dovetail.dispatch.metrics import BatchReport, DispatchRun, report_of
from dovetail.dispatch.policies import chosen, default_policy
from dovetail.dispatch.policies.base import DeviceState, Policy
from dovetail.dispatch.policies.floor import Way
from dovetail.dispatch.replay import RecordedScheduler
from dovetail.dispatch.scheduler import ChunkScheduler

_SILENT: AbstractContextManager[None] = nullcontext()
_FEWER = 8  # rows, or fewer: a call with them shows whether something depends on their number
_COPIED = 0.04  # of a batch: a device of the same CPU does no longer chunk of it a second time


class Dispatcher:
    """Calls a function on chunks of a batch, each on the device that is free, and puts the results together.

    >>> import torch
    >>> with Dispatcher(lambda x: 2 * x, "cpu", sizes=3, cache=False) as double:
    ...     double.run(torch.arange(10)).tolist()
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]

    Parameters
    ----------
    function
        Any callable over batches, an nn.Module (copied to each device), or an object with `on(device)`.
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
        Puts the list of results together; by default they are joined by their rows, along `dim`.
    join
        Joins parts that have no rows and differ between chunks: called with their values and the chunks' sizes; `list`
        for the list of the chunks' results.
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
    shapes
        `few`: the function is compiled for every size anew, so chunks have few of them; `padded`: and fewer still, for
        the last ones are filled up with copies of a row. By default what torch.compile and jax.jit make is known.
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
        join: Join | Literal["list"] | None = None,
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
        shapes: Literal["any", "few", "padded"] | None = None,
    ) -> None:
        dim, retries, weight = scalar(dim), scalar(retries), scalar(weight)
        asked = {"reduce": reduce, "join": join, "backup": backup, "on_error": on_error, "retries": retries}
        check_options(dim=dim, mode=mode, pool=pool, weight=weight, progress=progress, shapes=shapes, **asked)
        check_functions(preprocess=preprocess, postprocess=postprocess, init=init, teardown=teardown)
        self._own_pool = pool is None
        self._backend = backend
        if pool is None:
            given = devices_with(devices, sizes, capacities, priorities, exist=backend != "ray")
            pool = WorkerPool(given, backend, init=init, teardown=teardown)
        self.pool = pool
        self.devices = pool.devices if self._own_pool else devices_with(pool.devices, sizes, capacities, priorities)
        self.names = [device.name for device in self.devices]
        self._alone = len(self.devices) == 1 and self.devices[0].kind == "cpu"
        self._frugal = of_one_cpu(self.devices) and any(device.size is None for device in self.devices)
        self._cuda = any(device.kind == "cuda" for device in self.devices)
        if policy is None:
            policy = default_policy(all(device.size is not None for device in self.devices))
        self.policy_name, self.policy = chosen(policy, options)
        self._by_name, self._options = isinstance(policy, str), dict(options or {})
        self.given, self.function = function, placed_on(function)
        self.dim, self.mode, self.reduce, self.join = dim, mode, reduce, join
        self.preprocess, self.postprocess, self.progress = preprocess, postprocess, progress
        self.backup, self.on_error, self.retries, self.weight = backup, on_error, retries, weight
        self.trace = as_path(trace, "trace") if trace is not None else None
        self.journal = bool(journal) if journal is None or isinstance(journal, bool) else as_path(journal, "journal")
        self._written = self.trace or self.journal
        folder = cache_folder() if cache is True else as_path(cache, "cache") if cache else None
        slots = [worker.slots for worker in pool.workers]
        learns = getattr(self.policy, "learns", True)
        few = shapes in ("few", "padded") or (shapes is None and of_one_cpu(self.devices) and is_compiled(function))
        self.tuning = TuningCache(function, self.devices, slots, folder, learns, backend == "thread", few)
        self._latest: Callable[[], BatchReport] | None = None
        self._recorded: Callable[[], DispatchRun] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False
        self._sizes = CompiledSizes(dim, shapes == "padded") if few else None
        self._direct = direct_calls(self, function)
        if self._own_pool:
            finalize(self, pool.abandon).atexit = False

    # -- what one calls

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result for the whole batch, in order. Several arguments are cut alike."""
        if (direct := self._direct) is None:
            return self.attempt(*args, **kwargs).unwrap()
        once = direct.met(args[0]) if len(args) == 1 and not kwargs else None
        if once is not None and once.left.calls > LAST:
            return self._call_unseen(once, args[0])
        if once is not None and direct.take(once.form, once.items):
            return self._call_once(direct, once, None, args, kwargs).unwrap()
        source, spread = self._source(args, kwargs)
        form, at = form_of(source, self.dim), direct.device_of(source)
        if at is not None and direct.take(form, source.total or 0):
            once = direct.meet(source, form, at)
            return self._call_once(direct, once, source, args, kwargs).unwrap()
        return self._attempt(source, spread, form, args, kwargs).unwrap()

    def attempt(
        self, *args: Any, cursor: Cursor | None = None, resume: BatchOutcome | None = None, **kwargs: Any
    ) -> BatchOutcome:
        """As `run`, but errors of the work are in the outcome, beside what succeeded.

        `resume` does only what an earlier outcome of the same batch lacks; Ctrl-C carries one too, as its `outcome`.
        """
        self._check_open()
        source, spread = self._source(args, kwargs)
        check_cursor(cursor)
        check_resume(resume, source)
        return self._attempt(source, spread, form_of(source, self.dim), args, kwargs, cursor, resume)

    def stream(
        self, *args: Any, ordered: bool = True, cursor: Cursor | None = None, ahead: int = 4, **kwargs: Any
    ) -> Iterator[Piece]:
        """Results chunk by chunk as they come, in the order of the batch or as they end; `ahead` chunks may wait."""
        if ordered and cursor is not None:
            raise InputError("a stream over a shared cursor has gaps; give ordered=False")
        check_cursor(cursor)
        within("ahead", ahead, "0 or more", whole=True, optional=False)
        self._check_open()
        source, spread = self._source(args, kwargs)
        output = Streamed()
        form = form_of(source, self.dim)
        run = self._batch_run(source, output, spread, self.tuning.states(form), cursor)
        run.room = len(self.devices) * 2 + ahead
        run.modes = Modes()
        return pieces_of(self.pool, run, output, ordered, lambda: self._outcome(run, form, whole=False).unwrap())

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a run and give its future; `asyncio.wrap_future` awaits it."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(thread_name_prefix="dovetail submit")
        modes, context = Modes(), copy_context()

        def begin() -> Any:
            with ExitStack() as stack:
                modes.enter(stack)
                return self.attempt(*args, **kwargs).unwrap()

        return self._executor.submit(context.run, begin)

    def map(
        self,
        dataset: Any,
        out: str | Path,
        *,
        items: int | None = None,
        to: str | None = None,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> MapReport:
        """The function over a dataset larger than memory, to files in the folder `out`; a killed map is gone on with.

        A dataset is a folder of .npy, .safetensors or .parquet files, a Dataset or DataLoader, or an iterable. A shard
        has so many `items` (about 64 MiB if not given) and is a file of the format `to`.
        """
        self._check_open()
        return map_over(self, dataset, out, items, to, progress)

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
        return run_of(NOWHERE, self._latest, self.policy_name) if self._recorded is None else self._recorded()

    def close(self) -> None:
        """End the workers, unless they belong to a shared pool."""
        self._closed, self._direct = True, None
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

    # -- the engine's way

    def _source(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Source, bool]:
        if len(args) == 1 and not kwargs:
            return as_source(args[0], self.dim), False
        return TreeBatch((args, kwargs), self.dim), True

    def _output(self, source: Source) -> BatchOutput:
        kept = self.postprocess is not None
        return output_for(source, self.dim, home_of(source), self.reduce, self.join, kept)

    def _attempt(
        self,
        source: Source,
        spread: bool,
        form: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        cursor: Cursor | None = None,
        resume: BatchOutcome | None = None,
    ) -> BatchOutcome:
        if source.total == 0 and resume is None:
            return self._empty(source, spread)
        states = self.tuning.states(form)
        direct, floor, items = self._direct, self.tuning.floor(form), source.total or 0
        at = direct.device_of(source) if direct is not None else None
        way = self._way(source, form, states, at) if cursor is None and resume is None else None
        one = None if at is None else Way((at,), whole=True)
        if direct and at is not None and one and way == one and (direct.is_timed or floor.is_sure(one, items)):
            outcome = self._call_once(direct, direct.meet(source, form, at), source, args, kwargs)
            if floor.decided and floor.is_sure(one, items):
                direct.sure(form, items)
            return outcome
        output = self._output(source) if resume is None or resume.output is None else resume.output
        told = floor.why(way, items, self.names) if way is not None else ""
        run = self._batch_run(source, output, spread, states, cursor, resume, told)
        run.way = way
        try:
            self._carry_out(run)
        except KeyboardInterrupt as stop:
            stop.outcome = self._outcome(run, form, whole=cursor is None)  # type: ignore[attr-defined]
            raise
        return self._outcome(run, form, whole=cursor is None)

    def _batch_run(
        self,
        source: Source,
        output: BatchOutput,
        spread: bool,
        states: list[DeviceState],
        cursor: Cursor | None = None,
        resume: BatchOutcome | None = None,
        told: str = "",
    ) -> BatchRun:
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
            copied=_COPIED if self._frugal else 1.0,
        )
        if resume is not None:
            scheduler.returned += [Chunk(start, stop, -1) for start, stop in resume.missing]
            scheduler.rows += [row for row in resume.report.rows if row.state == "done"]
            scheduler.done_items = sum(row.stop - row.start for row in scheduler.log)
        calling = Calling(self.function, self.preprocess, self.postprocess, spread)
        run = BatchRun(source, scheduler, output, calling, self.devices, self.pool.lock, self.weight)
        run.spans = [] if self.trace is not None else None
        run.touched = list(resume.missing) if resume is not None else []
        run.cpu_s, run.told = process_time(), told
        run.sizes = self._sizes
        if isinstance(scheduler, RecordedScheduler):
            run.file = file = JournalFile(None if self.journal is True else self.journal)
            before = gaps(resume.missing, source.total or 0) if resume is not None else []
            facts = {"done_before": before, "shared": shared, "way": told, "by_name": self._by_name}
            own = self.policy_name, self._options, self.devices, self.pool.lock
            run.record = partial(begin_journal, file, scheduler, source.total, facts, *own)
        return run

    def _way(self, source: Source, form: Any, states: list[DeviceState], at: int | None) -> Way | None:
        """Who does this batch, and whether with one call (`at`: that the caller can make); None: as the policy says."""
        if not getattr(self.policy, "leaves_out", False) or not self._own_pool or not source.total:
            return None
        once = once_on(self.devices, states, source) if at is None else [at]
        again = self.tuning.met_again(form, source.total)
        home = home_of(source)
        copied = home is None or home.type == "cpu"
        return self.tuning.floor(form).choose(states, source.total, once if again else [], copied)

    def _call_once(
        self, direct: DirectCalls, once: OneCall, source: Source | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BatchOutcome:
        """One call on the caller's thread, with little around it; if it fails, the engine goes on from there."""
        self.pool.refuse_inside()
        call = self.function(self.devices[once.at])
        try:
            result, begun_s, ended_s = direct.call(call, once, self.tuning.floor(once.form), source, args, kwargs)
        except DirectCallError as failed:
            return self._call_failed(once, failed, source, args, kwargs)
        except KeyboardInterrupt as stop:
            stop.outcome = self._stopped(args, kwargs)  # type: ignore[attr-defined]
            raise
        self._latest = partial(report_once, self, once, begun_s, ended_s)
        self._recorded = partial(run_of, NOWHERE, self._latest, self.policy_name)
        return BatchOutcome(result, [], [], self._latest, None, self._recorded)

    def _call_unseen(self, once: OneCall, batch: Any) -> Any:
        """The result of one call of which no books are kept."""
        self.pool.refuse_inside()
        left = once.left
        left.calls -= 1
        left.unseen += 1
        call = self.function(self.devices[once.at])
        begun_s = perf_counter()
        try:
            result = call(batch)
        except Exception as error:
            return self._call_failed(once, DirectCallError(begun_s, error), None, (batch,), {}).unwrap()
        except KeyboardInterrupt as stop:
            stop.outcome = self._stopped((batch,), {})  # type: ignore[attr-defined]
            raise
        ended_s = perf_counter()
        if ended_s - begun_s > left.most_s:
            left.calls = 0
        self._latest, self._recorded = partial(report_once, self, once, begun_s, ended_s), None
        return result

    def _call_failed(
        self,
        once: OneCall,
        failed: DirectCallError,
        source: Source | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> BatchOutcome:
        if source is None:
            source, _ = self._source(args, kwargs)
        states = self.tuning.states(once.form)
        states[once.at].whole = True
        run = self._batch_run(source, self._output(source), len(args) != 1 or bool(kwargs), states)
        if not run.begin_failed(once.at, failed.begun_s, failed.error):
            self._carry_out(run)
        return self._outcome(run, once.form, whole=True)

    def _stopped(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BatchOutcome:
        """What becomes of a batch whose one call is interrupted: nothing of it is done."""
        source, _ = self._source(args, kwargs)
        missing = [(0, source.total or 0)]
        return self._outcome_of_nothing(None, missing, mark_of(source, missing))

    def _outcome_of_nothing(self, result: Any, missing: list[tuple[int, int]], mark: str = "") -> BatchOutcome:
        """The outcome of a run in which no item was done."""
        report = BatchReport(0, 0.0, [], [], perf_counter())
        self._latest, self._recorded = lambda: report, partial(run_of, NOWHERE, lambda: report, self.policy_name)
        return BatchOutcome(result, missing, [], self._latest, None, self._recorded, mark)

    def _carry_out(self, run: BatchRun) -> None:
        here = self.mode == "sync" or (self._own_pool and self._alone and self._backend == "thread")
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
        begun_s, ended_s, spans = run.begun_s, run.ended_s or perf_counter(), run.spans or ()
        way, told, total, names = run.way, run.told, run.source.total, self.names  # a report must not hold on to this
        self._latest = lambda: report_of(scheduler, names, begun_s, ended_s, spans, told)
        cpu_s = process_time() - run.cpu_s
        if any(isinstance(error, ResultFormError) for _, error in scheduler.failures):
            self.tuning.floor(form).unjoinable = True
        if self.trace is not None:
            self._latest().write_trace(self.trace)
        claims = run.journal.end(perf_counter()) if run.journal is not None else {}
        file, run.file = run.file, NOWHERE  # copies of a chunk know each other, and their run: it would stay with them
        own = None if self._by_name else self.policy
        self._recorded = partial(run_of, file, self._latest, self.policy_name, own, claims)
        if isinstance(run.output, Preallocated) and not run.output.on_host:
            run.output.detached = any(self.pool.workers[chunk.device].late for chunk in scheduler.active)
        joining_s, join_cpu_s = perf_counter(), process_time()
        lacks = scheduler.failures or (whole and total is not None and scheduler.done_items != total)
        if self._backend != "ray" and self.pool.init is None and not lacks:  # else the function may not work here
            run.output.witness = partial(self._witness, run)
        try:
            result = run.output.result() if self.reduce is None or not scheduler.failures else None
        except ResultFormError:
            self.tuning.floor(form).unjoinable = True
            raise
        finally:
            run.output.witness = None  # it would keep the batch alive
        joining_s, join_cpu_s = perf_counter() - joining_s, process_time() - join_cpu_s
        if way is not None and total is not None and not scheduler.failures and scheduler.done_items == total:
            probed, floor = any(state.probed for state in scheduler.view.devices), self.tuning.floor(form)
            used = ended_s - begun_s + joining_s, scheduler.view.whole_s(cpu_s + join_cpu_s)
            floor.ended(way, total, *used, probed)
            if len(scheduler.rows) > 1:
                floor.join_s = join_cpu_s / total
        if self._direct is not None and not self.tuning.floor(form).unjoinable:
            self._direct.learn(form, run)
        failures = [
            Failure(self.names[chunk.device], chunk.start, chunk.stop, chunk.attempt, error)
            for chunk, error in scheduler.failures
        ]
        missing = scheduler.missing(total) if whole and total is not None and scheduler.done_items != total else []
        if self._cuda:
            handed_over(result)
        mark = mark_of(run.source, missing) if missing and not run.forgets else ""
        return BatchOutcome(result, missing, failures, self._latest, run.output, self._recorded, mark)

    def _witness(self, run: BatchRun, rows: int) -> Any:
        """What the function gives for other rows than chunks had, on a copy: nothing of this is of the result."""
        work = run.source.slice(0, min(rows // 2, _FEWER) or 2)
        return run.calling.on(self.devices[0], home_of(run.source))(copy_of(work))

    def _empty(self, source: Source, spread: bool) -> BatchOutcome:
        """No items: one call on none of them gives an empty result of the right form."""
        device = self.devices[0]
        call = Calling(self.function, self.preprocess, self.postprocess, spread).on(device, home_of(source))
        result = call(source.slice(0, 0))
        result = self.reduce([result]) if self.reduce else [result] if self.join == "list" else result
        return self._outcome_of_nothing(result, [])
