"""Schedulers under the names and with the options that their users know; each makes dispatchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.devices import NodeDevice, devices_with
from dovetail.dispatch.policies.base import Policy

if TYPE_CHECKING:
    from dovetail.dispatch.live.dispatcher import Dispatcher

Devices = Sequence[str | NodeDevice]


def _dispatcher(function: Any, devices: list[NodeDevice], policy: str | None, options: dict[str, Any]) -> Dispatcher:
    from dovetail.dispatch.live.dispatcher import Dispatcher

    return Dispatcher(function, devices, policy, **options)


class SimpleScheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """One device: chunks of `sub_batch_size` (0: the whole batch) while what is under way stays within `capacity`."""

    device: str | NodeDevice = "cpu"
    sub_batch_size: int = 0
    capacity: int | None = None
    trace_file: str | None = None

    def resolved(self) -> list[NodeDevice]:
        """The device with its size, if they make sense."""
        return devices_with(self.device, self.sub_batch_size, self.capacity or self.sub_batch_size or None, exist=False)

    def dispatcher(self, function: Any, **options: Any) -> Dispatcher:
        """A dispatcher that works as this scheduler says."""
        return _dispatcher(function, self.resolved(), "fixed", {"trace": self.trace_file, **options})


class StaticHybridScheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """Several devices of this process: each takes chunks of its size up to its capacity, higher priorities first.

    One value stands for all devices. At most one of them is the CPU.
    """

    devices: Devices
    sub_batch_sizes: Sequence[int]
    capacities: Sequence[int] | None = None
    priorities: Sequence[float] | None = None
    trace_file: str | None = None

    def resolved(self) -> list[NodeDevice]:
        """The devices with their sizes, if they make sense."""
        if any(size < 1 for size in self.sub_batch_sizes) or not self.sub_batch_sizes:
            raise InputError(f"sub-batch sizes {self.sub_batch_sizes}: expected at least 1 item each")
        capacities = self.capacities or self.sub_batch_sizes
        return devices_with(self.devices, self.sub_batch_sizes, capacities, self.priorities, exist=False)

    def dispatcher(self, function: Any, **options: Any) -> Dispatcher:
        """A dispatcher that works as this scheduler says."""
        return _dispatcher(function, self.resolved(), "fixed", {"trace": self.trace_file, **options})


class PolicyScheduler(Struct, frozen=True, forbid_unknown_fields=True):
    """Any devices under any policy; sizes that are not given are found by measuring."""

    devices: str | Devices = "cpu"
    policy: str | None = None
    policy_options: dict[str, Any] = {}
    sub_batch_sizes: Sequence[int] | None = None
    capacities: Sequence[int] | None = None
    priorities: Sequence[float] | None = None

    def resolved(self) -> list[NodeDevice]:
        """The devices with what was asked for them, if it makes sense."""
        return devices_with(self.devices, self.sub_batch_sizes, self.capacities, self.priorities, exist=False)

    def dispatcher(self, function: Any, **options: Any) -> Dispatcher:
        """A dispatcher under this policy."""
        return _dispatcher(function, self.resolved(), self.policy, {"options": self.policy_options, **options})


class SharedScheduler:
    """Several tasks, in any threads of this process, share devices: each gets the device time of its weight."""

    def __init__(self, devices: str | Devices = "cpu", policy: str | Policy | None = None) -> None:
        from dovetail.dispatch.live.pool import WorkerPool

        self.pool = WorkerPool(devices)
        self.devices = self.pool.devices
        self.policy = policy

    def dispatcher(self, function: Any, *, weight: float = 1.0, **options: Any) -> Dispatcher:
        """A dispatcher of one task."""
        from dovetail.dispatch.live.dispatcher import Dispatcher

        return Dispatcher(function, policy=self.policy, pool=self.pool, weight=weight, **options)

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> SharedScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
