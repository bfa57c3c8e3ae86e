"""Devices for a simulation: from a file of curves, or from the published ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.core.files.plain import scalar
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


Curves = Source | Sequence[SimDevice] | None  # a file, what stands in its place, or devices


class _CurveEntry(Struct, forbid_unknown_fields=True):
    latency_s: float | None = None
    rate: float | None = None
    points: list[tuple[float, float]] | None = None
    size: int | None = None
    capacity: int | None = None
    priority: float = 1.0


class _Measured(Struct, forbid_unknown_fields=True):
    device: str
    size: float
    seconds: float


class _CurveFile(Struct, forbid_unknown_fields=True):
    devices: dict[str, _CurveEntry]


def load(
    curves: Curves = None, *, model: str | None = None, slower: Mapping[str, float] | None = None
) -> list[SimDevice]:
    """Devices in virtual time: from curves, or from one of NEML2's published models on a CPU and a GPU.

    Curves are a file (YAML or JSON), what stands in it, or a frame or list of measurements with `device`, `size` and
    `seconds`. `slower`: by device, how many times slower it really is than its curve, which policies believe, says.

    >>> [device.name for device in load(model="radret")]
    ['cuda', 'cpu']
    >>> gpu, cpu = load({"devices": {"gpu": {"latency_s": 0.004, "rate": 2e5}, "cpu": {"points": [[100, 0.01]]}}})
    >>> round(gpu.curve.seconds(2000), 6), cpu.curve.seconds(200)
    (0.014, 0.02)
    >>> load([{"device": "cpu", "size": n, "seconds": 0.01 + n / 1e5} for n in (1, 1000)])[0].curve.seconds(1000)
    0.02
    """
    if (curves is None) == (model is None):
        raise InputError("expected either curves or model")
    if model is not None:
        if str(model) not in PUBLISHED:
            raise InputError(f"model {model}: no such model{did_you_mean(str(model), PUBLISHED)}")
        found = [SimDevice(name, PUBLISHED[model][name].curve()) for name in ("cuda", "cpu")]
    elif isinstance(curves, list | tuple) and curves and all(isinstance(each, SimDevice) for each in curves):
        found = list(curves)
    else:
        found = _read(Document.of(curves, "curves"))
    if slower is not None and not isinstance(slower, Mapping):
        raise InputError(f"slower {slower!r}: expected factors by device")
    names = {device.name for device in found}
    slower = {name: scalar(factor) for name, factor in (slower or {}).items()}
    for name, factor in slower.items():
        if name not in names:
            raise InputError(f"slower {name}: no such device{did_you_mean(name, names)}")
        if not isinstance(factor, int | float) or not 0 < factor < inf:
            raise InputError(f"slower {name}={factor}: expected a number above 0")
    return [msgspec.structs.replace(d, slower=float(slower.get(d.name, d.slower))) for d in found]


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


def _read(doc: Document) -> list[SimDevice]:
    if isinstance(doc.data, list):
        points: dict[str, list[tuple[float, float]]] = {}
        for one in doc.convert(doc.data, list[_Measured]):
            points.setdefault(one.device, []).append((one.size, one.seconds))
        content = _CurveFile({name: _CurveEntry(points=found) for name, found in points.items()})
    else:
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
