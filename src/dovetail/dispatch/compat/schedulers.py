"""Schedulers under the names and with the options that their users know; each makes dispatchers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.devices import NodeDevice, devices_with
from dovetail.dispatch.live.dispatcher import Dispatcher
from dovetail.dispatch.live.pool import WorkerPool
from dovetail.dispatch.policies.base import Policy


class SimpleScheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """One device: chunks of `sub_batch_size` (0: the whole batch) while what is under way stays within `capacity`."""

    device: str = "cpu"
    sub_batch_size: int = 0
    capacity: int | None = None
    trace_file: str | None = None

    @property
    def devices(self) -> list[NodeDevice]:
        return devices_with(self.device, self.sub_batch_size, self.capacity or self.sub_batch_size or None)

    @property
    def policy(self) -> str:
        return "fixed"

    def dispatcher(self, function: Any, **options: Any) -> Dispatcher:
        """A dispatcher that works as this scheduler says."""
        return _dispatcher(self, function, options)


class StaticHybridScheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """Several devices of this process: each takes chunks of its size up to its capacity, higher priorities first.

    One value stands for all devices. At most one of them is the CPU.
    """

    devices_given: list[str]
    sub_batch_sizes: list[int]
    capacities: list[int] | None = None
    priorities: list[float] | None = None
    trace_file: str | None = None

    @property
    def devices(self) -> list[NodeDevice]:
        if any(size < 1 for size in self.sub_batch_sizes) or not self.sub_batch_sizes:
            raise InputError(f"sub-batch sizes {self.sub_batch_sizes}: expected at least 1 item each")
        return devices_with(
            self.devices_given, self.sub_batch_sizes, self.capacities or self.sub_batch_sizes, self.priorities
        )

    @property
    def policy(self) -> str:
        return "fixed"

    def dispatcher(self, function: Any, **options: Any) -> Dispatcher:
        """A dispatcher that works as this scheduler says."""
        return _dispatcher(self, function, options)


class SharedScheduler:
    """Several tasks, in any threads of this process, share devices: each gets the device time of its weight."""

    def __init__(self, devices: str | list[str | NodeDevice] = "cpu", policy: str | Policy | None = None) -> None:
        self.pool = WorkerPool(devices)
        self.devices = self.pool.devices
        self.policy = policy

    def dispatcher(self, function: Any, *, weight: float = 1.0, **options: Any) -> Dispatcher:
        """A dispatcher of one task."""
        return Dispatcher(function, policy=self.policy, pool=self.pool, weight=weight, **options)

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> SharedScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dispatcher(
    scheduler: SimpleScheduler | StaticHybridScheduler, function: Any, options: dict[str, Any]
) -> Dispatcher:
    return Dispatcher(function, scheduler.devices, scheduler.policy, **{"trace": scheduler.trace_file, **options})
