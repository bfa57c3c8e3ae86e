"""Devices: those of this machine, what they are called, who else keeps them busy, and which one carries a host."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from dovetail.core.errors import InputError

if TYPE_CHECKING:
    import torch

BUSY = 0.05  # of the time: with less of it, others disturb no measurement that is good to a tenth


class Carrier(Struct, frozen=True):
    """The device of a host, what that is called, and how it came to carry a host of this planned type."""

    planned: str
    device: str
    name: str
    how: Literal["matched", "mapped", "emulated"]

    @property
    def type(self) -> str:
        """What a journal calls the type of the device: the planned one only if it is one."""
        if self.how == "matched":
            return self.planned
        if self.how == "emulated":
            return f"{self.planned}, emulated on {self.device}"
        return f"{self.device}, planned as {self.planned}"

    @property
    def hardware(self) -> str:
        """In words.

        >>> Carrier("t4", "cpu", "AMD EPYC", "emulated").hardware
        'emulated on cpu AMD EPYC'
        """
        return ("emulated on " if self.how == "emulated" else "") + f"{self.device} {self.name}".strip()


def check_device(device: str) -> torch.device:
    """The device by name, or an error that says what is wrong with it."""
    import torch

    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"device {device!r}: expected cpu, cuda or cuda:N") from None
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r}: expected cpu, cuda or cuda:N")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA devices for torch")
    return found


def own_devices() -> dict[str, str]:
    """The devices of this machine that torch can use, and what they are called."""
    import torch

    names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return {device: device_name(device) for device in names}


def device_name(device: str) -> str:
    """What the device is called."""
    if device != "cpu":
        import torch

        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@contextmanager
def placed_on(threads: int | None = None, cores: Sequence[int] = ()) -> Iterator[None]:
    """Run with so many threads and on these cores; afterwards as before."""
    import torch

    before_threads = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise InputError(f"threads: expected 1 or more, found {threads}")
    pinned = None
    if cores:
        if not hasattr(os, "sched_setaffinity"):
            raise InputError("cores: this system cannot pin a process to cores")
        pinned = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, cores)
        except (OSError, ValueError):
            listed = ",".join(map(str, sorted(pinned)))
            raise InputError(f"cores {','.join(map(str, cores))}: expected some of {listed}") from None
    try:
        torch.set_num_threads(threads or (min(len(cores), before_threads) if cores else before_threads))
        yield
    finally:
        torch.set_num_threads(before_threads)
        if pinned is not None:
            os.sched_setaffinity(0, pinned)


class Disturbance:
    """What other programs, and a hypervisor's other guests, take of this process's time from now on."""

    def __init__(self) -> None:
        self._begin_s, self._begin_cpu_s = time.monotonic(), time.thread_time()
        self._waited, self._stolen_s = _waits(), _processor_s()[1]

    def share(self) -> float:
        """Of the time since, how much the thread that waited longest for a core did, or how much was stolen."""
        passed_s = max(time.monotonic() - self._begin_s, 1e-9)
        waited = [now_s - self._waited.get(thread, 0.0) for thread, now_s in _waits().items()]
        if not waited:  # a system that does not tell: this thread's own time, if it only computed
            waited = [passed_s - (time.thread_time() - self._begin_cpu_s)]
        stolen_s = (_processor_s()[1] - self._stolen_s) / (os.cpu_count() or 1)
        return min(max(*waited, stolen_s, 0.0) / passed_s, 1.0)


class OtherPrograms:
    """How much of all cores others use from now on; `own_s` is the processor time of whoever does not count as one."""

    def __init__(self, own_s: float) -> None:
        self._begin_s, self._own_s, self._idle_s = time.monotonic(), own_s, _processor_s()[0]

    def share(self, own_s: float) -> float:
        passed_s = max(time.monotonic() - self._begin_s, 1e-9) * (os.cpu_count() or 1)
        others_s = passed_s - (_processor_s()[0] - self._idle_s) - (own_s - self._own_s)
        return min(max(others_s / passed_s, 0.0), 1.0)


def _waits() -> Mapping[str, float]:
    """Seconds that each thread of this process was ready to run and had no core."""
    found = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[1]) / 1e9
    except OSError:
        return {}
    return found


def _processor_s(stat: str = "/proc/stat") -> tuple[float, float]:
    """Seconds that all cores together were idle, and those that a hypervisor gave to others.

    Busy time is not read: kernels count it by looking once in a while, and processes that are paused by control groups
    begin and stop in step with that. Time without work is measured.
    """
    try:
        with open(stat) as file:
            _, _, _, idle, waiting, _, _, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):  # a system that does not tell: as if nobody else were there
        return time.monotonic() * (os.cpu_count() or 1), 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return (idle + waiting) / ticks, steal / ticks
