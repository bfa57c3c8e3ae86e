"""What /proc tells of processes: who they are, who descends from whom, what they use; and acting on whole families."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from dovetail.core.service.shim import start_time
from dovetail.host.live.executors import NotNowError, Usage

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_STOPPED = "Tt"
_STOP_LIMIT_S = 5.0


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    state: str
    parent: int
    cpu_s: float
    memory_mib: float

    @property
    def dead(self) -> bool:
        return self.state in "ZX"


Members = Callable[[], Sequence[Process]]


def read(pid: int) -> Process | None:
    """A process as it is now; None if there is none of that number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # The time of children that were waited for is counted with their parent's.
    ticks = sum(int(word) for word in words[11:15])
    return Process(pid, words[0].decode(), int(words[1]), ticks / _TICKS_PER_S, int(words[21]) * _PAGE_MIB)


def is_same(pid: int, start: int) -> bool:
    """Whether a pid still is the process that began then, and it lives.

    >>> is_same(os.getpid(), start_time(os.getpid())), is_same(os.getpid(), 1)
    (True, False)
    """
    try:
        if start_time(pid) != start:
            return False
    except OSError:
        return False
    found = read(pid)
    return found is not None and not found.dead


def family(ancestor: int) -> list[Process]:
    """The living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    text = file.read(512)
            except OSError:
                continue
            children.setdefault(int(text[text.rindex(b")") + 4 :].split(b" ", 1)[0]), []).append(int(name))
    found: list[int] = []
    look = [ancestor]
    while look:
        below = children.pop(look.pop(), [])
        found += below
        look += below
    return [process for pid in found if (process := read(pid)) is not None and not process.dead]


def use(processes: Iterable[Process], before_s: float = 0.0) -> Usage:
    """What they use, beside so much processor time of those that have ended."""
    listed = list(processes)
    pids, memory = tuple(p.pid for p in listed), sum(p.memory_mib for p in listed)
    return Usage(before_s + sum(p.cpu_s for p in listed), memory, sum(map(swapped_mib, pids)), memory, pids)


def ended_children_s(pid: int) -> float:
    """The processor time of those children that a process has waited for, and of theirs."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
        return (int(words[13]) + int(words[14])) / _TICKS_PER_S
    return 0.0


def swapped_mib(pid: int) -> float:
    """What of a process's memory is on disk."""
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmSwap:"):
                return int(line.split()[1]) / 1024
    return 0.0


def send(processes: Iterable[Process], number: int) -> None:
    _signal((process.pid for process in processes), number)


def kill(pids: Iterable[int]) -> None:
    _signal(pids, signal.SIGKILL)


def kill_marked(name: str, value: str) -> None:
    """Kill all that have this variable in their environment: again until nobody new is found."""
    mark, before = f"\0{name}={value}\0".encode(), set[int]()
    while new := {pid for pid in _pids() if mark in _environment(pid)} - before:
        kill(new)
        before |= new


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> bytes:
    """With a zero before and after each variable; nothing of a process that is gone, or another user's."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return b"\0" + file.read()
    return b""


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(members: Members) -> None:
    """Stop all members: again until two looks find the same ones, all stopped. After one look alone, a child may run
    that one of them had between the listing and its own stop."""
    limit = time.monotonic() + _STOP_LIMIT_S
    before: set[int] | None = None
    while True:
        found = members()
        running = [process for process in found if process.state not in _STOPPED]
        if not running and before is not None and before.issuperset(process.pid for process in found):
            return
        before = None if running else {process.pid for process in found}
        send(running, signal.SIGSTOP)
        if running and time.monotonic() > limit:
            raise NotNowError(f"process {running[0].pid} does not stop within {_STOP_LIMIT_S:g} s")
        time.sleep(0.001)


def are_stopped(processes: Sequence[Process]) -> bool:
    return bool(processes) and all(process.state in _STOPPED for process in processes)


def bound_to(processes: Iterable[Process]) -> frozenset[int]:
    """The processors that any of them may run on."""
    found: set[int] = set()
    for process in processes:
        for thread in threads(process.pid):
            with suppress(ProcessLookupError):
                found |= os.sched_getaffinity(thread)
    return frozenset(found)


def bind(members: Members, cpus: Sequence[int]) -> None:
    """Bind every thread of all members to these processors: again until none had to be moved."""
    wanted = set(cpus)
    moved = True
    while moved:
        moved = False
        for process in members():
            for thread in threads(process.pid):
                with suppress(ProcessLookupError):
                    if os.sched_getaffinity(thread) != wanted:
                        os.sched_setaffinity(thread, wanted)
                        moved = True


def threads(pid: int) -> list[int]:
    """The threads of a process; none of one that is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
