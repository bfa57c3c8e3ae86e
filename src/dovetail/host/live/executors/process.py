"""Programs as plain processes: no root needed, and no container engine.

Each has a shim for a parent (shim.py), which outlives the daemon. With control groups, processors and pauses are the
kernel's business; without them every thread is bound, and every process stopped, one by one. Processes that a program
puts into the background belong to it: they are bound, paused and ended with it.
"""

from __future__ import annotations

import marshal
import os
import selectors
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
from dovetail.host.live.executors.spawner import Spawner

_KILL_LIMIT_S = 5.0
_BY_GROUPS: dict[str, Callable[[dict[str, Path]], bool]] = {
    "cpu_quota": lambda parents: cgroups.can_limit(parents, "cpu"),
    "io_weight": lambda parents: cgroups.can_limit(parents, "io"),
}


def _enter(groups: cgroups.Groups, launch: ProgramLaunch) -> tuple[str, ...]:
    return groups.make(launch.cpus, launch.memory_mib, launch.cpu_quota, launch.io_weight)


class _ProcessName(Struct):
    """A process, named for good."""

    pid: int
    start: int
    boot: str


class _RunningProcess(NamedTuple):
    """An attempt that is followed: its shim, a file that becomes readable when the shim ends, and its groups."""

    launch: ProgramLaunch
    shim: int
    pidfd: int
    groups: cgroups.Groups | None

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
    """Runs programs as processes; `groups` False does without control groups even where they can be had."""

    def __init__(self, ended: Ended, *, name: str = "dovetail", groups: bool = True) -> None:
        self._ended = ended
        self._parents = cgroups.find_parents(name) if groups else None
        self._runs: dict[str, _RunningProcess] = {}
        self._spawner = Spawner()
        self._lock = threading.Lock()
        self._selector = selectors.EpollSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self.closed = False
        self._watcher = threading.Thread(target=self._watch, name="process ends", daemon=True)
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
        folder = Path(launch.folder)
        folder.mkdir(parents=True, exist_ok=True)
        groups = self._groups(launch)
        order = msgspec.to_builtins(launch) | {"groups": _enter(groups, launch) if groups else ()}
        if groups:
            groups.freeze(False)
        part = folder / "launch.part"
        part.write_bytes(marshal.dumps(order))
        part.rename(folder / "launch")
        try:
            self._spawner.spawn(launch.folder)
        except OSError as error:
            raise ExecutorError(f"cannot start {launch.run}: {error.strerror or error}") from error
        if not self._known(launch):
            told: list[str] = []
            with suppress(FileNotFoundError):
                told = (folder / "shim.log").read_text(errors="replace").strip().splitlines()
            if not told:  # whoever was to start it was ended by others, and nothing of it has run
                raise NotNowError(f"{launch.run} is not started yet: what was to be its parent process has ended")
            raise ExecutorError(f"cannot start {launch.run}: {told[-1]}")

    def _known(self, launch: ProgramLaunch) -> bool:
        """Whether it was started; if it has ended already, tell so."""
        claim = self._claim(launch)
        if claim is not None and not self._follow(launch, claim):
            self._ended(launch.run, self._outcome(launch))
        return claim is not None

    def _claim(self, launch: ProgramLaunch) -> _ProcessName | None:
        try:
            with open(f"{launch.folder}/claim", "rb") as file:
                return msgspec.json.decode(file.read(), type=_ProcessName)
        except FileNotFoundError:
            return None

    def find(self, launch: ProgramLaunch) -> FoundAttempt:
        if (claim := self._claim(launch)) is None:
            return FoundAttempt("absent")
        if self._follow(launch, claim):
            run = self._runs.get(launch.run)
            return run.found() if run else FoundAttempt("running")  # it ends just now, and that is told of
        return FoundAttempt("ended", self._outcome(launch))

    def _follow(self, launch: ProgramLaunch, claim: _ProcessName) -> bool:
        """Follow the shim of an attempt, if it lives."""
        if claim.boot != shim.boot_id():
            return False
        try:
            pidfd = os.pidfd_open(claim.pid)
        except ProcessLookupError:
            return False
        if not proc.is_same(claim.pid, claim.start):  # asked after the pidfd was opened, so it is of this process
            os.close(pidfd)
            return False
        groups = self._groups(launch)
        with self._lock:
            if launch.run in self._runs:
                os.close(pidfd)
                return True
            self._runs[launch.run] = _RunningProcess(
                launch, claim.pid, pidfd, groups if groups and groups.exist() else None
            )
            self._selector.register(pidfd, selectors.EVENT_READ, launch.run)  # which epoll sees at once
        return True

    def _groups(self, launch: ProgramLaunch) -> cgroups.Groups | None:
        return cgroups.Groups(self._parents, launch.run) if self._parents else None

    # --- ends ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if os.read(self._wake_read, 4096).endswith(b"x"):
                        return
                    continue
                with self._lock:
                    run = self._runs.pop(key.data)
                    self._selector.unregister(run.pidfd)
                os.close(run.pidfd)
                try:
                    outcome = self._outcome(run.launch)
                except OSError as error:  # its folder is gone, or the kernel takes its time: others end too
                    outcome = Exit(why=f"how it ended cannot be found out: {error}")
                self._ended(run.launch.run, outcome)

    def _outcome(self, launch: ProgramLaunch) -> Exit:
        """How an attempt ended whose shim is gone."""
        folder = Path(launch.folder)
        groups = self._groups(launch)
        with suppress(FileNotFoundError):
            outcome = msgspec.json.decode((folder / "exit.json").read_bytes(), type=Exit)
            lacked = launch.memory_mib and not outcome.good and groups and groups.lacked_memory()
            return msgspec.structs.replace(outcome, why=TOO_MUCH_MEMORY) if lacked else outcome
        claim = msgspec.json.decode((folder / "claim").read_bytes(), type=_ProcessName)
        if claim.boot != shim.boot_id():
            return Exit(why="the machine was restarted while it ran")
        with suppress(FileNotFoundError):
            program = msgspec.json.decode((folder / "program").read_bytes(), type=_ProcessName)
            if proc.is_same(program.pid, program.start):
                proc.kill([program.pid, *(process.pid for process in proc.family(program.pid))])
        if groups and groups.exist():
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
        used, groups = proc.use(which.members()), which.groups
        if groups is None:
            return used
        return msgspec.structs.replace(used, cpu_s=groups.cpu_s(), peak_mib=max(groups.peak_mib(), used.memory_mib))

    def clean(self, launch: ProgramLaunch) -> None:
        if groups := self._groups(launch):
            groups.remove()

    def tidy(self, keep: Container[str]) -> None:
        if self._parents:
            cgroups.remove_empty(self._parents, keep)

    def close(self) -> None:
        self.closed = True
        os.write(self._wake_write, b"x")
        self._watcher.join()
        for run in self._runs.values():
            os.close(run.pidfd)
        self._runs.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._spawner.close()
        if self._parents:
            cgroups.remove_empty(self._parents, ())
            cgroups.remove_parents(self._parents)
