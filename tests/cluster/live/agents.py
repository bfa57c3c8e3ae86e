"""An executor with agents on this machine, and somebody in the place of the rounds who decides what a test says."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dovetail.cluster.live.checkpoints import JobFolder
from dovetail.cluster.live.executor import AgentExecutor
from dovetail.cluster.live.launch import agent_folder
from dovetail.cluster.live.nodes import ClusterNode, NodeAccelerator
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.wire import LeaseState, NodeTrouble, ProcessEvent, TrainingCommand
from dovetail.core.events import Rows
from tests.processes import is_alive
from tests.waiting import until

PACED = (sys.executable, "-m", "dovetail.testing.cluster.paced", "--rates", "a=50", "--steps", "100000")
SECRET = b"a secret of the tests"
SETTINGS = ClusterSettings(grace=1.0, kill_after=0.25, silence=2.0)  # two seconds to save, on a busy machine


class Cluster:
    """Two nodes, of two accelerators each: numbers 0 and 1, 2 and 3."""

    def __init__(
        self,
        folder: Path,
        round_s: float = 2.0,
        nodes: Sequence[str] = ("left",),
        gpus: bool = False,
        lease_s: float | None = None,
    ) -> None:
        """Leases are extended again and again, by a round or by `lease_s`: so long may a busy machine forget to."""
        self.folder = folder
        self.round_s = round_s
        self._lease_s = round_s if lease_s is None else lease_s
        self.commands: dict[int, TrainingCommand] = {}
        self.rows: list[Rows] = []
        self.said: list[LeaseState | NodeTrouble | ProcessEvent] = []
        self.port = 0
        self.names = tuple(nodes)
        self._gpus = gpus
        self._began = time.monotonic()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._extend)
        self.start()
        self._keeper.start()

    def _extend(self) -> None:
        while not self._over.wait(min(self.round_s, self._lease_s) / 8):
            self.decide()

    def start(self) -> None:
        """The service's side, at its old place."""
        self.executor = AgentExecutor(
            SETTINGS,
            self.round_s,
            self.commands.__getitem__,
            self.rows.append,
            secret=SECRET + str(self.folder).encode(),
            port=self.port,
            watch=lambda message, now: self.said.append(message),
        )
        self.port = self.executor.port
        for i, name in enumerate(self.names):
            devices = tuple(NodeAccelerator("a", place if self._gpus else -1) for place in range(2))
            self.executor.add_node(ClusterNode(name, devices), range(2 * i, 2 * i + 2))

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    # --- what is decided ---

    def job(self, job: int, words: Sequence[str] = PACED, **more: Any) -> JobFolder:
        folder = self.folder / "jobs" / str(job)
        self.commands[job] = TrainingCommand(tuple(words), str(folder), **more)
        return JobFolder(folder)

    def decide(self, *rows: Rows) -> None:
        self.executor.carry(rows, self.now, self.now + self._lease_s)

    def begin(self, job: int, epoch: int, *devices: int, beside: int = -1) -> None:
        self.decide(started(job, epoch, devices, beside))

    # --- what is seen ---

    def seen(self, of: str, job: int) -> list[dict[str, Any]]:
        """What was reported of a job, in order."""
        found = []
        for rows in list(self.rows):
            if rows.of == of:
                for i, each in enumerate(rows.columns["id"]):
                    if each == job:
                        found.append({name: column[i] for name, column in rows.columns.items()})
        return found

    def steps(self, job: int) -> int:
        return max((row["steps"] for row in self.seen("progress", job)), default=0)

    def states(self, job: int, epoch: int) -> list[str]:
        """The states that a lease was seen in, each once."""
        states = [each for each in list(self.said) if isinstance(each, LeaseState)]
        said = [each.state for each in states if (each.job, each.epoch) == (job, epoch)]
        return [state for state, _ in itertools.groupby(said)]

    def events(self, *jobs: int) -> list[str]:
        """What processes of these jobs went through, and when their agent knew of it, in order."""
        found = [each for each in list(self.said) if isinstance(each, ProcessEvent) and each.job in jobs]
        return [f"{each.name} {each.job}.{each.epoch}" for each in sorted(found, key=lambda each: each.at)]

    def is_in(self, state: str, job: int, epoch: int) -> bool:
        return self.states(job, epoch)[-1:] == [state]

    def agent(self, name: str = "left") -> int:
        """The process id of a node's agent."""
        folder = self.home(name)
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
                if b"dovetail.cluster.live.agent" in words and folder.encode() in words:
                    return int(entry.name)
        raise AssertionError(f"no agent of {name}")

    def home(self, name: str = "left") -> str:
        return agent_folder(name, SECRET + str(self.folder).encode())

    def processes(self, job: int, epoch: int, name: str = "left") -> list[int]:
        """The first process of each rank of a lease that lives."""
        found = []
        for path in Path(self.home(name), "runs", f"{job}.{epoch}").glob("*/program"):
            with suppress(OSError, ValueError):
                pid = json.loads(path.read_bytes())["pid"]
                if is_alive(pid):
                    found.append(pid)
        return found

    def close(self) -> None:
        for name in self.names:
            with suppress(AssertionError):
                os.kill(self.agent(name), signal.SIGCONT)
        until(lambda: all(self._is_linked(name) for name in self.names))
        self._over.set()
        self._keeper.join()
        self.executor.close(leave=True)

    def _is_linked(self, name: str) -> bool:
        return name in self.executor._lines


@contextmanager
def cluster(folder: Path, **options: Any) -> Iterator[Cluster]:
    made = Cluster(folder, **options)
    try:
        yield made
    finally:
        made.close()


def started(job: int, epoch: int, devices: Sequence[int], beside: int = -1) -> Rows:
    columns = {"id": [job], "on": [0], "devices": [list(devices)], "epoch": [epoch], "beside": [beside]}
    return Rows("started", columns, True)


def spares(places: dict[int, tuple[int, ...]]) -> Rows:
    """These jobs, and no others, would begin there with their first epoch."""
    columns = {"id": [*places], "devices": [list(each) for each in places.values()], "epoch": [1] * len(places)}
    return Rows("spares", columns, True)


def stopped(job: int) -> Rows:
    return Rows("stopped", {"id": [job], "on": [0], "steps": [0.0]}, True)


def planned(job: int, epoch: int, devices: Sequence[int]) -> Rows:
    on = 0 if devices else -1
    return Rows("planned", {"id": [job], "on": [on], "devices": [list(devices)], "epoch": [epoch]}, True)


def due(what: str) -> Rows:
    return Rows("due", {"what": [what]})
