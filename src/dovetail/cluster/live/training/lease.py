"""How long a training process may go on, and what it tells of itself: what iterator and callbacks have in common."""

from __future__ import annotations

import atexit
import functools
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dovetail.cluster.live.training.process_line import AgentLostError, ProcessLine
from dovetail.core.errors import DovetailError

RENEW_AT = 0.75  # of the newly granted part of a lease, unless the environment says otherwise
_PROGRESS_EVERY = 0.1  # of a lease
_EXTENSION = 0.05  # of a lease: less than that is the clock's
_SHORTEST_REPORT_S, _LONGEST_REPORT_S = 0.1, 10.0
_AGREE_EVERY = 10  # steps
_UNHEARD = 10  # an agent that is not there is left alone for so many reports
_SHORTEST_ANSWER_S, _LONGEST_ANSWER_S = 0.2, 5.0
_COMMIT_S = 600.0  # to copy a checkpoint takes its time
_REFUSED_S = 0.05
_ORPHAN_S = 3600.0

_forking = threading.local()  # the signals that a thread held back before it forked


class CheckpointRefusedError(DovetailError):
    """What was saved is not the job's checkpoint: the lease was another's by then, or the disk is full."""


class TrainingLease:
    """Count `steps`, and ask `go_on()` before each; when it says no, save, `commit()` and leave. When `save_due` is
    true, save and `commit()` too: what is not committed is lost if the process is killed. It is once for each extension
    of the lease, and before the end if that is more than a round after the last time: no more than that is ever lost.

    Without an agent (no DOVETAIL_AGENT in the environment) nothing ends it but the loop itself, and SIGTERM: a process
    that is told to terminate stops at its next step.
    """

    def __init__(self, line: ProcessLine | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        imported_at = time.time()
        self._line = line or ProcessLine.of(os.environ)
        self.rank = self._line.rank if self._line else int(os.environ.get("RANK", "0"))
        self.width = int(os.environ.get("DOVETAIL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1")
        self._process = os.getpid()
        self.steps = 0  # of the job, in all its leases
        self.seconds = 0.0  # of training in this process, from its first step on
        self.done = self.save_due = False
        self.total_steps: int | None = None
        self.ends_at = math.inf
        self.stop_steps: int | None = None
        self._clock = clock
        self._renew_part = float(os.environ.get("DOVETAIL_RENEW_AT", RENEW_AT))
        self._renew_at = math.inf
        self._first_s = 0.0  # how long the first lease was
        self._round_s = 0.0  # the most that was granted at once
        self._saved_at: float | None = None
        self._save_s = 0.0  # how long it took to save, the last time
        self._last = False
        self._first_at: float | None = None
        self._before_at = 0.0
        self._step_s: deque[float] = deque(maxlen=5)
        self._told_at = 0.0
        self._report_s = 0.0
        self._told_to_stop = self._asked_to_stop = self._finished = self._completion_told = self._left = False
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
            _guard_forks()
        if self._line is not None:
            first = self._line.hello()  # waits until its turn has come
            self.steps = first.get("done", 0)
            self.ends_at = clock()
            self._take(first, self.ends_at)
            self._first_s = first["seconds"]
            self._report_s = min(max(_PROGRESS_EVERY * self._first_s, _SHORTEST_REPORT_S), _LONGEST_REPORT_S)
            atexit.register(self._leave)
            self.happened("import", imported_at)

    @property
    def left_s(self) -> float:
        return self.ends_at - self._clock()

    @property
    def beside(self) -> str:
        """The model of the job that has the same accelerators at the moment, if there is one."""
        told = self._line.beside if self._line is not None else None
        return os.environ.get("DOVETAIL_BESIDE", "") if told is None else told

    def go_on(self) -> bool:
        """Whether another step may begin. None is begun that would end after the lease, if it takes as long as the last
        few did; of several ranks all stop before the same one."""
        if self.done:
            return False
        now = self._clock()
        self._count(now)
        self._finished = self.total_steps is not None and self.steps >= self.total_steps
        if not self._finished and self._together:
            self._agree(now)
        elif not self._finished:
            if now >= self._renew_at:
                self.renew(now)
            if self._is_over(now) and not self._last and not self._told_to_stop:
                self.renew(now)  # it may have been extended since
        self.done = self._finished or self._is_over(now)
        if self._line is not None and (self.done or now - self._told_at >= self._report_s):
            sent = self._line.tell("progress", steps=self.steps, seconds=self.seconds)
            self._told_at = now if sent else now + _UNHEARD * self._report_s
        return not self.done

    @property
    def _together(self) -> bool:
        """Whether others have to stop at the same step."""
        return self.width > 1 and self._line is not None

    def _agree(self, now: float) -> None:
        """None of several ranks stops alone: its agent says where they all do, to whoever asks first at the end, and
        then to the others unasked. Who gets no answer waits for it, until it is ended by whoever started it."""
        assert self._line is not None
        self._line.listen()
        self.stop_steps = self._line.stop
        over = self.stop_steps is None and self._is_over(now)
        if over or now >= self._renew_at or (self._told_to_stop and not self._asked_to_stop):
            while not self.renew(now) and over:
                now = self._clock()
                if now > self.ends_at + _ORPHAN_S:
                    raise AgentLostError("nobody answers where its agent was, or ends it")

    def all_save(self) -> bool:
        """Whether every rank is to save now: to be asked by all of them, after the same steps. They agree on it every
        few steps, by torch.distributed."""
        distributed = torch_distributed()
        if self.width == 1 or distributed is None:
            return self.save_due and self.width == 1
        if self.steps % _AGREE_EVERY:
            return False
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        due = sys.modules["torch"].tensor([int(self.save_due)], device=device)
        distributed.all_reduce(due, op=distributed.ReduceOp.MAX)
        return bool(due.item())

    def complete(self) -> None:
        """All of the job's work is done. It is told when the last checkpoint is safe, or the process ends well."""
        self.done = self._finished = True

    def commit(self) -> None:
        """What lies in the checkpoint folder is a whole checkpoint of the steps so far; it becomes the job's, or else
        CheckpointRefusedError is raised. Rank 0 speaks for all."""
        if self._line is None or self.rank != 0:
            return
        last = self.done and not self._finished  # when all is done, there may be more to save than once
        answer: dict[str, Any] | None = {"ok": False, "why": "one was, after the end of the lease"}
        if not self._left:
            answer = self._line.ask("commit", _COMMIT_S, steps=self.steps, last=last)
        if answer is None or not answer.get("ok", True):
            why = "the agent does not answer" if answer is None else answer.get("why", "no reason was given")
            raise CheckpointRefusedError(f"the checkpoint of step {self.steps} was not taken: {why}")
        self._saved_at = self._clock()
        self._save_s = self._saved_at - self._before_at
        self._left, self.save_due = last, False
        if self._finished:
            self._tell_completion()

    def happened(self, name: str, at: float | None = None) -> None:
        """For the table of overheads, by the clock on the wall."""
        if self._line is not None:
            self._line.tell("event", name=name, at=time.time() if at is None else at)

    def close(self) -> None:
        """Nothing more is asked of the agent, or told."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _terminate(self, *_: Any) -> None:
        """The first time; who says so twice means it."""
        if self._told_to_stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self._told_to_stop = True

    def _count(self, now: float) -> None:
        if self._first_at is None:
            self._first_at = self._saved_at = now
        else:
            if not self._step_s:
                self.happened("first_step")
                self._told_at = -math.inf  # where the steps to come are counted from
            self._step_s.append(now - self._before_at)
            self.seconds = now - self._first_at
        self._before_at = now

    def _is_over(self, now: float) -> bool:
        if self._together and self.stop_steps is not None:
            return self.steps >= self.stop_steps
        if self._told_to_stop or (self.stop_steps is not None and self.steps >= self.stop_steps):
            return True
        step_s = sorted(self._step_s)[len(self._step_s) // 2] if self._step_s and self.width == 1 else 0.0
        return now >= self.ends_at or now + step_s > self.ends_at

    def renew(self, now: float) -> bool:
        """Ask for more time; whether there was an answer."""
        assert self._line is not None  # else it would have no end
        within_s = min(max(self.ends_at - now, _SHORTEST_ANSWER_S), _LONGEST_ANSWER_S)
        stops = self._told_to_stop
        answer = self._line.ask("renew", within_s, steps=self.steps, seconds=self.seconds, stop=stops)
        self._renew_at = now + max(self.ends_at - now, 0.0) / 2  # if there is no answer
        if answer is None or "seconds" not in answer:
            if answer is not None:  # a refusal comes at once, and whoever waits asks again
                time.sleep(_REFUSED_S)
            return False
        self._asked_to_stop = stops
        self._renew_at = math.inf  # once more at the end, unless there is more time
        self._take(answer, now)
        return True

    def _take(self, lease: dict[str, Any], now: float) -> None:
        ends_at = now + lease["seconds"]
        more_s = ends_at - self.ends_at
        self._last = lease.get("last", False)
        self._round_s = max(self._round_s, lease["seconds"])
        saves = self._ends_long_after_saving(ends_at, now)
        if more_s > _EXTENSION * self._first_s and not self._last:
            self._renew_at = self.ends_at + self._renew_part * more_s
            saves = True
        self.save_due |= saves and self.rank == 0 and self._first_s > 0
        self.ends_at = ends_at
        self.stop_steps = lease.get("steps")
        self.total_steps = lease.get("total_steps", self.total_steps)

    def _ends_long_after_saving(self, ends_at: float, now: float) -> bool:
        """Whether a kill at the end would cost more than a round of work, and there is time to save before that."""
        return (
            self._saved_at is not None and ends_at - self._saved_at > self._round_s and ends_at - now > 2 * self._save_s
        )

    def _tell_completion(self) -> None:
        if self._line is not None and self.rank == 0 and not self._completion_told:
            self._completion_told = self._line.ask("complete", _LONGEST_ANSWER_S, steps=self.steps) is not None

    def _leave(self) -> None:
        if os.getpid() == self._process and self._finished and getattr(sys, "last_value", None) is None:
            self._tell_completion()


def torch_distributed() -> Any | None:
    """torch.distributed, if the program uses it."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


@functools.cache  # a second guard would take the first one's mask for the program's own, and SIGTERM stay blocked
def _guard_forks() -> None:
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    """What a child is told while it still has this process's handler would be lost: it waits."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    """Processes that the program forks end at once: who ends a pool of them waits for it."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(getattr(handler, "__self__", None), TrainingLease):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()
