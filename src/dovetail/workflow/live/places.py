"""The pool that an engine's GPUs make: what a policy sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.resources import Device, DeviceType, Pool
from dovetail.workflow.live.protocol import GpuPlace


def pool_of(places: Sequence[GpuPlace], types: Mapping[str, DeviceType]) -> Pool:
    """GPUs of one host are neighbours, and share its memory; a model never spans two hosts.

    >>> pool = pool_of([GpuPlace("l4", "a"), GpuPlace("l4", "b"), GpuPlace("l4", "b")], {"l4": DeviceType("l4", 24)})
    >>> [device.host for device in pool.devices], pool.windows(2)
    ([0, 1, 1], ((1, 2),))
    """
    hosts = host_numbers(places)
    devices = tuple(Device(i, place.type, hosts[place.host]) for i, place in enumerate(places))
    return Pool(devices, types_of(places, types), within_hosts=True)


def host_numbers(places: Sequence[GpuPlace]) -> dict[str, int]:
    """Hosts in the order in which they came."""
    return {host: i for i, host in enumerate(dict.fromkeys(place.host for place in places))}


def types_of(places: Sequence[GpuPlace], types: Mapping[str, DeviceType]) -> dict[str, DeviceType]:
    """As they are described, else as they are."""
    return {place.type: types.get(place.type) or DeviceType(place.type, place.memory_mib) for place in places}
