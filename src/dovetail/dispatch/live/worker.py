"""What carries chunks out on one device, and the table of back ends that make such workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.core.errors import InputError, did_you_mean
from dovetail.dispatch.inputs.devices import Device
from dovetail.dispatch.scheduler import Chunk

if TYPE_CHECKING:
    from dovetail.dispatch.live.batch_run import BatchRun

BACKENDS = {
    "thread": "dovetail.dispatch.live.worker:make",
    "process": "dovetail.dispatch.live.processes:make",
    "ray": "dovetail.dispatch.live.ray:make",
}
Ended = tuple[Chunk, BaseException | None]


class Worker(Protocol):
    """One device at work, driven by one thread.

    `slots`: chunks it may hold at once. `late`: it may write into an output after the run has ended. One that can be
    lost and come back, such as a process, has `revived` too: it starts it anew if it is gone, and says whether it did.
    """

    slots: int
    late: bool

    def start(self) -> None:
        """Called once, on the thread that drives the worker."""

    def begin(self, run: BatchRun) -> None:
        """Chunks of this run follow, until the next `begin`."""

    def launch(self, chunk: Chunk) -> None:
        """Do the chunk, or begin to. An error means that it failed; DeviceLostError, that the device is gone."""

    def collect(self) -> list[Ended]:
        """What has ended; waits until at least one chunk has, if it holds any."""

    def stop(self) -> None:
        """Called once at the end, on the same thread as `start`."""


class HostWorker:
    """Does a chunk where it stands: on the CPU, or on an accelerator that is waited for."""

    late = False

    def __init__(self, device: Device, threads: int = 0) -> None:
        self.device = device
        self.slots = 1
        self.threads = threads
        self._call: Callable[[Any], Any] = lambda work: work
        self._done: list[Ended] = []
        self._before = 0

    def start(self) -> None:
        import torch

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
        import torch

        if self._before:  # it may have been the thread of the caller
            torch.set_num_threads(self._before)


def make(device: Device, devices: list[Device]) -> Worker:
    """The worker for a device of this process."""
    if device.kind == "cuda":
        from dovetail.dispatch.live.cuda import CudaWorker

        return CudaWorker(device)
    return HostWorker(device, threads=_threads(device, devices))


def _threads(device: Device, devices: list[Device]) -> int:
    """Threads for the CPU's own kernels: the launchers of the accelerators need a core each."""
    import os

    if device.kind != "cpu" or device.threads:
        return device.threads
    accelerators = sum(other.kind != "cpu" for other in devices)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - accelerators) if accelerators else 0


def backend(name: str) -> Callable[..., Worker]:
    """The maker of a back end's workers."""
    if name not in BACKENDS:
        raise InputError(f"no back end is called {name!r}{did_you_mean(name, BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    maker: Callable[..., Worker] = getattr(importlib.import_module(module), attribute)
    return maker
