"""Devices for a simulation: from a file of curves, or from the published ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import Document
from dovetail.dispatch.inputs.curves import PUBLISHED, Curve

_LARGEST = 1 << 20  # items in one call, when a latency and a rate are all that is known
_NEAR = 0.9  # of the peak rate


class SimDevice(Struct, frozen=True):
    """A device in virtual time. `slower`: its real time over what its curve, which the policy believes, says."""

    name: str
    curve: Curve
    slower: float = 1.0
    size: int | None = None
    capacity: int | None = None
    priority: float = 1.0
    fails_after_s: float = inf
    slots: int = 1  # chunks it holds at once; they are done one after the other
    known: bool = True  # whether the policy is given the curve


class _CurveEntry(Struct, forbid_unknown_fields=True):
    latency_s: float | None = None
    rate: float | None = None
    points: list[tuple[float, float]] | None = None
    size: int | None = None
    capacity: int | None = None
    priority: float = 1.0


class _CurveFile(Struct, forbid_unknown_fields=True):
    devices: dict[str, _CurveEntry]


def sim_devices(path: Path | None, model: str | None, slower: Mapping[str, Any] | None = None) -> list[SimDevice]:
    """The devices of a file or of a published model, some of them slower than their curves say.

    >>> [device.name for device in sim_devices(None, "radret")]
    ['cuda', 'cpu']
    """
    if (path is None) == (model is None):
        raise InputError("expected either a file of curves or --model")
    if path is not None:
        found = _read(path)
    else:
        if model not in PUBLISHED:
            raise InputError(f"--model {model}: no such model{did_you_mean(str(model), PUBLISHED)}")
        found = [SimDevice(name, PUBLISHED[model][name].curve()) for name in ("cuda", "cpu")]
    names = {device.name for device in found}
    for name, factor in (slower or {}).items():
        if name not in names:
            raise InputError(f"--slower {name}: no such device{did_you_mean(name, names)}")
        if not isinstance(factor, int | float) or not 0 < factor < inf:
            raise InputError(f"--slower {name}={factor}: expected a number above 0")
    return [msgspec.structs.replace(d, slower=float((slower or {}).get(d.name, 1.0))) for d in found]


def with_size(device: SimDevice, share: int) -> SimDevice:
    """The device with a size, for policies that need one to be given: the best of its curve.

    Where that is more than its share of the batch, as on a curve that never falls, one near the peak will do.

    >>> with_size(SimDevice("fast", Curve.linear(0.004, 200_000, 1 << 20)), share=20_000).size
    7146
    """
    curve, size = device.curve, device.size
    if size is None:
        size = curve.best
        if size > share:
            size = bisect_left(range(1, size), _NEAR * curve.rate, key=lambda n: n / curve.seconds(n)) + 1
    return msgspec.structs.replace(device, size=size)


def _read(path: Path) -> list[SimDevice]:
    doc = Document.read(path)
    content = doc.convert(doc.data, _CurveFile)
    if not content.devices:
        raise doc.error(("devices",), "expected at least one device")
    return [_device(doc, name, entry) for name, entry in content.devices.items()]


def _device(doc: Document, name: str, entry: _CurveEntry) -> SimDevice:
    place = ("devices", name)
    if entry.points is not None:
        if entry.latency_s is not None or entry.rate is not None:
            raise doc.error(place, "expected either points, or latency_s and rate; found both")
        if not entry.points or any(not (size >= 1 and 0 < seconds < inf) for size, seconds in entry.points):
            raise doc.error((*place, "points"), "expected [size, seconds] pairs with size >= 1 and seconds > 0")
        curve = Curve(entry.points)
    else:
        if entry.latency_s is None or entry.rate is None:
            raise doc.error(place, "expected latency_s and rate, or points")
        if not (0 <= entry.latency_s < inf and 0 < entry.rate < inf):
            raise doc.error(place, f"expected latency_s >= 0 and rate > 0, found {entry.latency_s} and {entry.rate}")
        curve = Curve.linear(entry.latency_s, entry.rate, _LARGEST)
    if entry.size is not None and entry.size < 1:
        raise doc.error((*place, "size"), f"expected at least 1 item, found {entry.size}")
    if entry.capacity is not None and entry.capacity < (entry.size or 1):
        raise doc.error((*place, "capacity"), f"{entry.capacity} is below the size; no chunk could ever be placed")
    return SimDevice(name, curve, size=entry.size, capacity=entry.capacity, priority=entry.priority)
