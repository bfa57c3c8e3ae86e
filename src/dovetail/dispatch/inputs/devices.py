"""The devices of a node: canonical names, what was asked for each, and whether they exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, MissingExtraError, did_you_mean
from dovetail.core.files.plain import plain

KINDS = ("cpu", "mps", "xpu", "cuda")


class NodeDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device, and how it is used. Two may stand for the same hardware if their names differ."""

    name: str
    where: str = ""  # torch's name; the same as `name` by default
    size: int | None = None  # items in a chunk; None: found by measuring, 0: all that is left
    capacity: int | None = None  # items that may be under way
    priority: float = 1.0
    slots: int = 0  # chunks in flight; 0: as many as pay (three on CUDA, one elsewhere)
    threads: int = 0  # of the CPU; 0: all cores but one per accelerator
    emulated: bool = False  # it only pretends to be what it is called

    @property
    def place(self) -> str:
        return self.where or self.name

    @property
    def kind(self) -> str:
        """
        >>> NodeDevice("cuda:1").kind
        'cuda'
        """
        return self.place.partition(":")[0]

    @property
    def in_flight(self) -> int:
        """Chunks that it holds at once; on CUDA one comes in, one is computed and one goes out."""
        return self.slots or (3 if self.kind == "cuda" else 1)


def canonical(name: str) -> str:
    """One name per device: `cuda` is the first one, the CPU has no number.

    >>> canonical("cuda"), canonical(" CUDA:1 "), canonical("cpu:0")
    ('cuda:0', 'cuda:1', 'cpu')
    """
    kind, colon, index = name.strip().lower().partition(":")
    if kind not in KINDS:
        raise InputError(f"device {name!r}: there is no such kind{did_you_mean(kind, KINDS)}")
    if colon and not index.isdecimal():
        raise InputError(f"device {name!r}: expected a number after the colon")
    if kind == "cpu":
        if int(index or 0):
            raise InputError(f"device {name!r}: there is one CPU device; leave the number out")
        return "cpu"
    return kind if kind == "mps" else f"{kind}:{int(index or 0)}"


def load_torch() -> Any:
    """torch, or an error that says how to install it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "PyTorch", "dispatching tensors") from None
    return torch


def carrier(device: NodeDevice) -> str:
    """What really carries a device, in words. One that has the name of other hardware is emulated.

    >>> carrier(NodeDevice("second", where="cpu")), carrier(NodeDevice("10.0.0.7/cpu", where="cpu"))
    ('cpu', 'cpu of 10.0.0.7')
    >>> carrier(NodeDevice("fast", where="cpu", emulated=True)), carrier(NodeDevice("cuda:0", where="cpu"))
    ('emulated on cpu', 'emulated on cpu')
    """
    node, slash, own = device.name.rpartition("/")
    other = own.partition(":")[0] in KINDS and canonical(own) != device.place
    emulated = "emulated on " if device.emulated or other else ""
    if slash:
        return f"{emulated}{device.place} of {node}"
    name = f" {load_torch().cuda.get_device_name(device.place)}" if device.kind == "cuda" else ""
    return f"{emulated}{device.place}{name}"


def of_one_cpu(devices: Sequence[NodeDevice]) -> bool:
    """Whether all devices really are this machine's CPU, whose time they share."""
    return all(device.kind == "cpu" and not device.emulated for device in devices)


def devices_seen(kind: str) -> int:
    """How many devices of a kind PyTorch sees on this machine."""
    torch = load_torch()
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module: Any = getattr(torch, kind, None)
    return int(module.device_count()) if kind == "cpu" or (module is not None and module.is_available()) else 0


def check_exists(place: str) -> None:
    """An error when this machine does not have the device."""
    kind, _, index = place.partition(":")
    if int(index or 0) >= (found := devices_seen(kind)):
        raise InputError(
            f"device {place!r} does not exist: PyTorch sees {found} {kind} device{'s' * (found != 1)} here"
        )


def devices() -> list[NodeDevice]:
    """All devices of this machine that PyTorch can use: accelerators first, then the CPU."""
    return resolve([f"{kind}:{i}" for kind in reversed(KINDS) for i in range(devices_seen(kind))])


def resolve(devices: str | NodeDevice | Sequence[str | NodeDevice], *, exist: bool = True) -> list[NodeDevice]:
    """Devices as they were given, with canonical names, each once.

    >>> [device.name for device in resolve(["cuda", "cpu"], exist=False)]
    ['cuda:0', 'cpu']
    """
    given = several("devices", devices)
    if not given:
        raise InputError("expected at least one device, found none")
    found: dict[str, NodeDevice] = {}
    for each in given:
        device = _checked(each if isinstance(each, NodeDevice) else NodeDevice(canonical(_name(each))))
        if device.name in found:
            raise InputError(f"device {device.name!r} is given twice; expected each once")
        if exist:
            check_exists(device.place)
        found[device.name] = device
    return list(found.values())


def several(what: str, given: Any) -> list[Any]:
    """Several of something as users give them: a list, names with commas between them, or only one.

    >>> several("devices", "cuda:0, cpu"), several("types", ("a100", "epyc")), several("policies", 3)
    (['cuda:0', 'cpu'], ['a100', 'epyc'], [3])
    """
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
        if not all(given):
            raise InputError(f"{what} {','.join(given)}: expected names with commas between them")
    return list(given) if isinstance(given, Sequence) else [given]


def _name(device: Any) -> str:
    """A name as it is, or that of a torch.device."""
    if not isinstance(device, str) and type(device).__module__ != "torch":
        raise InputError(f"device {device!r}: expected a name such as 'cpu' or 'cuda:0', or a Device")
    return str(device)


def _checked(device: NodeDevice) -> NodeDevice:
    name = device.name if device.where else canonical(device.name)
    device = msgspec.structs.replace(device, name=name, where=canonical(device.place))
    if device.size is not None and device.size < 0:
        raise InputError(f"device {name!r}: expected a size >= 0, found {device.size}")
    if device.capacity is not None and device.capacity < (device.size or 1):
        raise InputError(
            f"device {name!r}: capacity {device.capacity} is below size {device.size}; no chunk could ever be placed"
        )
    if device.slots < 0 or device.threads < 0:
        raise InputError(f"device {name!r}: expected slots and threads >= 0")
    return device


def devices_with(
    devices: str | NodeDevice | Sequence[str | NodeDevice],
    sizes: int | Sequence[int] | None = None,
    capacities: int | Sequence[int] | None = None,
    priorities: float | Sequence[float] | None = None,
    *,
    exist: bool = True,
) -> list[NodeDevice]:
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
    given = plain(given)
    values = given if isinstance(given, list) else [given]
    whole = name != "priority"
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or value != value:
            raise InputError(f"{name} {value!r}: expected a {'whole ' * whole}number")
    if len(values) == 1:
        values *= count
    if len(values) != count:
        expected = f"1 or {count} values" if count > 1 else "1 value"
        raise InputError(f"expected {expected} for {name}, one for each device; found {len(values)}")
    return values
