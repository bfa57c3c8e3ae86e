"""From what was asked for to what runs: devices with their sizes, the policy, the function on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.dispatch.devices import Device, resolve
from dovetail.dispatch.policy import Policy


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


def policy_of(policy: str | Policy | None, options: Mapping[str, Any] | None, devices: Sequence[Device]) -> Policy:
    """The policy by its name or as it is; fixed sizes have theirs."""
    if policy is None:
        fixed = all(device.size is not None for device in devices)
        policy = "fixed" if fixed else "finish_together"
    if isinstance(policy, str):
        made: Policy = registry.create("dispatch", policy, options)
        return made
    if options:
        raise InputError("options are for a policy by name; this one is made already")
    return policy


def placed_on(function: Any) -> Callable[[Device], Callable[..., Any]]:
    """How to get the function on a device."""
    import torch

    if isinstance(function, torch.nn.Module):
        from dovetail.dispatch.replicas import Replicas

        function = Replicas(function)
    if hasattr(function, "on"):
        placed: Callable[[Device], Callable[..., Any]] = function.on
        return placed
    if not callable(function):
        raise InputError(f"expected a function, a module or an object with on(device), found {type(function).__name__}")
    return partial(_anywhere, function)


def _anywhere(function: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """A plain function is the same on every device. Unlike a lambda, this can be sent to another process."""
    return function
