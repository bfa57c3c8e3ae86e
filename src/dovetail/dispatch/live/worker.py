"""What carries chunks out on one device, and the table of back ends that make such workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from dovetail.core.errors import InputError, did_you_mean
from dovetail.dispatch.chunk import Chunk
from dovetail.dispatch.live.batch_run import BatchRun

BACKENDS = {
    "thread": "dovetail.dispatch.live.threads:make",
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


def backend(name: str) -> Callable[..., Worker]:
    """The maker of a back end's workers."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise InputError(f"no back end is called {name!r}{did_you_mean(str(name), BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    maker: Callable[..., Worker] = getattr(importlib.import_module(module), attribute)
    return maker
