"""Carries the scheduler's orders out: brings every program from what it is to what it ought to be.

An order only says what ought to be. At most one is at work on each program, who takes the next step towards that, again
and again until it is there: so an order may come at any moment, also while an earlier one is carried out, and a daemon
that was killed has nothing to remember but what ought to be. Steps that wait for something have threads; what is most
often all, the start of a process, is done by the thread that decides.

Whoever takes a processor waits until whoever had it has let go of it: two programs never share one.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.events import Asked, Change, Failed, Finished, Order, Pause, Prepare, Settled, Start, Stop
from dovetail.core.loop.inbox import Inbox
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.control import Control
from dovetail.host.live.executors import ExecutorError, Exit, NotNowError, ProgramExecutor, ProgramLaunch, Usage
from dovetail.host.live.executors.table import ExecutorTable
from dovetail.host.program import TASK

ACK_LIMIT_S = 2.0
_RETRY_S = 1.0
_BY_OTHERS = {True: ("running", "run", "paused", "pause"), False: ("paused", "pause", "running", "resume")}

Wanted = Literal["run", "pause", "stop"]


class Attempt(Struct, eq=False):
    """One attempt to run a program: what it ought to be, what it is, and the processors that it really has."""

    job: str
    launch: ProgramLaunch
    executor: ProgramExecutor
    wanted: Wanted
    cpus: frozenset[int]  # those it ought to have
    has: frozenset[int] = frozenset()
    state: Literal["unknown", "absent", "running", "paused", "ended"] = "absent"
    stop_why: str = ""
    stopping: bool = False
    busy: bool = False  # somebody is at work on it
    starting: bool = False  # and will be told when it runs
    told: frozenset[int] | None = None  # those that the program was last told of; None if that is not known
    settled: tuple[int, ...] | None = None
    trouble: str = ""  # what keeps it from getting there, in words
    usage: Usage | None = None  # as it was last seen
    gpu_mib: float = 0.0  # likewise

    @property
    def run(self) -> str:
        return self.launch.run


Step = Callable[[Attempt], None]


class Reconciler:
    """The live executor of a service: what the scheduler orders, for programs in the book, on these processors."""

    def __init__(
        self,
        inbox: Inbox,
        book: ProgramBook,
        executors: ExecutorTable,
        control: Control,
        cpus: Sequence[int],
        gpus: Sequence[int] = (),
    ) -> None:
        self._inbox, self._book, self._executors, self._control = inbox, book, executors, control
        executors.report_to(self.ended, self.paused)
        self._cpus, self._gpus = tuple(cpus), tuple(gpus)  # the processor behind each device, and the GPUs
        self._lock = threading.RLock()
        self._attempts: dict[str, Attempt] = {}  # by program: those that have not ended
        self._runs: dict[str, Attempt] = {}  # the same by name
        self._left: dict[str, Attempt] = {}  # attempts that have ended, until that is kept
        self._over: list[Attempt] = []  # and until they are cleaned away
        self._pool = ThreadPoolExecutor(max_workers=4 * len(cpus) + 16, thread_name_prefix="reconciler")
        self._closing = threading.Event()

    def attempt(self, job: str) -> Attempt | None:
        return self._attempts.get(job)

    # --- orders -----------------------------------------------------------------------------------------

    def carry(self, orders: Sequence[Order], now: float) -> None:
        of_programs = [order for order in orders if not isinstance(order, Prepare)]  # which none is, says the guard
        with self._lock:
            for order in of_programs:
                if type(order) is Start:
                    self._attempt(order.job, order.devices, order.gpus)
                elif order.job in self._attempts:  # if not, it has ended, and that is about to be heard
                    self._want(self._attempts[order.job], order)
            for order in of_programs:
                if order.job in self._attempts:
                    self._wake(self._attempts[order.job])

    def _want(self, attempt: Attempt, order: Start | Change) -> None:
        attempt.settled = None
        if isinstance(order, Pause):
            attempt.wanted = "pause"
        elif isinstance(order, Stop):
            attempt.wanted, attempt.stop_why = "stop", order.why
        elif not isinstance(order, Start):
            attempt.wanted, attempt.cpus = "run", frozenset(self._real(order.devices))

    def _attempt(self, job: str, devices: Sequence[int], gpus: Sequence[int]) -> Attempt:
        cpus = self._real(devices)
        launch = self._book.launch(job, cpus, [self._gpus[gpu] for gpu in gpus] if self._gpus else None)
        attempt = Attempt(job, launch, self._executors.get(launch.image), "run", frozenset(cpus))
        self._attempts[job] = self._runs[launch.run] = attempt
        return attempt

    def _real(self, devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._cpus[device] for device in devices)

    def adopt(self, job: str, wanted: Wanted, devices: Sequence[int], stop_why: str, gpus: Sequence[int] = ()) -> None:
        """After a restart: an attempt that ought to be, before `restore` looks for all of them."""
        attempt = self._attempt(job, devices, gpus)
        attempt.wanted, attempt.stop_why, attempt.state = wanted, stop_why, "unknown"

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """Find everything first, so that nobody takes a processor that somebody still has; then go on."""
        with self._lock:
            for attempt in list(self._attempts.values()):
                try:
                    self._find(attempt)
                except (ExecutorError, OSError) as error:
                    attempt.trouble = str(error)
                    attempt.has = attempt.has | attempt.cpus  # until it is known
            for attempt in list(self._attempts.values()):
                self._wake(attempt)

    def _find(self, attempt: Attempt) -> None:
        """Find out what an attempt has come to, and which processors it really has."""
        found = attempt.executor.find(attempt.launch)
        if found.exit is not None:
            self.ended(attempt.run, found.exit)
            return
        self._control_open(attempt)
        with self._lock:
            if attempt.state != "ended":  # it may have ended meanwhile
                attempt.state, attempt.told = found.state, None
                has = found.cpus if found.state == "running" else frozenset()
                attempt.has = attempt.has | has
                self._let_go(attempt, attempt.has - has)

    def _control_open(self, attempt: Attempt) -> None:
        self._control.open(attempt.run, attempt.launch.folder, attempt.launch.cpus)

    # --- ends -------------------------------------------------------------------------------------------

    def ended(self, run: str, outcome: Exit) -> None:
        """An executor's word that an attempt has ended; said twice, it counts once."""
        with self._lock:
            attempt = self._runs.get(run)
            if attempt is None or attempt.state == "ended":
                return
            used = outcome.cpu_s if outcome.cpu_s is not None else attempt.usage.cpu_s if attempt.usage else 0.0
            self._book.note_end(attempt.job, outcome, used)
            attempt.state = "ended"
            del self._runs[run]
            if self._attempts.get(attempt.job) is attempt:
                del self._attempts[attempt.job]
            self._let_go(attempt, attempt.has)
            if outcome.good and not attempt.stopping:
                self._inbox.put(Finished(attempt.job, TASK))
            else:
                why = f"stopped: {attempt.stop_why} ({outcome})" if attempt.stopping else str(outcome)
                self._inbox.put(Failed(attempt.job, TASK, why))
            self._left[attempt.job] = attempt

    def paused(self, run: str, paused: bool) -> None:
        """An executor's word on whether an attempt is paused. Where nobody here is at work on it, its user did
        that with the engine's own tools, and has asked for it."""
        with self._lock:
            attempt = self._runs.get(run)
            if attempt is None or self._closing.is_set():
                return
            if attempt.busy:
                _later(self.paused, run, paused)
                return
            before, wanted, after, what = _BY_OTHERS[paused]
            if (attempt.state, attempt.wanted) == (before, wanted):
                attempt.busy = True
                self._pool.submit(self._look_again, attempt, after, what)

    def _look_again(self, attempt: Attempt, state: str, what: str) -> None:
        """Now that nobody here can be changing it: whether it really is as somebody else has made it."""
        with suppress(ExecutorError, OSError):
            if attempt.executor.find(attempt.launch).state == state:
                self._inbox.put(Asked(attempt.job, what))
        with self._lock:
            attempt.busy = False
            self._wake(attempt)  # an order may have come meanwhile

    def kept(self, job: str) -> None:
        """A program's end is kept for good: what is left of the attempt can go. Not sooner: a daemon that is killed
        before would find nothing, and start it again."""
        with self._lock:
            attempt = self._left.pop(job, None)
            if attempt is not None:
                self._over.append(attempt)

    def clean(self) -> None:
        """Now and then, by a thread that may wait: remove what is left of those whose ends are kept."""
        with self._lock:
            over, self._over = self._over, []
        self._control.sweep()
        for attempt in over:
            if not attempt.launch.image:
                self._clean(attempt)
            elif not self._closing.is_set():  # an engine may take its time
                self._pool.submit(self._clean, attempt)

    def _clean_soon(self) -> None:
        """Clean the last away, if nobody has to wait for that: the next has its folder, which is less work than a new
        one."""
        if self._over[-1].executor.is_clean(self._over[-1].launch):
            self._clean(self._over.pop(), may_wait=False)

    def _clean(self, attempt: Attempt, may_wait: bool = True) -> None:
        with suppress(ExecutorError, TimeoutError):  # it is tidied up at the next start
            is_clean = False
            try:
                attempt.executor.clean(attempt.launch)
                is_clean = True
            finally:
                self._control.close(attempt.run, reuse=is_clean and not attempt.launch.image, may_wait=may_wait)

    # --- one program at a time -------------------------------------------------------------------------------

    def _wake(self, attempt: Attempt) -> None:
        """See to a program, unless somebody does already: whoever does looks again when a step is done."""
        if attempt.busy or self._closing.is_set():
            return
        step = self._next(attempt)
        if step is None:
            return
        attempt.busy = True
        if step != self._start or not self._start_soon(attempt):
            self._pool.submit(self._see_to, attempt, step)

    def _see_to(self, attempt: Attempt, step: Step | None) -> None:
        while step is not None:
            try:
                step(attempt)
                attempt.trouble = ""
            except Exception as error:
                self._failed(attempt, error)
                if attempt.state == "unknown":
                    self._again_later(attempt)
                    return
            with self._lock:
                step = None if self._closing.is_set() else self._next(attempt)
                attempt.busy = step is not None

    def _start_soon(self, attempt: Attempt) -> bool:
        """Begin to start it, if nobody has to wait for that; what goes wrong is told by a start that is waited for."""
        try:
            if self._over and not self._control.has_spare(attempt.launch.cpus):
                self._clean_soon()
            self._ready(attempt)
            attempt.starting = attempt.executor.start_soon(attempt.launch, lambda runs: self._started(attempt, runs))
        except (ExecutorError, OSError):
            attempt.starting = False
        return attempt.starting

    def _started(self, attempt: Attempt, runs: bool) -> None:
        with self._lock:
            attempt.starting = False
            if runs:
                self._becomes(attempt, "running")
            else:  # who was to start it has left, before or after that
                attempt.state = "unknown"
            if self._closing.is_set():
                return
            step = self._next(attempt)
            attempt.busy = step is not None
            if step is not None:
                self._pool.submit(self._see_to, attempt, step)

    def _again_later(self, attempt: Attempt) -> None:
        """Not in the pool: any number of programs whose engine does not answer must not keep others from their turn."""
        with self._lock:
            attempt.busy = False
        _later(self._again, attempt)

    def _again(self, attempt: Attempt) -> None:
        with self._lock:
            self._wake(attempt)

    def _failed(self, attempt: Attempt, error: Exception) -> None:
        """A step did not succeed: what cannot be started has ended, anything else is tried again."""
        if not isinstance(error, ExecutorError | OSError):
            with suppress(OSError):
                traceback.print_exception(error, file=sys.stderr)
        with self._lock:
            attempt.trouble = str(error)
            if attempt.state == "ended":
                return
            if attempt.state == "absent" and not _passes(error):
                self.ended(attempt.run, Exit(why=str(error)))
                return
            attempt.state = "unknown"  # it may have been done by half; what it has, it has until that is known

    def _next(self, attempt: Attempt) -> Step | None:
        """The next step towards what ought to be; None if it is there, or must wait for a processor."""
        if attempt.state == "ended":
            return None
        if attempt.state == "unknown":
            return self._find
        if attempt.wanted == "stop":
            attempt.stopping = True
            return self._never_start if attempt.state == "absent" else self._stop
        if attempt.wanted == "pause":
            return self._pause if attempt.state == "running" else self._settled(attempt, ())
        if attempt.state == "running":
            if attempt.has == attempt.cpus:
                return (
                    self._tell if attempt.told != attempt.cpus else self._settled(attempt, tuple(sorted(attempt.cpus)))
                )
            if not attempt.has & attempt.cpus:
                return self._pause  # nothing to keep: it moves as a whole
            if attempt.has - attempt.cpus:
                return self._shrink
        if not self._may_take(attempt):
            return None
        attempt.has = attempt.has | attempt.cpus
        steps: dict[str, Step] = {"running": self._grow, "paused": self._resume, "absent": self._start}
        return steps[attempt.state]

    def _settled(self, attempt: Attempt, cpus: tuple[int, ...]) -> Step | None:
        """It is there: say so once, and do nothing."""
        if attempt.settled != cpus:
            attempt.settled = cpus
            self._inbox.put(Settled(attempt.job, TASK, tuple(self._cpus.index(cpu) for cpu in cpus)))
        return None

    def _may_take(self, attempt: Attempt) -> bool:
        others = {other.job for other in self._runs.values() if other is not attempt and other.has & attempt.cpus}
        attempt.trouble = f"waits until {', '.join(sorted(others))} let go of its cores" if others else ""
        return not others

    def _let_go(self, attempt: Attempt, cpus: frozenset[int]) -> None:
        """Processors are free: whoever waits for one looks again."""
        attempt.has = attempt.has - cpus
        for other in self._attempts.values():
            if other.cpus & cpus:
                self._wake(other)

    # --- steps --------------------------------------------------------------------------------------------

    def _becomes(
        self, attempt: Attempt, state: Literal["running", "paused"], let_go: frozenset[int] = frozenset()
    ) -> None:
        with self._lock:
            if attempt.state != "ended":  # it may have ended meanwhile
                attempt.state = state
                self._let_go(attempt, let_go)

    def _start(self, attempt: Attempt) -> None:
        self._ready(attempt)
        attempt.executor.start(attempt.launch)
        self._becomes(attempt, "running")

    def _ready(self, attempt: Attempt) -> None:
        if set(attempt.launch.cpus) != attempt.has:
            attempt.launch = msgspec.structs.replace(attempt.launch, cpus=tuple(sorted(attempt.has)))
        self._control_open(attempt)
        self._tell(attempt)

    def _never_start(self, attempt: Attempt) -> None:
        self.ended(attempt.run, Exit(why="it was not started any more"))

    def _stop(self, attempt: Attempt) -> None:
        attempt.executor.stop(attempt.run, attempt.launch.grace_s)
        found = attempt.executor.find(attempt.launch)
        if found.exit is not None:
            self.ended(attempt.run, found.exit)

    def _pause(self, attempt: Attempt) -> None:
        attempt.executor.pause(attempt.run)
        self._becomes(attempt, "paused", attempt.has)

    def _resume(self, attempt: Attempt) -> None:
        attempt.executor.resize(attempt.run, sorted(attempt.has))
        attempt.executor.resume(attempt.run)
        self._becomes(attempt, "running")

    def _shrink(self, attempt: Attempt) -> None:
        """Tell the program first, and give it time to use less: threads without a processor wait for each other."""
        keep = attempt.has & attempt.cpus
        gen = self._control.tell(attempt.run, sorted(keep), ACK_LIMIT_S)
        attempt.told = keep
        self._control.wait(attempt.run, gen, ACK_LIMIT_S)
        attempt.executor.resize(attempt.run, sorted(keep))
        self._becomes(attempt, "running", attempt.has - keep)

    def _grow(self, attempt: Attempt) -> None:
        attempt.executor.resize(attempt.run, sorted(attempt.has))

    def _tell(self, attempt: Attempt) -> None:
        self._control.tell(attempt.run, sorted(attempt.has))
        attempt.told = attempt.has

    def close(self) -> None:
        """Stop carrying out; the programs run on. Nobody waits long for one that takes its time to end."""
        with self._lock:
            self._closing.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
        limit = time.monotonic() + ACK_LIMIT_S
        while time.monotonic() < limit and any(a.busy and not a.starting for a in list(self._attempts.values())):
            time.sleep(0.01)


def _passes(error: Exception) -> bool:
    """Whether what failed may succeed later: there may be room on the disk again, too."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, NotNowError | TimeoutError)


def _later(do: Callable[..., None], *words: object) -> None:
    timer = threading.Timer(_RETRY_S, do, words)
    timer.daemon = True
    timer.start()
