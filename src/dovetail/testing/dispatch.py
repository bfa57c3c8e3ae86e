"""Devices that only sleep: real threads and the real engine, with latencies and rates that one chooses."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep

from msgspec import Struct
from torch import Tensor

from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.devices import NodeDevice


class Emulated(Struct, frozen=True):
    """A device that takes latency + items / rate seconds for a call."""

    name: str
    latency_s: float
    rate: float

    def seconds(self, items: int) -> float:
        return self.latency_s + items / self.rate

    def alone(self, items: int) -> float:
        """Items per second of this device alone on a batch of so many, in one call: its best."""
        return items / self.seconds(items)

    def curve(self, largest: int) -> Curve:
        return Curve.linear(self.latency_s, self.rate, largest)


# Two unlike accelerators and a CPU, as a study of dispatching policies chose them.
THREE = (
    Emulated("fast", 0.004, 200_000),
    Emulated("medium", 0.004, 150_000),
    Emulated("slow", 0.001, 30_000),
)


class Sleeper:
    """A function that doubles its batch, and takes as long for it as its device would."""

    def __init__(self, devices: tuple[Emulated, ...] = THREE) -> None:
        self.emulated = {device.name: device for device in devices}
        self.devices = [NodeDevice(device.name, where="cpu", emulated=True) for device in devices]

    def on(self, device: NodeDevice) -> Callable[[Tensor], Tensor]:
        mine = self.emulated[device.name]

        def call(batch: Tensor) -> Tensor:
            until = perf_counter() + mine.seconds(batch.shape[0])
            result = 2 * batch
            while (left := until - perf_counter()) > 0:
                sleep(left)
            return result

        return call
