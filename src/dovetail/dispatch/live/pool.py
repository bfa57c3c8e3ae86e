"""The workers of a set of devices, which one dispatcher has to itself or several share fairly."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from math import inf
from threading import Condition, Lock, RLock, Thread, current_thread, get_ident
from time import perf_counter

from dovetail.core.errors import DovetailError, PolicyError, is_out_of_memory
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice, resolve
from dovetail.dispatch.live import switch_interval
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.errors import is_lost
from dovetail.dispatch.live.worker import Ended
from dovetail.dispatch.live.workers import WorkerSet
from dovetail.dispatch.policies.floor import charged_s

_KEPT = ExitStack()  # on the caller's own thread there are no modes to take over


class WorkerPool:
    """Devices with one worker each. Free workers pull: they ask the runs, the one that had least device time first.

    Give one pool to several dispatchers, from any threads, and they share its devices.
    """

    def __init__(
        self,
        devices: str | NodeDevice | Sequence[str | NodeDevice] = "cpu",
        backend_name: str = "thread",
        *,
        init: Callable[[NodeDevice], None] | None = None,
        teardown: Callable[[NodeDevice], None] | None = None,
    ) -> None:
        # A device of another machine cannot be looked for on this one.
        self.devices = resolve(devices, exist=backend_name != "ray")
        self.worker_set = WorkerSet(self.devices, backend_name, init, teardown)
        self.workers, self.lost, self._begun = self.worker_set.workers, self.worker_set.lost, self.worker_set.begun
        self.init, self.teardown = init, teardown
        self.lock = RLock()  # a stream that nobody reads any more may be collected on a thread that holds it
        self.changed = Condition(self.lock)
        self.runs: list[BatchRun] = []
        self.waiting = 0
        self.closed = False
        self.threads: list[Thread] = []
        self._running = False  # all threads have started
        self._pid = 0  # the process that they are in
        self._here = Lock()  # held by a caller that drives the workers itself
        self._driver = 0  # the thread of that caller
        self._started_here = [False] * len(self.devices)
        self.holding: list[list[Chunk]] = [[] for _ in self.devices]
        self._served = [0.0] * len(self.devices)  # when each worker's last chunk ended

    # -- runs

    def add(self, run: BatchRun) -> None:
        """Begin a run on the workers' threads."""
        self.refuse_inside()
        if not self._running:
            with self._here:  # a caller who drives the workers itself comes to its end first
                self._start_threads()
        run.begin_journal()
        with self.lock:
            if self.closed:
                raise DovetailError("the pool is closed")
            run.begun_s = perf_counter()
            if self.runs:  # a newcomer starts level with the one that had least
                run.used_s = min(each.used_s / each.weight for each in self.runs) * run.weight
            elif len(self.devices) > 1:
                switch_interval.shorten()
            self.runs.append(run)
            self.worker_set.revive()
            self._drop_lost(run)
            self.changed.notify_all()

    def cancel(self, run: BatchRun) -> None:
        """Stop a run, whether or not it has begun. What is under way ends; nothing more begins."""
        with self.lock:
            run.scheduler.stop()
            if run.scheduler.finished:
                self._end(run)
            self.changed.notify_all()

    def refuse_inside(self) -> None:
        """An error on a thread of this pool, which would wait for itself, and in a process that lacks its threads."""
        if self._inside():
            raise DovetailError("what runs on a pool cannot wait for the same pool: it needs a dispatcher of its own")
        if self._pid and self._pid != os.getpid():
            raise DovetailError("this process was forked, without the pool's threads: it needs a dispatcher of its own")

    def _inside(self) -> bool:
        return self._driver == get_ident() or current_thread() in self.threads

    def run_here(self, run: BatchRun, notify: Callable[[], None] | None = None) -> bool:
        """Do a run on the calling thread, one device after the other; False if the workers have threads already."""
        self.refuse_inside()
        with self._here:
            if self.closed:
                raise DovetailError("the pool is closed")
            if self.threads:
                return False
            self._driver = get_ident()
            try:
                self._start_here()
                run.begin_journal()
                run.begun_s = perf_counter()
                self.worker_set.revive()
                self._drop_lost(run)
                self._drive_all(run, notify)
            except BaseException:
                run.scheduler.stop()
                self._let_go()
                raise
            finally:
                self._driver = 0
            return True

    def _start_here(self) -> None:
        for i, started in enumerate(self._started_here):
            if not started:
                self.worker_set.start(i)
                self._started_here[i] = True

    def _stop_here(self) -> None:
        for i, started in enumerate(self._started_here):
            if started:
                self._started_here[i] = False
                self.worker_set.stop(i)

    def _let_go(self) -> None:
        """After an interrupt: what workers still hold comes to its end, so that the next run finds them free."""
        for i, worker in enumerate(self.workers):
            with suppress(Exception):
                while worker.collect():
                    pass
            self.holding[i].clear()

    def _drive_all(self, run: BatchRun, notify: Callable[[], None] | None) -> None:
        if len(self.workers) == 1:
            self._drive(0, run, notify)
        rounds = 0
        while not run.ended.is_set():
            taken = [self._drive(i, run, notify, once=True) for i in range(len(self.workers))]
            rounds = 0 if any(taken) else rounds + 1
            if rounds > 1 and not run.ended.is_set():
                with self.lock:
                    run.scheduler.stop(PolicyError("work is left that no device takes"))
                    self._end(run)

    def _drive(self, i: int, run: BatchRun, notify: Callable[[], None] | None, once: bool = False) -> bool:
        """Do chunks on one device until it takes none, or one only; False when it takes none at all."""
        ended: list[Ended] = []
        while True:
            with self.lock:
                now = perf_counter()
                if ended:
                    self._settle(i, ended, now)
                    if once:
                        return True
                chunk = self._take(i, run, now)
            if chunk is None:
                return bool(ended)
            begun = self._begun[i] is run.ended
            ended = self._carry_out(i, chunk, wait=True) if begun else self._switch(i, chunk, _KEPT, wait=True)
            if notify is not None:
                notify()

    # -- workers

    def _start_threads(self) -> None:
        if self._running or self.closed:
            return
        import torch

        self._stop_here()
        torch.linalg.inv(torch.ones(1, 1))  # its lazy start is not safe in several threads at once
        if not self.threads:
            self._pid = os.getpid()
            atexit.register(self.close)  # a thread inside PyTorch while the interpreter ends aborts the process
            names = [f"dovetail {device.name}" for device in self.devices]
            self.threads = [Thread(target=self._serve, args=(i,), name=n, daemon=True) for i, n in enumerate(names)]
        for thread in self.threads:
            if thread.ident is None:
                thread.start()
        self._running = True  # not before: an interrupt may have come between two of them

    def _serve(self, i: int) -> None:
        """A worker's thread. It must not end before the pool does: its runs would wait for ever."""
        step = self.worker_set.start
        while not self.closed:
            try:
                step(i)
                step = self._work
            except BaseException as error:
                self._give_up(i, error)
        self.worker_set.stop(i)

    def _give_up(self, i: int, error: BaseException) -> None:
        """Something went wrong that is no error of one chunk: the device is lost, and with it all that it holds."""
        gone = self.worker_set.gone(i, error)
        with self.lock:
            self._lose(i, gone)
            self._settle(i, [(chunk, gone) for chunk in self.holding[i]], perf_counter())

    def _work(self, i: int) -> None:
        worker = self.workers[i]
        self._drop_lost_devices()
        ended: list[Ended] = []
        held = 0
        with ExitStack() as modes:
            while True:
                chunk = self._next(i, held, ended)
                if chunk is not None:
                    held += 1
                    if self._begun[i] is chunk.run.ended:
                        ended = self._carry_out(i, chunk, wait=held >= worker.slots)
                    else:
                        modes.close()
                        ended = self._switch(i, chunk, modes, wait=worker.slots == 1)
                elif held:
                    ended = worker.collect()
                else:
                    break
                held -= len(ended)
                chunk = None  # while this waits for the next one, it keeps no batch alive

    def _switch(self, i: int, chunk: Chunk, modes: ExitStack, wait: bool) -> list[Ended]:
        """The first chunk of a run on this worker."""
        try:
            self.worker_set.begin(i, chunk.run, modes)
        except Exception as error:
            return [(chunk, error)]
        return self._carry_out(i, chunk, wait)

    def _carry_out(self, i: int, chunk: Chunk, wait: bool) -> list[Ended]:
        try:
            self.workers[i].launch(chunk)
        except BaseException as error:
            if not isinstance(error, Exception) and not self.threads:
                raise
            return [(chunk, error)]
        return self.workers[i].collect() if wait else []

    def _next(self, i: int, held: int, ended: list[Ended]) -> Chunk | None:
        """Take what has ended back, and give the next chunk.

        None when the worker holds chunks to wait for instead, or when the pool closes.
        """
        with self.lock:
            now = perf_counter()
            if ended:
                self._settle(i, ended, now)
                ended.clear()
            while True:
                chunk = self._choose(i, now) if held < self.workers[i].slots and self.lost[i] is None else None
                if chunk is not None or held or self.closed:
                    return chunk
                wake = min(
                    (run.scheduler.wake_s for run in self.runs if run.room > 0 or run.scheduler.returned), default=inf
                )
                self.waiting += 1
                self.changed.wait(None if wake == inf or self.lost[i] is not None else max(wake - now, 0.0002))
                self.waiting -= 1
                now = perf_counter()

    def _choose(self, i: int, now: float) -> Chunk | None:
        """A chunk of the run that had the least device time for its weight, of those that have one for this device."""
        for run in sorted(self.runs, key=lambda run: run.used_s / run.weight) if len(self.runs) > 1 else self.runs[:]:
            chunk = self._take(i, run, now)
            if chunk is not None:
                return chunk
        return None

    def _take(self, i: int, run: BatchRun, now: float) -> Chunk | None:
        scheduler = run.scheduler
        if run.room <= 0 and not scheduler.returned:
            return None
        if len(self.holding) > 1:
            self._tell_away(run, now)
        wake_s = scheduler.wake_s
        try:
            chunk = scheduler.take(i, now)
        except (Exception, SystemExit) as error:  # the source or the policy failed
            scheduler.stop(error)
            chunk = None
        if self.waiting and scheduler.wake_s < wake_s:
            self.changed.notify_all()
        if chunk is None:
            if scheduler.finished:
                self._end(run)
            return None
        chunk.run = run
        run.room -= 1
        self.holding[i].append(chunk)
        return chunk

    def _tell_away(self, run: BatchRun, now: float) -> None:
        """Let a run know which devices are busy with chunks of other runs, and until when about."""
        for state, held in zip(run.scheduler.view.devices, self.holding, strict=True):
            was_away, state.away = state.away, bool(held) and held[0].run is not run
            if was_away and not state.away and not state.chunks:
                state.busy_until_s = now
            if state.away:
                last = held[-1]
                due_s = last.due_s if now < last.due_s < inf else 2 * now - last.begun_s
                state.busy_until_s = max(state.busy_until_s, due_s)

    def _settle(self, i: int, ended: list[Ended], now: float) -> None:
        for chunk, error in ended:
            run: BatchRun = chunk.run
            self.holding[i].remove(chunk)
            scheduler = run.scheduler
            served = self._served[i]
            seconds = now - (chunk.begun_s if chunk.begun_s > served else served)
            self._served[i] = now
            run.used_s += seconds
            if error is None:
                scheduler.done(chunk, now, charged_s(chunk.cpu_s, seconds))
            elif is_out_of_memory(error):
                scheduler.halved(chunk, now, error)
            else:
                lost = is_lost(error)
                if lost:
                    self._lose(i, error)
                scheduler.failed(chunk, now, error, lost=lost)
            if not chunk.settled:
                run.room += 1  # no reader will
            elif run.forgets:
                run.source.forget(scheduler.oldest(chunk))
            if scheduler.finished:
                self._end(run)
        if self.waiting:
            self.changed.notify_all()

    def _lose(self, i: int, error: BaseException) -> None:
        self.lost[i] = error
        self._drop_lost_devices()

    def _drop_lost_devices(self) -> None:
        with self.lock:
            for run in self.runs[:]:
                self._drop_lost(run)

    def _drop_lost(self, run: BatchRun) -> None:
        """Take devices that are gone out of a run."""
        for i, error in enumerate(self.lost):
            if error is not None:
                run.scheduler.lose(i, error)
        if run.scheduler.finished:
            self._end(run)

    def _end(self, run: BatchRun) -> None:
        if run in self.runs:
            self.runs.remove(run)
            if not self.runs and len(self.devices) > 1:
                switch_interval.restore()
        if not run.ended.is_set():
            run.ended_s = perf_counter()
            run.ended.set()

    def close(self) -> None:
        """Stop the workers. What is under way ends first; what has not begun is not done, and its caller learns it."""
        if self._inside():
            raise DovetailError("what runs on a pool cannot close it")
        if self._pid and self._pid != os.getpid():
            return  # the threads are not of this process
        with self.lock:
            self.closed = True
            for run in self.runs[:]:
                run.scheduler.stop(DovetailError("the pool was closed"))
                if run.scheduler.finished:
                    self._end(run)
            self.changed.notify_all()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(timeout=30)
        with self._here:
            self._stop_here()
        atexit.unregister(self.close)  # not before: a program that ends while another thread closes waits here too
        wrong, self.worker_set.wrong = self.worker_set.wrong, []
        if wrong:
            raise wrong[0] if len(wrong) == 1 else ExceptionGroup("the pool was not closed well", wrong)

    def abandon(self) -> None:
        """Nobody can use the pool any more: its threads end. Another one waits for them, not the one that comes by; the
        interpreter's end waits for that one, which frees tensors too: a thread that does so then aborts the process."""
        if not self.closed and (self.threads or any(self._started_here)):
            Thread(target=self.close, name="dovetail end", daemon=False).start()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
