"""Carries the scheduler's orders out: brings every program from what it is to what it ought to be, in threads.

An order only says what ought to be. Each program has at most one thread at work on it, which takes the next step
towards that, again and again until it is there: so an order may come at any moment, also while an earlier one is
carried out, and a daemon that was killed has nothing to remember but what ought to be.

Whoever takes a processor waits until whoever had it has let go of it: two programs never share one.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.events import Change, Failed, Finished, Pause, Settled, Start, Stimulus, Stop
from dovetail.host.executors import Executor, ExecutorError, Exit, Launch, NotNowError
from dovetail.host.live.control import Control

PART = "run"
ACK_LIMIT_S = 2.0
_RETRY_S = 1.0

Wanted = Literal["run", "pause", "stop"]


class Held(Struct, eq=False):
    """One attempt to run a program: what it ought to be, what it is, and the processors that it really has."""

    work: str
    attempt: int
    launch: Launch
    executor: Executor
    grace_s: float
    wanted: Wanted
    cpus: frozenset[int]  # those it ought to have
    has: frozenset[int] = frozenset()
    state: Literal["unknown", "absent", "running", "paused", "ended"] = "absent"
    stop_why: str = ""
    stopping: bool = False
    busy: bool = False
    told: frozenset[int] | None = None  # those that the program was last told of; None if that is not known
    settled: tuple[int, ...] | None = None
    trouble: str = ""  # what keeps it from getting there, in words

    @property
    def run(self) -> str:
        return self.launch.run


class Hands:
    """The live executor of a service. `prepare` makes an attempt from an order; `ended` keeps how it ended."""

    def __init__(
        self,
        put: Callable[[Stimulus], None],
        prepare: Callable[[str, int, Sequence[int]], Held],
        attempt_of: Callable[[str], int],
        ended: Callable[[Held, Exit], None],
        control: Control,
        cpus: Sequence[int],
    ) -> None:
        self._put = put
        self._prepare = prepare
        self._attempt_of = attempt_of
        self._note_end = ended
        self._control = control
        self._cpus = tuple(cpus)  # the processor behind each device
        self._holder: dict[int, Held] = {}  # who really has a processor
        self._lock = threading.RLock()
        self._held: dict[str, Held] = {}
        self._runs: dict[str, Held] = {}
        self._left: dict[str, Held] = {}  # attempts that have ended, until that is kept
        self._pool = ThreadPoolExecutor(max_workers=4 * len(cpus) + 16, thread_name_prefix="hands")
        self._closing = threading.Event()

    def held(self, work: str) -> Held | None:
        return self._held.get(work)

    # --- orders -----------------------------------------------------------------------------------------

    def carry(self, orders: Sequence[Start | Change], now: float) -> None:
        with self._lock:
            for order in orders:
                if type(order) is Start:
                    held = self._prepare(order.job, self._attempt_of(order.job), self._real(order.devices))
                    self._held[order.job] = self._runs[held.run] = held
                elif order.job in self._held:  # if not, it has ended, and that is about to be heard
                    self._want(self._held[order.job], order)
            for order in orders:
                if order.job in self._held:
                    self._wake(self._held[order.job])

    def _want(self, held: Held, order: Start | Change) -> None:
        held.settled = None
        if isinstance(order, Pause):
            held.wanted = "pause"
        elif isinstance(order, Stop):
            held.wanted, held.stop_why = "stop", order.why
        elif not isinstance(order, Start):
            held.wanted, held.cpus = "run", frozenset(self._real(order.devices))

    def _real(self, devices: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._cpus[device] for device in devices)

    def adopt(self, work: str, attempt: int, wanted: Wanted, devices: Sequence[int], stop_why: str) -> None:
        """After a restart: an attempt that ought to be, before `restore` looks for all of them."""
        held = self._prepare(work, attempt, self._real(devices))
        held.wanted, held.stop_why, held.state = wanted, stop_why, "unknown"
        self._held[work] = self._runs[held.run] = held

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """Find everything first, so that nobody takes a processor that somebody still has; then go on."""
        with self._lock:
            for held in list(self._held.values()):
                try:
                    self._find(held)
                except (ExecutorError, OSError) as error:
                    held.trouble = str(error)
                    self._take(held, held.cpus)  # until it is known
            for held in list(self._held.values()):
                self._wake(held)

    def _find(self, held: Held) -> None:
        """Find out what an attempt has come to, and which processors it really has."""
        found = held.executor.find(held.launch)
        if found.exit is not None:
            self.ended(held.run, found.exit)
            return
        self._control_open(held)
        with self._lock:
            if held.state != "ended":  # it may have ended meanwhile
                held.state, held.told = found.state, None
                has = found.cpus if found.state == "running" else frozenset()
                self._take(held, has)
                self._let_go(held, held.has - has)

    def _control_open(self, held: Held) -> None:
        self._control.open(held.run, Path(held.launch.folder) / "control")

    # --- ends -------------------------------------------------------------------------------------------

    def ended(self, run: str, outcome: Exit) -> None:
        """An executor's word that an attempt has ended; said twice, it counts once."""
        with self._lock:
            held = self._runs.get(run)
            if held is None or held.state == "ended":
                return
            self._note_end(held, outcome)
            held.state = "ended"
            del self._runs[run]
            if self._held.get(held.work) is held:
                del self._held[held.work]
            self._let_go(held, held.has)
            if outcome.good and not held.stopping:
                self._put(Finished(held.work, PART))
            else:
                why = f"stopped: {held.stop_why} ({outcome})" if held.stopping else str(outcome)
                self._put(Failed(held.work, PART, why))
            self._left[held.work] = held

    def kept(self, work: str) -> None:
        """A program's end is kept for good: what is left of the attempt can go. Not sooner: a daemon that is killed
        before would find nothing, and start it again."""
        with self._lock:
            held = self._left.pop(work, None)
            if held is not None and not self._closing.is_set():
                self._pool.submit(self._clean, held)

    def _clean(self, held: Held) -> None:
        self._control.close(held.run)
        with suppress(ExecutorError):  # it is tidied up at the next start
            held.executor.clean(held.launch)
            shutil.rmtree(held.launch.folder, ignore_errors=True)

    # --- one program's thread -------------------------------------------------------------------------------

    def _wake(self, held: Held) -> None:
        """See to a program, unless somebody does already: whoever does looks again when a step is done."""
        if not held.busy and held.state != "ended" and not self._closing.is_set():
            held.busy = True
            self._pool.submit(self._see_to, held)

    def _see_to(self, held: Held) -> None:
        while True:
            with self._lock:
                step = None if self._closing.is_set() else self._next(held)
                if step is None:
                    held.busy = False
                    return
            try:
                step(held)
                held.trouble = ""
            except Exception as error:
                self._failed(held, error)
                if held.state == "unknown":
                    self._again_later(held)
                    return

    def _again_later(self, held: Held) -> None:
        """Not in the pool: any number of programs whose engine does not answer must not keep others from their turn."""
        with self._lock:
            held.busy = False
        timer = threading.Timer(_RETRY_S, self._again, [held])
        timer.daemon = True
        timer.start()

    def _again(self, held: Held) -> None:
        with self._lock:
            self._wake(held)

    def _failed(self, held: Held, error: Exception) -> None:
        """A step did not succeed: what cannot be started has ended, anything else is tried again."""
        if not isinstance(error, ExecutorError | OSError):
            with suppress(OSError):
                traceback.print_exception(error, file=sys.stderr)
        with self._lock:
            held.trouble = str(error)
            if held.state == "ended":
                return
            if held.state == "absent" and not isinstance(error, NotNowError):
                self.ended(held.run, Exit(why=str(error)))
                return
            held.state = "unknown"  # it may have been done by half; what it has, it has until that is known

    def _next(self, held: Held) -> Callable[[Held], None] | None:
        """The next step towards what ought to be; None if it is there, or must wait for a processor."""
        if held.state == "ended":
            return None
        if held.state == "unknown":
            return self._find
        if held.wanted == "stop":
            held.stopping = True
            return self._never_start if held.state == "absent" else self._stop
        if held.wanted == "pause":
            return self._pause if held.state == "running" else self._settled(held, ())
        if held.state == "running":
            if held.has == held.cpus:
                return self._tell if held.told != held.cpus else self._settled(held, tuple(sorted(held.cpus)))
            if not held.has & held.cpus:
                return self._pause  # nothing to keep: it moves as a whole
            if held.has - held.cpus:
                return self._shrink
        if not self._may_take(held):
            return None
        self._take(held, held.cpus)
        return {"running": self._grow, "paused": self._resume, "absent": self._start}[held.state]

    def _settled(self, held: Held, cpus: tuple[int, ...]) -> Callable[[Held], None] | None:
        """It is there: say so once, and do nothing."""
        if held.settled != cpus:
            held.settled = cpus
            self._put(Settled(held.work, PART, tuple(self._cpus.index(cpu) for cpu in cpus)))
        return None

    def _may_take(self, held: Held) -> bool:
        others = {self._holder[cpu].work for cpu in held.cpus if self._holder.get(cpu, held) is not held}
        held.trouble = f"waits until {', '.join(sorted(others))} let go of its cores" if others else ""
        return not others

    def _take(self, held: Held, cpus: frozenset[int]) -> None:
        held.has = held.has | cpus
        self._holder |= dict.fromkeys(cpus, held)

    def _let_go(self, held: Held, cpus: frozenset[int]) -> None:
        """Processors are free: whoever waits for one looks again."""
        held.has = held.has - cpus
        for cpu in cpus:
            if self._holder.get(cpu) is held:
                del self._holder[cpu]
        for other in self._held.values():
            if other.cpus & cpus:
                self._wake(other)

    # --- steps --------------------------------------------------------------------------------------------

    def _becomes(self, held: Held, state: Literal["running", "paused"], let_go: frozenset[int] = frozenset()) -> None:
        with self._lock:
            if held.state != "ended":  # it may have ended meanwhile
                held.state = state
                self._let_go(held, let_go)

    def _start(self, held: Held) -> None:
        held.launch = msgspec.structs.replace(held.launch, cpus=tuple(sorted(held.has)))
        self._control_open(held)
        self._tell(held)
        held.executor.start(held.launch)
        self._becomes(held, "running")

    def _never_start(self, held: Held) -> None:
        self.ended(held.run, Exit(why="it was not started any more"))

    def _stop(self, held: Held) -> None:
        held.executor.stop(held.run, held.grace_s)
        found = held.executor.find(held.launch)
        if found.exit is not None:
            self.ended(held.run, found.exit)

    def _pause(self, held: Held) -> None:
        held.executor.pause(held.run)
        self._becomes(held, "paused", held.has)

    def _resume(self, held: Held) -> None:
        held.executor.resize(held.run, sorted(held.has))
        held.executor.resume(held.run)
        self._becomes(held, "running")

    def _shrink(self, held: Held) -> None:
        """Tell the program first, and give it time to use less: threads without a processor wait for each other."""
        keep = held.has & held.cpus
        gen = self._control.tell(held.run, sorted(keep), ACK_LIMIT_S)
        held.told = keep
        self._control.wait(held.run, gen, ACK_LIMIT_S)
        held.executor.resize(held.run, sorted(keep))
        self._becomes(held, "running", held.has - keep)

    def _grow(self, held: Held) -> None:
        held.executor.resize(held.run, sorted(held.has))

    def _tell(self, held: Held) -> None:
        self._control.tell(held.run, sorted(held.has))
        held.told = held.has

    def close(self) -> None:
        """Stop carrying out; the programs run on. Nobody waits long for one that takes its time to end."""
        with self._lock:
            self._closing.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
        limit = time.monotonic() + ACK_LIMIT_S
        while time.monotonic() < limit and any(held.busy for held in list(self._held.values())):
            time.sleep(0.01)
