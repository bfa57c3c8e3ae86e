"""A stand-in for NVIDIA's management library: its GPUs are what the file named by FAKE_GPUS says at each look."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

_MIB = 1 << 20


class NVMLError(Exception):
    """As the library's own."""


def _gpus() -> Any:
    with open(os.environ["FAKE_GPUS"]) as file:
        return json.load(file)


def nvmlInit() -> None:  # noqa: N802  the library's names
    if "FAKE_GPUS" not in os.environ:
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(number: int) -> int:  # noqa: N802
    return number


def nvmlDeviceGetName(handle: int) -> bytes:  # noqa: N802
    return str(_gpus()[handle]["name"]).encode()


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    gpu = _gpus()[handle]
    return SimpleNamespace(total=gpu["mib"] * _MIB, used=sum(gpu.get("processes", {}).values()) * _MIB)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    if "use" not in _gpus()[handle]:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=_gpus()[handle]["use"])


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:  # noqa: N802
    held = _gpus()[handle].get("processes", {})
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=mib * _MIB) for pid, mib in held.items()]
