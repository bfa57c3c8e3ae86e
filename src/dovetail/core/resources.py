"""Typed capacity: device types, devices, hosts, and the pool that work is placed on. Amounts are integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean

_MOST_DEVICES = 1 << 20


class DeviceType(Struct, frozen=True, omit_defaults=True):
    """`speed` is relative to the reference device; `memory_mib` None means that memory is not modelled."""

    name: str
    memory_mib: int | None = None
    speed: float = 1.0


class Device(Struct, frozen=True, omit_defaults=True):
    id: int
    type: str
    host: int = 0


class Pool(Struct, frozen=True, omit_defaults=True):
    """Devices numbered from 0, with their types. Neighbouring ids are neighbours in the machine; with `within_hosts`
    nothing can span two hosts.

    >>> types = {"a100": DeviceType("a100"), "l4": DeviceType("l4", speed=0.4)}
    >>> pool = Pool.parse("a100:2,l4:1", types)
    >>> [d.type for d in pool.devices]
    ['a100', 'a100', 'l4']
    >>> pool.windows(2, aligned=False)
    ((0, 1), (1, 2))
    >>> devices = [Device(i, "l4", host=i // 3) for i in range(6)]
    >>> Pool(tuple(devices), types).windows(2), Pool(tuple(devices), types, within_hosts=True).windows(2)
    (((0, 1), (2, 3), (4, 5)), ((0, 1), (3, 4)))
    """

    devices: tuple[Device, ...]
    types: dict[str, DeviceType]
    within_hosts: bool = False

    def __len__(self) -> int:
        return len(self.devices)

    @classmethod
    def parse(cls, text: str, types: Mapping[str, DeviceType], per_host: int = 8) -> Pool:
        """`4` (devices of the plain type) or `a100:2,l4:4` (counts of named types)."""
        if per_host < 1:
            raise InputError(f"expected at least one GPU per server, found {per_host}")
        wanted: list[str] = []
        used: dict[str, DeviceType] = {}
        for item in text.split(","):
            name, colon, count_text = item.strip().rpartition(":")
            name = name if colon else "gpu"
            kind = types.get(name) or (DeviceType("gpu") if name == "gpu" else None)
            if kind is None:
                raise InputError(f"--gpus {text}: {name!r} is not a GPU type{did_you_mean(name, types)}")
            if not (count_text.isascii() and count_text.isdigit()):
                raise InputError(f"--gpus {text}: {count_text!r} is not a count; expected 4, or a100:2,l4:4")
            if len(count_text.lstrip("0")) > 7 or len(wanted) + int(count_text) > _MOST_DEVICES:
                raise InputError(f"--gpus {text}: expected at most {_MOST_DEVICES} GPUs")
            used[name] = kind
            wanted += [name] * int(count_text)
        if not wanted:
            raise InputError(f"--gpus {text}: expected at least one GPU")
        return cls(tuple(Device(i, name, i // per_host) for i, name in enumerate(wanted)), used)

    def joined(self, devices: Sequence[Device], types: Mapping[str, DeviceType]) -> Pool:
        """The pool with more devices, numbered on."""
        if [device.id for device in devices] != list(range(len(self), len(self) + len(devices))):
            raise InputError(f"devices {[device.id for device in devices]} were added, expected {len(self)} and so on")
        if unknown := {device.type for device in devices} - {*self.types, *types}:
            raise InputError(f"a device of type {min(unknown)!r} was added, which nobody described")
        return Pool((*self.devices, *devices), {**self.types, **types}, self.within_hosts)

    @property
    def speeds(self) -> list[float]:
        return [self.types[d.type].speed for d in self.devices]

    @property
    def memories(self) -> list[int | None]:
        return [self.types[d.type].memory_mib for d in self.devices]

    def windows(self, width: int, aligned: bool = True) -> tuple[tuple[int, ...], ...]:
        """Runs of `width` neighbouring devices. Aligned ones never overlap in part, so they do not fragment the pool:
        they start at multiples of `width` among the devices of one type, or of all if no type has so many."""
        runs = self._runs(lambda d: (d.host if self.within_hosts else 0, d.type))
        if not aligned or max(runs, default=0) < width:
            runs = self._runs(lambda d: d.host if self.within_hosts else 0)
        return _windows(runs, width, aligned)

    def _runs(self, key: Callable[[Device], Any]) -> tuple[int, ...]:
        return tuple(len(list(group)) for _, group in groupby(self.devices, key))


@lru_cache(maxsize=1024)
def _windows(runs: tuple[int, ...], width: int, aligned: bool) -> tuple[tuple[int, ...], ...]:
    if not width:
        return ((),)
    step = width if aligned else 1
    found: list[tuple[int, ...]] = []
    first = 0
    for devices in runs:
        found += [tuple(range(i, i + width)) for i in range(first, first + devices - width + 1, step)]
        first += devices
    return tuple(found)


def is_type(name: str, wanted: str) -> bool:
    """Whether a device of this name is of a type: all words of the type are in it.

    >>> names = "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"
    >>> is_type(names[0], "a100"), is_type(names[0], "A100-80GB"), is_type(names[1], "l4")
    (True, True, False)
    """
    words = set(_words(wanted))
    return bool(words) and words <= set(_words(name))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def runs_of(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring devices as (first, count).

    >>> runs_of((0, 1, 3))
    [(0, 2), (3, 1)]
    """
    runs: list[tuple[int, int]] = []
    for device in sorted(devices):
        if runs and device == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((device, 1))
    return runs


def devices_text(devices: Sequence[int], between: str = ", ") -> str:
    """
    >>> devices_text((0, 1, 2, 5))
    '0-2, 5'
    """
    runs = runs_of(devices)
    return between.join(str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in runs)


class Ledger:
    """Which device is held by whom. The engine asks it before it carries an instruction out."""

    __slots__ = ("holders",)

    def __init__(self, pool: Pool) -> None:
        self.holders: list[tuple[str, str] | None] = [None] * len(pool)

    def conflict(self, devices: Sequence[int]) -> str | None:
        """Why these devices cannot be taken, or None."""
        if len(devices) > 1 and len(set(devices)) != len(devices):
            return f"device named twice in {list(devices)}"
        for d in devices:
            if not 0 <= d < len(self.holders):
                return f"device {d} does not exist (pool of {len(self.holders)})"
            if (holder := self.holders[d]) is not None:
                return f"device {d} is held by {holder[0]}/{holder[1]}"
        return None

    def extend(self, devices: int) -> None:
        """So many devices more, all free."""
        self.holders += [None] * devices

    def take(self, devices: Sequence[int], holder: tuple[str, str]) -> None:
        for d in devices:
            self.holders[d] = holder

    def free(self, devices: Sequence[int]) -> None:
        for d in devices:
            self.holders[d] = None
