"""Measure a function: each device alone until its sizes are known, and all of them together under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from dovetail.core.rates import Rate, RateTable
from dovetail.dispatch.devices import Device
from dovetail.dispatch.dispatcher import Dispatcher
from dovetail.dispatch.known import hardware_name

_RUNS = 12  # until sizes are settled; more are needed only when the batch is small


class Alone(Struct, frozen=True):
    """One device by itself: its best size, items per second there, and the curve that was measured."""

    device: str
    hardware: str
    size: int
    rate: float
    latency_s: float
    points: list[tuple[float, float]]
    settled: bool


class Together(Struct, frozen=True):
    """All devices under one policy. `efficiency`: items per second over the sum of the devices alone."""

    policy: str
    rate: float
    efficiency: float
    items: dict[str, int]


def tune(function: Any, batch: Any, device: Device, dim: int = 0, cache: bool | Path = True) -> Alone:
    """Run the batch on one device until the best size is known; the chunks are real work."""
    with Dispatcher(function, [device], "finish_together", dim=dim, cache=cache) as dispatcher:
        for _ in range(_RUNS):
            dispatcher.attempt(batch).unwrap()
            (state,) = dispatcher.known.latest()
            if state.settled:
                break
        best = max(dispatcher.attempt(batch).report.rate for _ in range(3))
        (state,) = dispatcher.known.latest()
        points = state.curve.points if state.curve is not None else []
        latency_s = points[0][1] if points else 0.0
        return Alone(device.name, hardware_name(device), state.best, best, latency_s, points, state.settled)


def together(
    function: Any,
    batch: Any,
    devices: Sequence[Device],
    policy: str,
    alone: Sequence[Alone],
    *,
    repeats: int = 5,
    dim: int = 0,
    cache: bool | Path = True,
) -> Together:
    """Run the batch on all devices: once or twice to warm up, then the median of some runs."""
    with Dispatcher(function, devices, policy, dim=dim, cache=cache) as dispatcher:
        for _ in range(2):
            dispatcher.attempt(batch).unwrap()
        reports = []
        for _ in range(repeats):
            outcome = dispatcher.attempt(batch)
            outcome.unwrap()
            reports.append(outcome.report)
    rate = median(report.rate for report in reports)
    items = {device.name: device.items for device in reports[-1].devices}
    return Together(policy, rate, rate / sum(each.rate for each in alone), items)


def rates_of(kind: str, measured: Sequence[Alone]) -> RateTable:
    """The table other levels read: each device's rate relative to the first one's.

    >>> slow, fast = (Alone(name, "", 8, rate, 0.1, [], True) for name, rate in (("cpu", 10.0), ("cuda:0", 40.0)))
    >>> rates_of("newton", [slow, fast]).rate("newton", "cuda:0")
    4.0
    """
    reference = measured[0].rate
    return RateTable([Rate(kind, each.device, each.rate / reference, source="measured") for each in measured])
