"""The executors of a service, each made when it is first needed."""

from __future__ import annotations

import threading

from dovetail.host.live.executors import Ended, Paused, ProgramExecutor
from dovetail.host.live.executors.docker import DockerExecutor
from dovetail.host.live.executors.process import ProcessExecutor
from dovetail.host.live.loop_inbox import LoopInbox
from dovetail.host.live.setup import HostSetup


class ExecutorTable:
    """Whoever carries orders out says where ends and pauses are to be reported, before it asks for an executor."""

    def __init__(self, setup: HostSetup, inbox: LoopInbox | None = None) -> None:
        self._setup, self._inbox = setup, inbox
        self._made: dict[bool, ProgramExecutor] = {}
        self._lock = threading.Lock()
        self._ended: Ended = lambda run, outcome: None
        self._paused: Paused = lambda run, paused: None

    def report_to(self, ended: Ended, paused: Paused) -> None:
        self._ended, self._paused = ended, paused

    def get(self, image: str) -> ProgramExecutor:
        """The executor of containers of an image, or of processes if there is none."""
        with self._lock:
            if bool(image) not in self._made:
                self._made[bool(image)] = self._containers() if image else self._processes()
            return self._made[bool(image)]

    def _processes(self) -> ProgramExecutor:
        name = f"dovetail-{self._setup.instance}"
        return ProcessExecutor(self._ended, name=name, groups=self._setup.groups, inbox=self._inbox)

    def _containers(self) -> ProgramExecutor:
        return DockerExecutor(self._ended, self._setup.instance, self._setup.docker or None, self._paused)

    def all(self) -> list[ProgramExecutor]:
        return list(self._made.values())
