"""The GPUs of this machine, by NVIDIA's management library: which there are, and what is used of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError, MissingExtraError
from dovetail.host.gpus import GpuDevice

_MIB = 1 << 20


class GpuStatus(Struct, frozen=True):
    """A GPU now: `number` is the driver's, `use` a share of the time; `programs` are those that it was given to."""

    number: int
    type: str
    memory_mib: int
    used_mib: float | None = None
    use: float | None = None
    programs: tuple[str, ...] = ()


class GpuUse(Struct, frozen=True):
    """What is used of a GPU, and how much memory each process has there."""

    used_mib: float
    use: float | None
    processes: dict[int, float]


def _library() -> Any:
    """The management library, ready to be asked; raises ImportError without it, its own error without a driver."""
    library: Any = importlib.import_module("pynvml")
    library.nvmlInit()
    return library


def find_gpus(only: Sequence[int] | None = None) -> tuple[GpuDevice, ...]:
    """The GPUs of this machine, or those of these numbers. None if there is no way to ask, unless some are named."""
    try:
        library = _library()
        there = [_device(library, number) for number in range(library.nvmlDeviceGetCount())]
    except ImportError:
        if only:
            raise MissingExtraError("gpu", "pynvml", "using GPUs") from None
        return ()
    except Exception as error:
        if only:
            raise InputError(f"gpus: the driver does not answer: {error}") from error
        return ()
    if only is None:
        return tuple(there)
    if not set(only) <= set(range(len(there))) or len(set(only)) < len(only):
        raise InputError(f"gpus: found {list(only)}, expected some of {list(range(len(there)))}, each once")
    return tuple(there[number] for number in only)


def _device(library: Any, number: int) -> GpuDevice:
    handle = library.nvmlDeviceGetHandleByIndex(number)
    name = library.nvmlDeviceGetName(handle)
    type_ = name.decode() if isinstance(name, bytes) else name
    return GpuDevice(type_, library.nvmlDeviceGetMemoryInfo(handle).total // _MIB, number)


class GpuWatch:
    """Looks at the GPUs of a service."""

    def __init__(self, gpus: Sequence[GpuDevice]) -> None:
        self.gpus = gpus
        self.seen: dict[int, GpuUse] = {}  # by number, as they were last seen
        self._ask: Any = None

    def look(self) -> None:
        """See what is used of each; one that does not answer now keeps what was seen of it."""
        if not self.gpus:
            return
        with suppress(Exception):  # whatever the driver has to say of itself: programs go on
            self._ask = self._ask or _library()
        for gpu in self.gpus if self._ask else ():
            with suppress(Exception):
                self.seen[gpu.number or 0] = self._use(gpu.number or 0)

    def _use(self, number: int) -> GpuUse:
        library = self._ask
        handle = library.nvmlDeviceGetHandleByIndex(number)
        used = library.nvmlDeviceGetMemoryInfo(handle).used / _MIB
        use = None
        with suppress(Exception):  # not every device counts that
            use = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        running = library.nvmlDeviceGetComputeRunningProcesses(handle)
        return GpuUse(used, use, {each.pid: (each.usedGpuMemory or 0) / _MIB for each in running})

    def memory_mib(self, processes: Sequence[int]) -> float:
        """What these processes have on all GPUs."""
        return sum(seen.processes.get(pid, 0.0) for seen in self.seen.values() for pid in processes)

    def status(self, programs: Mapping[int, Sequence[str]]) -> list[GpuStatus]:
        """Each GPU, with the programs on it by number."""
        found = []
        for gpu in self.gpus:
            number = gpu.number or 0
            seen, on = self.seen.get(number), tuple(programs.get(number, ()))
            used, use = (None, None) if seen is None else (seen.used_mib, seen.use)
            found.append(GpuStatus(number, gpu.type, gpu.memory_mib, used, use, on))
        return found
