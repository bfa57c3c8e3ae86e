"""Devices: those of this machine, what they are called, running on some cores, and which one carries a host."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from dovetail.core.errors import InputError

if TYPE_CHECKING:
    import torch


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
