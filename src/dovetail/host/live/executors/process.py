"""Programs as plain processes: no root needed, and no container engine.

Each has a shim for a parent (shim.py), which outlives the daemon. With control groups, processors and pauses are the
kernel's business; without them every thread is bound, and every process stopped, one by one. Processes that a program
puts into the background belong to it: they are bound, paused and ended with it.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dovetail.core import cgroups
from dovetail.core.service import shim
from dovetail.host import agent
from dovetail.host.live.executors import (
    GRACE_S,
    TOO_MUCH_MEMORY,
    Ended,
    ExecutorError,
    Exit,
    FoundAttempt,
    NotNowError,
    ProgramLaunch,
    Usage,
    proc,
)
from dovetail.host.live.executors.spawner import PIECE, Spawner
from dovetail.host.live.loop_inbox import LoopInbox

_KILL_LIMIT_S = 5.0
_LONGEST_ORDER = shim.MOST // 2  # bytes of what a packet is to hold; the kernel takes somewhat more
_BY_GROUPS: dict[str, Callable[[dict[str, Path]], bool]] = {
    "cpu_quota": lambda parents: cgroups.can_limit(parents, "cpu"),
    "io_weight": lambda parents: cgroups.can_limit(parents, "io"),
}


class _ProcessName(Struct):
    """A process, named for good."""

    pid: int
    start: int
    boot: str


_NOBODY = _ProcessName(0, 0, "")


def _unknown(error: Exception) -> Exit:
    return Exit(why=f"how it ended cannot be found out: {error}")


class _RunningProcess(NamedTuple):
    """An attempt that is followed: its shim, a file that becomes readable when that ends, and its groups. The file is
    the pipe that the shim tells its outcome through, of which `told` has come already; or its pidfd, if another daemon
    has begun it."""

    launch: ProgramLaunch
    shim: int
    line: int
    groups: cgroups.Groups | None
    told: bytes | None = None

    def members(self) -> list[proc.Process]:
        if self.groups is None:
            return proc.family(self.shim)
        return [process for pid in self.groups.processes() if (process := proc.read(pid)) is not None]

    def found(self) -> FoundAttempt:
        cpus = self.groups.cpus() if self.groups else proc.bound_to(self.members())
        return FoundAttempt("paused" if self.paused() else "running", cpus=cpus)

    def paused(self) -> bool:
        return self.groups.frozen() if self.groups else proc.are_stopped(self.members())


class ProcessExecutor:
    """Runs programs as processes; `groups` False does without control groups even where they can be had. Ends are seen
    by whoever takes from `inbox`, or by a thread of its own."""

    def __init__(
        self, ended: Ended, *, name: str = "dovetail", groups: bool = True, inbox: LoopInbox | None = None
    ) -> None:
        self._ended = ended
        self._parents = cgroups.find_parents(name) if groups else None
        self._runs: dict[str, _RunningProcess] = {}
        self._begun: dict[int, float] = {}  # since when those are waited for that were asked for, by their pipes
        self._vacant: list[cgroups.Groups] = []  # of programs that have ended, for others to have
        self._vacated: set[str] = set()  # those programs, until they are cleaned away
        self._spawner = Spawner()
        self._lock = threading.Lock()
        self._files = inbox or LoopInbox()
        self._watcher = None if inbox else threading.Thread(target=self._files.take, name="process ends", daemon=True)
        self.closed = False
        if self._watcher is not None:
            self._watcher.start()

    @property
    def how(self) -> str:
        """What binds and pauses programs here."""
        return "control groups" if self._parents else "affinity and SIGSTOP"

    def reach(self, image: str = "") -> None:
        pass

    def lacks(self, limits: Collection[str]) -> str:
        parents = self._parents
        kept = {limit for limit, can in _BY_GROUPS.items() if parents is not None and can(parents)}
        left = sorted(_BY_GROUPS.keys() & set(limits) - kept)
        why = "no control group can be made here" if parents is None else "the kernel has no controller for it here"
        return f"{left[0]}: {why}" if left else ""

    # --- starting and finding again ---------------------------------------------------------------

    def start(self, launch: ProgramLaunch) -> None:
        if self._known(launch):
            return
        self._spawner.wait_for_room()
        line, groups = self._begin(launch)
        told = self._spawner.wait(line)
        if told:
            self._follow_line(launch, line, groups, told)
            return
        os.close(line)
        if not self._known(launch):
            said: list[str] = []
            with suppress(FileNotFoundError), open(f"{launch.folder}/shim.log", errors="replace") as log:
                said = log.read().strip().splitlines()
            if not said:  # whoever was to start it was ended by others, and nothing of it has run
                raise NotNowError(f"{launch.run} is not started yet: what was to be its parent process has ended")
            raise ExecutorError(f"cannot start {launch.run}: {said[-1]}")

    def start_soon(self, launch: ProgramLaunch, started: Callable[[bool], None]) -> bool:
        line, groups = self._begin(launch)
        self._begun[line] = time.monotonic()

        def hear() -> None:
            try:
                told = os.read(line, PIECE)
            except BlockingIOError:
                return
            del self._begun[line]
            if told:
                self._follow_line(launch, line, groups, told)
                started(True)
                return
            self._files.forget(line)
            os.close(line)
            started(False)

        self._files.watch(line, hear)
        return True

    def replace_stuck(self) -> None:
        for asked_at in list(self._begun.values()):
            self._spawner.replace_stuck(asked_at)

    def _begin(self, launch: ProgramLaunch) -> tuple[int, cgroups.Groups | None]:
        """Ask for the shim of a program; gives the pipe that it will speak through."""
        groups, entries = self._room(launch)
        order = marshal.dumps(msgspec.to_builtins(launch) | {"groups": entries})
        if not os.path.isdir(launch.folder):
            os.makedirs(launch.folder)
        if len(launch.folder) + len(order) >= _LONGEST_ORDER:
            _write(f"{launch.folder}/launch.part", order)
            os.rename(f"{launch.folder}/launch.part", f"{launch.folder}/launch")
            order = b""
        try:
            return self._spawner.ask(launch.folder, order), groups
        except BlockingIOError as error:
            raise NotNowError(f"{launch.run} is not started yet: too many others are being started") from error
        except ConnectionError as error:
            raise NotNowError(f"{launch.run} is not started yet: {error}") from error
        except OSError as error:
            raise ExecutorError(f"cannot start {launch.run}: {error.strerror or error}") from error

    def _follow_line(self, launch: ProgramLaunch, line: int, groups: cgroups.Groups | None, told: bytes) -> None:
        shim_pid, _, more = told.partition(b"\n")
        self._watch_over(_RunningProcess(launch, int(shim_pid), line, groups, more))

    def _room(self, launch: ProgramLaunch) -> tuple[cgroups.Groups | None, tuple[str, ...]]:
        """Control groups for a program, and the files to enter them by: those of one that has ended, or new ones."""
        if self._parents is None:
            return None, ()
        limits = (launch.memory_mib, launch.cpu_quota, launch.io_weight)
        if not any(limits):
            with suppress(IndexError, OSError):  # if they cannot be had, they are left for `close`
                return self._vacant.pop().renewed(launch.run, launch.cpus)
        groups = cgroups.Groups(self._parents, launch.run)
        entries = groups.make(launch.cpus, *limits)
        groups.freeze(False)
        return groups, entries

    def _known(self, launch: ProgramLaunch) -> bool:
        """Whether it was started; if it has ended already, tell so."""
        claim = self._claim(launch)
        if claim is not None and not self._follow(launch, claim):
            self._ended(launch.run, self._outcome(launch))
        return claim is not None

    def _claim(self, launch: ProgramLaunch) -> _ProcessName | None:
        """The shim that has an attempt; None if it was never started. Of a damaged file that cannot be told."""
        try:
            return msgspec.json.decode(_read(f"{launch.folder}/{shim.CLAIM}"), type=_ProcessName)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            return _NOBODY

    def find(self, launch: ProgramLaunch) -> FoundAttempt:
        if (claim := self._claim(launch)) is None:
            return FoundAttempt("absent")
        if self._follow(launch, claim):
            run = self._runs.get(launch.run)
            return run.found() if run else FoundAttempt("running")  # it ends just now, and that is told of
        return FoundAttempt("ended", self._outcome(launch))

    def _follow(self, launch: ProgramLaunch, claim: _ProcessName) -> bool:
        """Follow the shim of an attempt, if it lives and has not told the end."""
        if claim is _NOBODY or claim.boot != shim.boot_id() or os.path.exists(f"{launch.folder}/{shim.EXIT}"):
            return False
        try:
            pidfd = os.pidfd_open(claim.pid)
        except ProcessLookupError:
            return False
        if not proc.is_same(claim.pid, claim.start):  # asked after the pidfd was opened, so it is of this process
            os.close(pidfd)
            return False
        groups = self._groups(launch)
        self._watch_over(_RunningProcess(launch, claim.pid, pidfd, groups if groups and groups.exist() else None))
        return True

    def _watch_over(self, run: _RunningProcess) -> None:
        name = run.launch.run
        with self._lock:
            known = name in self._runs
            if not known:
                self._runs[name] = run
        if known:
            self._files.forget(run.line)
            os.close(run.line)
        else:
            self._files.watch(run.line, lambda: self._over(name))

    def _groups(self, launch: ProgramLaunch) -> cgroups.Groups | None:
        return cgroups.Groups(self._parents, launch.run) if self._parents else None

    # --- ends ---------------------------------------------------------------------------------------

    def _over(self, name: str) -> None:
        """A file of an attempt can be read: its shim tells how it ended, or is gone."""
        with self._lock:
            run = self._runs.get(name)
            if run is None:
                return
            told = run.told
            try:
                if told is None and not _is_over(run.line):
                    return
                if told == b"":
                    told = os.read(run.line, PIECE)
            except BlockingIOError:
                return
            del self._runs[name]
        self._files.forget(run.line)
        os.close(run.line)
        try:
            outcome = self._outcome(run.launch, told or b"")
        except OSError as error:  # nobody asks again, and others end too
            outcome = _unknown(error)
        if told and run.groups and run.groups.renewable:
            self._vacated.add(name)
            self._vacant.append(run.groups)
        self._ended(name, outcome)

    def _outcome(self, launch: ProgramLaunch, told: bytes = b"") -> Exit:
        """How an attempt ended, as far as that can be found out; what the system refuses now may be asked again."""
        try:
            return self._found_outcome(launch, told)
        except (FileNotFoundError, msgspec.DecodeError) as error:  # its folder is gone, or damaged
            return _unknown(error)

    def _found_outcome(self, launch: ProgramLaunch, told: bytes) -> Exit:
        """As its shim has told or written, or if that is gone."""
        folder = launch.folder
        with suppress(FileNotFoundError):
            outcome = msgspec.json.decode(told or _read(f"{folder}/{shim.EXIT}"), type=Exit)
            if outcome.good or not launch.memory_mib:
                return outcome
            lacked = (groups := self._groups(launch)) and groups.lacked_memory()
            return msgspec.structs.replace(outcome, why=TOO_MUCH_MEMORY) if lacked else outcome
        claim = self._claim(launch)
        if claim is None:
            raise FileNotFoundError(f"{folder}/{shim.CLAIM} is gone")
        if claim is not _NOBODY and claim.boot != shim.boot_id():
            return Exit(why="the machine was restarted while it ran")
        with suppress(FileNotFoundError, msgspec.DecodeError):
            program = msgspec.json.decode(_read(f"{folder}/{shim.PROGRAM}"), type=_ProcessName)
            if proc.is_same(program.pid, program.start):
                proc.kill([program.pid, *(process.pid for process in proc.family(program.pid))])
        if (groups := self._groups(launch)) and groups.exist():
            proc.kill(groups.processes())
            groups.freeze(False)
        elif mark := launch.env.get(agent.FOLDER):  # what it left behind descends from it no more
            proc.kill_marked(agent.FOLDER, mark)
        return Exit(why="its parent process was killed, so how it ended is not known; what was left of it was ended")

    # --- changing what runs ---------------------------------------------------------------------------

    def _run(self, name: str) -> _RunningProcess:
        try:
            return self._runs[name]
        except KeyError:
            raise ExecutorError(f"{name} does not run") from None

    def pause(self, run: str) -> None:
        which = self._run(run)
        if which.groups:
            which.groups.freeze(True)
        else:
            proc.stop(which.members)

    def resume(self, run: str) -> None:
        which = self._run(run)
        if which.groups:
            which.groups.freeze(False)
        else:
            proc.send(which.members(), signal.SIGCONT)

    def resize(self, run: str, cpus: Sequence[int]) -> None:
        which = self._run(run)
        if which.groups:
            which.groups.set_cpus(cpus)
        proc.bind(which.members, cpus)  # in a group too: what a thread chose for itself outlasts a change of the group

    def stop(self, run: str, grace_s: float = GRACE_S) -> None:
        which = self._run(run)
        if not which.paused():
            proc.send(which.members(), signal.SIGTERM)
            if self._gone(run, grace_s):
                return
        limit = time.monotonic() + _KILL_LIMIT_S
        while not self._gone(run, 0.05):
            proc.send(which.members(), signal.SIGKILL)
            if which.groups and which.groups.exist():
                which.groups.freeze(False)
            if time.monotonic() > limit:
                left = ", ".join(f"{p.pid} ({p.state})" for p in which.members())
                raise NotNowError(f"it was killed, but the kernel does not let it go yet: processes {left}")

    def _gone(self, run: str, within_s: float) -> bool:
        limit = time.monotonic() + within_s
        while run in self._runs:
            if time.monotonic() > limit:
                return False
            time.sleep(0.002)
        return True

    # --- counting and cleaning up ---------------------------------------------------------------------

    def usage(self, run: str) -> Usage | None:
        which = self._runs.get(run)
        if which is None:
            return None
        before_s = proc.ended_children_s(which.shim)  # first: who ends meanwhile would count twice
        used, groups = proc.use(which.members(), before_s), which.groups
        if groups is None:
            return used
        return msgspec.structs.replace(used, peak_mib=max(groups.peak_mib(), used.memory_mib))

    def clean(self, launch: ProgramLaunch) -> None:
        if launch.run in self._vacated:
            self._vacated.discard(launch.run)
        elif groups := self._groups(launch):
            groups.remove()

    def is_clean(self, launch: ProgramLaunch) -> bool:
        return self._parents is None or launch.run in self._vacated

    def tidy(self, keep: Container[str]) -> None:
        if self._parents:
            cgroups.remove_empty(self._parents, keep)

    def close(self) -> None:
        self.closed = True
        if self._watcher is not None:
            self._files.close()
            self._watcher.join()
        for line in (*(run.line for run in self._runs.values()), *self._begun):
            self._files.forget(line)
            os.close(line)
        self._runs.clear()
        self._begun.clear()
        if self._watcher is not None:
            self._files.release()
        self._spawner.close()
        if self._parents:
            cgroups.remove_empty(self._parents, ())
            cgroups.remove_parents(self._parents)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _is_over(pidfd: int) -> bool:
    """Whether a process has ended."""
    look = select.poll()
    look.register(pidfd, select.POLLIN)
    return bool(look.poll(0))
