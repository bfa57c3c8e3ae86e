"""A thread per device of this process: the worker of the CPU, and CUDA's where there is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time, thread_time
from typing import Any

from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.inputs.devices import NodeDevice, of_one_cpu
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.input_changes import called_again
from dovetail.dispatch.live.torch_threads import usable_cores, use_torch_threads
from dovetail.dispatch.live.worker import Ended, Worker


class HostWorker:
    """Does a chunk where it stands: on the CPU, or on an accelerator that is waited for."""

    late = False

    def __init__(self, device: NodeDevice, threads: int = 0, clock: Callable[[], float] | None = None) -> None:
        self.device = device
        self.slots = 1
        self.threads = threads
        self._clock = clock  # of the CPU's time that its calls take
        self._call: Callable[[Any], Any] = lambda work: work
        self._touches = True
        self._done: list[Ended] = []
        self._before = 0

    def start(self) -> None:
        if self.threads:
            self._before = use_torch_threads(self.threads)

    def begin(self, run: BatchRun) -> None:
        self._call, self._touches = run.call_on(self.device), run.touches(self.device)

    def launch(self, chunk: Chunk) -> None:
        run: BatchRun = chunk.run
        start, stop = chunk.start, chunk.stop
        again = chunk.again and run.was_touched(chunk)
        if self._touches:
            run.touched.append((start, stop))
        work = run.slice(start, stop)
        cpu_s = self._clock() if self._clock is not None else 0.0
        call = self._call if run.sizes is None else partial(run.sizes.call, self._call, run.source, stop - start)
        result = called_again(call, work, chunk.error) if again else call(work)
        if run.claim(chunk):
            run.output.write(start, stop, result)
        if self._clock is not None:
            chunk.cpu_s = self._clock() - cpu_s
        self._done.append((chunk, None))

    def collect(self) -> list[Ended]:
        done, self._done = self._done, []
        return done

    def stop(self) -> None:
        if self._before:  # it may have been the thread of the caller
            use_torch_threads(self._before)


def make(device: NodeDevice, devices: list[NodeDevice]) -> Worker:
    """The worker for a device of this process."""
    if device.kind == "cuda":
        from dovetail.dispatch.live.cuda import CudaWorker

        return CudaWorker(device)
    clock = None if not of_one_cpu(devices) else process_time if len(devices) == 1 else thread_time
    return HostWorker(device, _threads(device, devices), clock)


def _threads(device: NodeDevice, devices: list[NodeDevice]) -> int:
    """Threads for the CPU's own kernels: the launchers of the accelerators need a core each, and several devices on the
    CPU share the others, or every kernel of one would wait for threads of another."""
    if device.kind != "cpu" or device.threads:
        return device.threads
    shared = sum(other.kind == "cpu" for other in devices)
    return max(1, (usable_cores() - len(devices) + shared) // shared) if len(devices) > 1 else 0
