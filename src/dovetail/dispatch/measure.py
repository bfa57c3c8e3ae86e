"""Measure a function: each device alone until its sizes are known, and all of them together under a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dovetail.core.rates import Rate, RateTable
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.dispatcher import Dispatcher
from dovetail.dispatch.live.tuning_cache import hardware_name
from dovetail.dispatch.metrics import BatchReport

_WARM = 2
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
    """All devices together. `efficiency`: items per second over the sum of the devices alone."""

    policy: str
    rate: float
    efficiency: float
    items: dict[str, int]
    report: BatchReport


def tune(
    function: Any, batch: Any, device: NodeDevice, dim: int = 0, cache: bool | Path = True, backend: str = "thread"
) -> Alone:
    """Run the batch on one device until the best size is known; the chunks are real work."""
    with Dispatcher(function, [device], "finish_together", dim=dim, cache=cache, backend=backend) as dispatcher:
        for _ in range(_RUNS):
            dispatcher.attempt(batch).unwrap()
            (state,) = dispatcher.tuning.latest()
            if state.settled:
                break
        best = max(dispatcher.attempt(batch).report.rate for _ in range(3))
        (state,) = dispatcher.tuning.latest()
        points = state.curve.points if state.curve is not None else []
        latency_s = points[0][1] if points else 0.0
        return Alone(device.name, hardware_name(device), state.best, best, latency_s, points, state.settled)


class Contender(NamedTuple):
    """A dispatcher to be measured, what it is called in the table, and its back end."""

    name: str
    dispatcher: Dispatcher
    backend: str = "thread"


def bench(
    function: Any,
    batch: Any,
    contenders: Sequence[Contender],
    repeats: int = 5,
    *,
    journal: Path | None = None,
    done: Callable[[float], None] = lambda count: None,
) -> tuple[list[Alone], list[Together]]:
    """Each device of the first contender alone, then every contender; `done` is called with how many are measured.

    With `journal`, a record of the last contender's median run is left there.
    """
    _, first, backend = contenders[0]
    alone, runs = [], []
    for device in first.devices:
        plain = NodeDevice(device.name, device.place, slots=device.slots, threads=device.threads)
        alone.append(tune(function, batch, plain, first.dim, backend=backend))
        done(len(alone))
    for name, dispatcher, _ in contenders:
        runs.append(together(dispatcher, batch, name, alone, repeats, journal))
        done(len(alone) + len(runs))
    return alone, runs


def together(
    dispatcher: Dispatcher,
    batch: Any,
    name: str,
    alone: Sequence[Alone],
    repeats: int = 5,
    journal: Path | None = None,
) -> Together:
    """Run the batch on all devices of a dispatcher: twice to warm up, then the median of some runs and its journal."""
    for _ in range(_WARM):
        dispatcher.attempt(batch).unwrap()
    reports = []
    with TemporaryDirectory(dir=journal.parent if journal is not None else None) as folder:
        for i in range(repeats):
            if journal is not None:
                dispatcher.journal = Path(folder) / str(i)
            outcome = dispatcher.attempt(batch)
            outcome.unwrap()
            reports.append(outcome.report)
        median = sorted(range(repeats), key=lambda i: reports[i].rate)[repeats // 2]
        if journal is not None:
            (Path(folder) / str(median)).replace(journal)
    report = reports[median]
    items = {device.name: device.items for device in report.devices}
    return Together(name, report.rate, report.rate / sum(each.rate for each in alone), items, report)


UNIT = "items/s"


def rates_of(kind: str, measured: Sequence[Alone], types: Sequence[str] | None = None) -> RateTable:
    """The table other levels read, under the names of the devices' types: items per second, and relative to the first.

    >>> slow, fast = (Alone(name, "", 8, rate, 0.1, [], True) for name, rate in (("cpu", 10.0), ("cuda:0", 40.0)))
    >>> table = rates_of("newton", [slow, fast])
    >>> table.rate("newton", "cuda:0"), table.per_s("newton", "cuda:0", "items/s")
    (4.0, 40.0)
    """
    reference = measured[0].rate
    names = types or [each.device for each in measured]
    rates = []
    for name, each in zip(names, measured, strict=True):
        rates.append(Rate(kind, name, each.rate / reference, source="measured"))
        rates.append(Rate(kind, name, each.rate, source="measured", unit=UNIT))
    return RateTable(rates)


def curve_file(measured: Sequence[Alone]) -> bytes:
    """The measured curves as a simulation reads them."""
    devices = {each.device: {"points": each.points} for each in measured}
    return msgspec.json.format(msgspec.json.encode({"devices": devices})) + b"\n"
