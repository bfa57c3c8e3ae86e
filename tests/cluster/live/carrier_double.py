"""Carries leases out without processes: jobs make steps as time goes by, and save them when their turn is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.cluster.live.nodes import ClusterNode
from dovetail.cluster.live.service_loop import ClusterLoop
from dovetail.cluster.live.wire import LeaseState
from dovetail.cluster.rounding import records
from dovetail.core.events import Rows


class CarrierDouble:
    """A job makes `rate` steps per second on any type. What it has saved is in a file, and outlives the process. Jobs
    that a test names in `broken` fail as soon as they start."""

    def __init__(self, loop: ClusterLoop, rate: float = 2000.0) -> None:
        self._loop, self._rate = loop, rate
        self.broken: dict[str, str] = {}
        self.nodes: dict[str, range] = {}
        self.left: list[str] = []
        self.restored: dict[int, Any] = {}
        self._held: dict[int, tuple[int, float, float]] = {}  # by job: epoch, since when, steps then
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="carrier double")
        self._thread.start()

    def add_node(self, node: ClusterNode, numbers: range) -> None:
        self.nodes[node.name] = numbers

    def lose_node(self, name: str) -> None:
        if name in self.nodes:
            self._loop.tell(records.failed(list(self.nodes[name])))

    def carry(self, rows: Sequence[Rows], now: float, ends_s: float) -> None:
        with self._lock:
            for each in rows:
                if each.of == "stopped":
                    for job in each.columns["id"]:
                        self._stop(int(job))
                elif each.of == "started":
                    for job, epoch in zip(each.columns["id"], each.columns["epoch"], strict=True):
                        self._start(int(job), int(epoch))

    def restore(self, leases: Mapping[int, Any], now: float, ends_s: float, drained: Iterable[int]) -> None:
        with self._lock:
            self.restored = dict(leases)
            for job, lease in leases.items():
                self._start(int(job), lease.epoch)

    def close(self, leave: bool = False) -> None:
        self._closing.set()
        self._thread.join()

    def _file(self, job: int) -> Path:
        return self._loop.folder_of(job) / "steps"

    def saved(self, job: int) -> float:
        return float(self._file(job).read_text()) if self._file(job).exists() else 0.0

    def _start(self, job: int, epoch: int) -> None:
        why = self.broken.get(self._loop.submitted[job].spec.name)
        if why is not None:
            self._loop.tell(records.exited([job], [epoch], [why]))
            return
        self._held[job] = (epoch, time.monotonic(), self.saved(job))

    def _so_far(self, job: int) -> tuple[float, float]:
        """Its steps, and the seconds that they took: exactly its rate, however late this is looked at."""
        _, since, before = self._held[job]
        seconds, total = time.monotonic() - since, self._loop.submitted[job].spec.steps
        if self._rate * seconds >= total - before:
            return total, (total - before) / self._rate
        return before + self._rate * seconds, seconds

    def _stop(self, job: int) -> None:
        if job in self._held:
            steps, _ = self._so_far(job)
            epoch, *_ = self._held.pop(job)
            self._save(job, steps)
            self._loop.tell(records.progress([job], [epoch], [steps], [steps]))

    def _save(self, job: int, steps: float) -> None:
        self._file(job).parent.mkdir(parents=True, exist_ok=True)
        part = self._file(job).with_suffix(".part")
        part.write_text(str(steps))
        part.replace(self._file(job))

    def _work(self) -> None:
        while not self._closing.wait(0.005):
            with self._lock:
                for job in [*self._held]:
                    (steps, seconds), (epoch, _, before) = self._so_far(job), self._held[job]
                    self._loop.watch(LeaseState(job, epoch, "running", int(steps), int(before), seconds), 0.0)
                    if steps >= self._loop.submitted[job].spec.steps:
                        del self._held[job]
                        self._save(job, steps)
                        self._loop.tell(records.progress([job], [epoch], [steps], [steps]), records.completed([job]))
