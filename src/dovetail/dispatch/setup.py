"""Sizes, capacities and priorities, given once for all devices or once for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.core.errors import InputError
from dovetail.dispatch.devices import Device, resolve


def devices_with(
    devices: str | Device | Sequence[str | Device],
    sizes: int | Sequence[int] | None = None,
    capacities: int | Sequence[int] | None = None,
    priorities: float | Sequence[float] | None = None,
    *,
    exist: bool = True,
) -> list[Device]:
    """Devices with what was asked for each of them.

    >>> [device.size for device in devices_with(["cuda", "cpu"], sizes=[23, 17], exist=False)]
    [23, 17]
    """
    found = resolve(devices, exist=False)
    for name, given in (("size", sizes), ("capacity", capacities), ("priority", priorities)):
        if given is not None:
            values = _spread(name, given, len(found))
            found = [msgspec.structs.replace(device, **{name: v}) for device, v in zip(found, values, strict=True)]
    return resolve(found, exist=exist)


def _spread(name: str, given: Any, count: int) -> list[Any]:
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    whole = name != "priority"
    for value in values:
        if not isinstance(value, int if whole else int | float):
            raise InputError(f"{name} {value!r}: expected a {'whole ' * whole}number")
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise InputError(f"expected 1 or {count} values for {name}, one for each device; found {len(values)}")
    return values
