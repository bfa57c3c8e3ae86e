"""Stages as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from dovetail.core.cgroups import CpuShare
from dovetail.core.errors import exit_words
from dovetail.pipeline.hardware import own_devices
from dovetail.pipeline.live.stage import StageSettings

# Not `-m`: nothing of the caller's own script may run again, and the module must not be imported twice.
_COMMAND = "from dovetail.pipeline.live.stage import main; main()"
_GRACE_S = 2.0


class StageEngine(Protocol):
    """Starts and ends the processes of stages, wherever they are."""

    bind: str  # the address on which the coordinator can be reached

    def devices(self) -> dict[str, str]:
        """The devices that can carry a host, and what they are called, as far as that is known here."""
        ...

    def nodes(self, hosts: Mapping[str, str | None]) -> dict[str, str]:
        """Of these hosts, those that have a machine of their own: the one that is named, or is called like the host."""
        ...

    def place(self, hosts: Mapping[str, str | None]) -> None:
        """These hosts will be started next, on the nodes that are named."""
        ...

    def start(self, settings: StageSettings, share: float | None) -> None: ...
    def kill(self, host: str) -> None: ...
    def ended(self) -> dict[str, str]:
        """Processes that are known to be gone, and why."""
        ...

    def stirring(self) -> list[str]:
        """The hosts of which it is known that their processes are there, and not stopped by a signal."""
        ...

    def used_s(self) -> float | None:
        """Processor time of this run on this machine so far; None if it is not on this machine alone."""
        ...

    def why(self, host: str) -> str:
        """Why a process that closed its connection is gone."""
        ...

    def close(self) -> None:
        """Wait a moment for processes that were told to stop, and end the others."""
        ...


class LocalEngine:
    """One process per host of the plan, on the loopback interface."""

    bind = "127.0.0.1"

    def devices(self) -> dict[str, str]:
        return own_devices()

    def nodes(self, hosts: Mapping[str, str | None]) -> dict[str, str]:
        return {}

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._shares: dict[str, CpuShare] = {}
        self._fresh: set[str] = set()  # started since somebody asked who stirs

    @property
    def pids(self) -> dict[str, int]:
        """The processes by host."""
        return {host: process.pid for host, process in self._processes.items()}

    def place(self, hosts: Mapping[str, str | None]) -> None:
        pass  # there is only this machine

    def start(self, settings: StageSettings, share: float | None) -> None:
        process = subprocess.Popen([sys.executable, "-c", _COMMAND], stdin=subprocess.PIPE)
        self._processes[settings.host] = process
        self._fresh.add(settings.host)
        if share is not None:
            self._shares[settings.host] = CpuShare(process.pid, share)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # a process that is gone already is found by `ended`
            process.stdin.write(msgspec.json.encode(settings) + b"\n")

    def kill(self, host: str) -> None:
        process = self._processes[host]
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def ended(self) -> dict[str, str]:
        return {host: exit_words(p.returncode) for host, p in self._processes.items() if p.poll() is not None}

    def stirring(self) -> list[str]:
        fresh, self._fresh = self._fresh, set()
        return [host for host, process in self._processes.items() if host in fresh or stirs(process.pid)]

    def used_s(self) -> float | None:
        ended = os.times()
        living = sum(processor_s(process.pid) for process in self._processes.values())
        return time.process_time() + ended.children_user + ended.children_system + living

    def why(self, host: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            return exit_words(self._processes[host].wait(timeout=1.0))
        return "its connection was closed"

    def close(self) -> None:
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)
        for host in self._processes:
            self.kill(host)
        for share in self._shares.values():
            share.release()


def default_threads(cores: tuple[int, ...], processes: int) -> int:
    """Threads of a process that was given none: one per core of its own, or its part of all."""
    return len(cores) or max(len(os.sched_getaffinity(0)) // max(processes, 1), 1)


def processor_s(pid: int) -> float:
    """Processor time of a process that has not been waited for, as far as the system tells."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            user, system = file.read().rpartition(b")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def stirs(pid: int) -> bool:
    """Whether a process of this machine is there and not stopped, as far as the system tells.

    >>> stirs(os.getpid()) or not os.path.exists("/proc/self/stat")
    True
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in b"TtZXx"
    except OSError:
        return False
