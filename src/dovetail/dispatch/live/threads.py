"""A thread per device of this process: the worker of the CPU, and CUDA's where there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.worker import Ended, Worker


class HostWorker:
    """Does a chunk where it stands: on the CPU, or on an accelerator that is waited for."""

    late = False

    def __init__(self, device: NodeDevice, threads: int = 0) -> None:
        self.device = device
        self.slots = 1
        self.threads = threads
        self._call: Callable[[Any], Any] = lambda work: work
        self._done: list[Ended] = []
        self._before = 0

    def start(self) -> None:
        if self.threads:
            self._before = torch.get_num_threads()
            torch.set_num_threads(self.threads)

    def begin(self, run: BatchRun) -> None:
        self._call = run.call_on(self.device)

    def launch(self, chunk: Chunk) -> None:
        run: BatchRun = chunk.run
        start, stop = chunk.start, chunk.stop
        result = self._call(run.slice(start, stop))
        if run.claim(chunk):
            run.output.write(start, stop, result)
        self._done.append((chunk, None))

    def collect(self) -> list[Ended]:
        done, self._done = self._done, []
        return done

    def stop(self) -> None:
        if self._before:  # it may have been the thread of the caller
            torch.set_num_threads(self._before)


def make(device: NodeDevice, devices: list[NodeDevice]) -> Worker:
    """The worker for a device of this process."""
    if device.kind == "cuda":
        from dovetail.dispatch.live.cuda import CudaWorker

        return CudaWorker(device)
    return HostWorker(device, threads=_threads(device, devices))


def _threads(device: NodeDevice, devices: list[NodeDevice]) -> int:
    """Threads for the CPU's own kernels: the launchers of the accelerators need a core each."""
    if device.kind != "cpu" or device.threads:
        return device.threads
    accelerators = sum(other.kind != "cpu" for other in devices)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - accelerators) if accelerators else 0
