"""The workers of a set of devices, which one dispatcher has to itself or several share fairly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from threading import Condition, Lock, Thread
from time import perf_counter

from dovetail.core.errors import DovetailError, PolicyError
from dovetail.dispatch.devices import Device, resolve
from dovetail.dispatch.errors import is_lost, is_out_of_memory
from dovetail.dispatch.job import Job
from dovetail.dispatch.ledger import Chunk
from dovetail.dispatch.worker import Ended, Worker, backend

_SWITCH_S = 0.0005  # how long one thread may keep the interpreter from the launchers


class Pool:
    """Devices with one worker each. Free workers pull: they ask the jobs, the one that had least device time first.

    Give one pool to several dispatchers, from any threads, and they share its devices.
    """

    def __init__(
        self,
        devices: str | Device | Sequence[str | Device] = "cpu",
        backend_name: str = "thread",
        *,
        init: Callable[[Device], None] | None = None,
        teardown: Callable[[Device], None] | None = None,
    ) -> None:
        # A device of another machine cannot be looked for on this one.
        self.devices = resolve(devices, exist=backend_name != "ray")
        make = backend(backend_name)
        self.workers: list[Worker] = [make(device, self.devices) for device in self.devices]
        self.init, self.teardown = init, teardown
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.jobs: list[Job] = []
        self.waiting = 0
        self.closed = False
        self.lost: list[BaseException | None] = [None] * len(self.devices)
        self.threads: list[Thread] = []
        self._here = Lock()  # held by a caller that drives the workers itself
        self._started_here = False
        self.holding: list[list[Chunk]] = [[] for _ in self.devices]
        self._interval_s = 0.0
        self._served = [0.0] * len(self.devices)  # when each worker's last chunk ended

    # -- jobs

    def add(self, job: Job) -> None:
        """Begin a job on the workers' threads."""
        if not self.threads:
            with self._here:  # a caller who drives the workers itself comes to its end first
                self._start_threads()
        with self.lock:
            if self.closed:
                raise DovetailError("the pool is closed")
            job.begun_s = perf_counter()
            if self.jobs:  # a newcomer starts level with the one that had least
                job.used_s = min(each.used_s / each.weight for each in self.jobs) * job.weight
            elif len(self.devices) > 1:
                self._interval_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._interval_s, _SWITCH_S))
            self.jobs.append(job)
            self._revive()
            self._drop_lost(job)
            self.changed.notify_all()

    def run_here(self, job: Job, told: Callable[[], None] | None = None) -> bool:
        """Do a job on the calling thread, one device after the other; False if the workers have threads already."""
        with self._here:
            if self.threads:
                return False
            if not self._started_here:
                self._started_here = True
                for i in range(len(self.workers)):
                    self._start(i)
            job.begun_s = perf_counter()
            self._revive()
            self._drop_lost(job)
            for worker in self.workers:
                worker.begin(job)
            try:
                if len(self.workers) == 1:
                    self._drive(0, job, told)
                rounds = 0
                while not job.ended.is_set():
                    taken = [self._drive(i, job, told, once=True) for i in range(len(self.workers))]
                    rounds = 0 if any(taken) else rounds + 1
                    if rounds > 1 and not job.ended.is_set():
                        self._unstick(job)
            finally:
                job.ledger.stop()
            return True

    def _drive(self, i: int, job: Job, told: Callable[[], None] | None, once: bool = False) -> bool:
        """Do chunks on one device until it takes none, or one only; False when it takes none at all."""
        ended: list[Ended] = []
        while True:
            with self.lock:
                now = perf_counter()
                if ended:
                    self._settle(i, ended, now)
                    if once:
                        return True
                chunk = self._take(i, job, now)
            if chunk is None:
                return bool(ended)
            ended = self._carry_out(i, chunk, wait=True)
            if told is not None:
                told()

    def _unstick(self, job: Job) -> None:
        with self.lock:
            if job.ledger.finished:
                self._end(job)
            else:
                left = PolicyError("work is left that no device takes")
                job.ledger.failures.append((Chunk(job.ledger.done_items, job.ledger.done_items, 0), left))
                job.ledger.stop()
                self._end(job)

    def wake(self) -> None:
        """Something outside changed: a reader made room, or a job was stopped."""
        with self.lock:
            for job in [job for job in self.jobs if job.ledger.finished]:
                self._end(job)
            self.changed.notify_all()

    # -- workers

    def _start_threads(self) -> None:
        if self.threads:
            return
        import torch

        torch.linalg.inv(torch.ones(1, 1))  # its lazy start is not safe in several threads at once
        for i, device in enumerate(self.devices):
            thread = Thread(target=self._serve, args=(i,), name=f"dovetail {device.name}", daemon=True)
            self.threads.append(thread)
            thread.start()

    def _start(self, i: int) -> None:
        try:
            self.workers[i].start()
            self._call_hook(self.init, i)
        except Exception as error:
            self.lost[i] = error

    def _call_hook(self, hook: Callable[[Device], None] | None, i: int) -> None:
        """Hooks run where the function runs, which may be another process."""
        if hook is not None:
            there = getattr(self.workers[i], "hook", None)
            there(hook, self.devices[i]) if there is not None else hook(self.devices[i])

    def _serve(self, i: int) -> None:
        worker = self.workers[i]
        self._start(i)
        with self.lock:
            for job in self.jobs:
                self._drop_lost(job)
        current: Job | None = None
        ended: list[Ended] = []
        held = 0
        with ExitStack() as modes:
            while True:
                chunk = self._next(i, held, ended)
                if chunk is not None:
                    held += 1
                    if chunk.job is current:
                        ended = self._carry_out(i, chunk, wait=held >= worker.slots)
                    else:
                        modes.close()
                        ended = self._switch(i, chunk, modes)
                        # If it was the beginning that failed, the worker still has the function of another job.
                        current = None if ended and ended[0][1] is not None else chunk.job
                elif held:
                    ended = worker.collect()
                else:
                    break
                held -= len(ended)
        if self.lost[i] is None:
            self._call_hook(self.teardown, i)
        worker.stop()

    def _switch(self, i: int, chunk: Chunk, modes: ExitStack) -> list[Ended]:
        """The first chunk of a job on this worker: the thread takes the modes of the thread that began the job."""
        job: Job = chunk.job
        try:
            if job.modes is not None:
                job.modes.enter(modes)
            self.workers[i].begin(job)
        except Exception as error:
            return [(chunk, error)]
        return self._carry_out(i, chunk, wait=self.workers[i].slots == 1)

    def _carry_out(self, i: int, chunk: Chunk, wait: bool) -> list[Ended]:
        try:
            self.workers[i].launch(chunk)
        except BaseException as error:
            if not isinstance(error, Exception) and not self.threads:
                chunk.job.ledger.stop()
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
            while True:
                chunk = self._choose(i, now) if held < self.workers[i].slots and self.lost[i] is None else None
                if chunk is not None or held or self.closed:
                    return chunk
                wake = min((job.ledger.wake_s for job in self.jobs), default=inf)
                self.waiting += 1
                self.changed.wait(None if wake == inf or self.lost[i] is not None else max(wake - now, 0.0002))
                self.waiting -= 1
                now = perf_counter()

    def _choose(self, i: int, now: float) -> Chunk | None:
        """A chunk of the job that had the least device time for its weight, of those that have one for this device."""
        for job in sorted(self.jobs, key=lambda job: job.used_s / job.weight) if len(self.jobs) > 1 else self.jobs[:]:
            chunk = self._take(i, job, now)
            if chunk is not None:
                return chunk
        return None

    def _take(self, i: int, job: Job, now: float) -> Chunk | None:
        ledger = job.ledger
        if job.room <= 0 and not ledger.returned:
            return None
        if len(self.holding) > 1:
            self._tell_away(job, now)
        wake_s = ledger.wake_s
        try:
            chunk = ledger.take(i, now)
        except Exception as error:  # the source or the policy failed
            ledger.failures.append((Chunk(ledger.done_items, ledger.done_items, i), error))
            ledger.stop()
            chunk = None
        if self.waiting and ledger.wake_s < wake_s:
            self.changed.notify_all()
        if chunk is None:
            if ledger.finished:
                self._end(job)
            return None
        chunk.job = job
        job.room -= 1
        self.holding[i].append(chunk)
        return chunk

    def _tell_away(self, job: Job, now: float) -> None:
        """Let a job know which devices are busy with chunks of other jobs, and until when about."""
        for state, held in zip(job.ledger.view.devices, self.holding, strict=True):
            state.away = bool(held) and held[0].job is not job
            if state.away:
                last = held[-1]
                due_s = last.due_s if now < last.due_s < inf else 2 * now - last.begun_s
                state.busy_until_s = max(state.busy_until_s, due_s)

    def _settle(self, i: int, ended: list[Ended], now: float) -> None:
        for chunk, error in ended:
            job: Job = chunk.job
            self.holding[i].remove(chunk)
            ledger = job.ledger
            served = self._served[i]
            seconds = now - (chunk.begun_s if chunk.begun_s > served else served)
            self._served[i] = now
            job.used_s += seconds
            if error is None:
                ledger.done(chunk, now, seconds)
            elif is_out_of_memory(error):
                ledger.halved(chunk, now, error)
            else:
                lost = is_lost(error)
                if lost:
                    self._lose(i, error)
                ledger.failed(chunk, now, error, lost=lost)
            if ledger.finished:
                self._end(job)
        if self.waiting:
            self.changed.notify_all()

    def _lose(self, i: int, error: BaseException) -> None:
        self.lost[i] = error
        for job in self.jobs:
            self._drop_lost(job)

    def _revive(self) -> None:
        """A new run tries devices again that can come back, such as a process that died."""
        for i, worker in enumerate(self.workers):
            if self.lost[i] is not None and getattr(worker, "returns", False):
                self.lost[i] = None

    def _drop_lost(self, job: Job) -> None:
        """Take devices that are gone out of a job."""
        for i, error in enumerate(self.lost):
            if error is not None:
                job.ledger.lose(i, error)
        if job.ledger.finished:
            self._end(job)

    def _end(self, job: Job) -> None:
        if job in self.jobs:
            self.jobs.remove(job)
            if not self.jobs and self._interval_s:
                sys.setswitchinterval(self._interval_s)
        if not job.ended.is_set():
            job.ended_s = perf_counter()
            job.ended.set()

    def close(self) -> None:
        """Stop the workers. What is under way ends first."""
        with self.lock:
            self.closed = True
            for job in list(self.jobs):
                job.ledger.stop()
            self.changed.notify_all()
        for thread in self.threads:
            thread.join(timeout=30)
        if self._started_here and not self.threads:
            for i, worker in enumerate(self.workers):
                self._call_hook(self.teardown, i)
                worker.stop()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
