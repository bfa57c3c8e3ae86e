"""What is known of each device for one function and one form of batch; kept in memory, and on disk between programs."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import CellType, CodeType
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError
from dovetail.core.files.output import written_whole
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.inputs.devices import NodeDevice, of_one_cpu
from dovetail.dispatch.inputs.size_search import UNLIMITED
from dovetail.dispatch.policies.base import DeviceState
from dovetail.dispatch.policies.floor import Floor
from dovetail.dispatch.policies.one_cpu import OneCpuFloor

_VERSION = 3
_FEWER = 4  # times as large: sizes that another device has tried
_BEFORE = 2  # batches of one size, after which it is worth to compile for it
_PLAIN = (bool, int, float, str, bytes, tuple)


class Tuned(Struct, frozen=True):
    """One device's curve as it is kept on disk."""

    function: str
    form: str
    device: str
    hardware: str
    points: list[tuple[float, float]]
    limit: int | None = None
    version: int = _VERSION


def cache_folder() -> Path:
    """Where curves are kept: $DOVETAIL_CACHE, else the user's cache folder."""
    if given := os.environ.get("DOVETAIL_CACHE"):
        return Path(given) / "dispatch"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dovetail" / "dispatch"


def function_name(function: Any) -> str:
    """A name that is the same in the next program as long as the function is the same.

    >>> function_name(cache_folder).startswith("dovetail.dispatch.live.tuning_cache.cache_folder#")
    True
    """
    inner = inspect.unwrap(function) if callable(function) else function
    code = getattr(inner, "__code__", None)
    if code is not None:
        held = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or () if _is_filled(cell)]
        mark = _mark(code) + repr([value for value in held if isinstance(value, _PLAIN)]).encode()
    else:
        inner = type(function)
        shapes = [tuple(p.shape) for p in function.parameters()] if hasattr(function, "parameters") else []
        mark = repr(shapes).encode()
    name = f"{inner.__module__}.{inner.__qualname__}"
    return f"{name}#{hashlib.sha256(mark).hexdigest()[:12]}"


def _mark(code: CodeType) -> bytes:
    """What a function does, with its constants and the functions inside it."""
    parts = [code.co_code, repr(code.co_names).encode()]
    parts += [_mark(each) if isinstance(each, CodeType) else repr(each).encode() for each in code.co_consts]
    return b"|".join(parts)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that has no value yet
        return False


def hardware_name(device: NodeDevice) -> str:
    """What a device is, so that another machine's curve is not taken for it."""
    import platform

    from dovetail.dispatch.inputs.devices import load_torch

    torch = load_torch()
    if "/" in device.name:  # of another machine: its name is all that is known here
        return device.name
    if device.kind == "cuda":
        return str(torch.cuda.get_device_name(device.place))
    return f"{platform.machine()} {os.cpu_count()} {torch.get_num_threads()}"


class TuningCache:
    """Device states by the form of the batch. States that a run ends with are what the next one begins with."""

    def __init__(
        self,
        function: Any,
        devices: list[NodeDevice],
        slots: list[int],
        folder: Path | None,
        learns: bool = True,
        here: bool = True,
        few: bool = False,
    ) -> None:
        """`here`: the devices' work is done in this process; `few`: the function is compiled for every size anew."""
        self.few = few
        self.devices = devices
        self.slots = slots
        self.learns = learns
        self.folder = folder if learns else None
        self.function = function_name(function) if self.folder is not None else ""
        self._states: dict[Any, list[DeviceState]] = {}
        self._floors: dict[Any, Floor] = {}
        self._met: Counter[tuple[Any, int]] = Counter()
        self._shared = here and of_one_cpu(devices)
        self._alike = self._shared and not hasattr(function, "on")

    def floor(self, form: Any) -> Floor:
        """What batches of this form took, with all devices and with fewer."""
        return self._floors.setdefault(form, OneCpuFloor() if self._shared else Floor())

    def met_again(self, form: Any, items: int) -> bool:
        """Whether a batch may be done with one call: of what is compiled, when others of its size came before."""
        if not self.few:
            return True
        self._met[form, items] += 1
        return self._met[form, items] > _BEFORE

    def states(self, form: Any) -> list[DeviceState]:
        """Fresh states for a run over a batch of this form."""
        known = self._states.get(form)
        if known is None:
            known = [self._load(*each, form) for each in zip(self.devices, self.slots, strict=True)]
            known = self._states.setdefault(form, known)
        return [state.fork() for state in known]

    def latest(self) -> list[DeviceState]:
        """What is known for the form of batch that was met last."""
        return next(reversed(self._states.values()))

    def learn(self, form: Any, states: list[DeviceState]) -> None:
        """Keep what a run found out; a curve that has been confirmed also goes to disk."""
        if not self.learns:
            return
        for device, before, after in zip(self.devices, self._states.get(form, states), states, strict=True):
            if self.folder is not None and _worth_keeping(after) not in (None, _worth_keeping(before)):
                self._save(device, form, after)
        if self._alike:
            _made_alike(states)
        known = [state.fork() for state in states]
        self._states.pop(form, None)  # the latest is the last one
        self._states[form] = known

    def _path(self, device: NodeDevice, form: Any) -> Path:
        import torch

        assert self.folder is not None
        whole = repr(
            (_VERSION, self.function, form, device.place, device.slots, hardware_name(device), torch.__version__)
        )
        return self.folder / f"{hashlib.sha256(whole.encode()).hexdigest()[:24]}.json"

    def _load(self, device: NodeDevice, slots: int, form: Any) -> DeviceState:
        asked = device.name, None, device.size, device.capacity, device.priority, slots
        state = DeviceState(*asked, few=self.few and device.size is None)
        if self.folder is not None and device.size is None:
            with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
                found = msgspec.json.decode(self._path(device, form).read_bytes(), type=Tuned)
                state.known(Curve(found.points))
                state.limit = found.limit or UNLIMITED
        return state

    def _save(self, device: NodeDevice, form: Any, state: DeviceState) -> None:
        assert state.curve is not None
        limit = None if state.limit == UNLIMITED else state.limit
        tuned = Tuned(self.function, repr(form), device.place, hardware_name(device), state.curve.points, limit)
        path = self._path(device, form)
        with contextlib.suppress(OSError, DovetailError):  # a cache that cannot be written is no reason to fail
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as file:
                file.write(msgspec.json.encode(tuned))


def _made_alike(states: list[DeviceState]) -> None:
    """Devices of one CPU with one function: who got few chunks learns from who tried the largest sizes."""
    known = [state for state in states if state.curve is not None and state.size is None]
    lead = max(known, key=lambda state: state.curve.sizes[-1] if state.curve else 0.0, default=None)
    for state in known:
        assert lead is not None
        if state.curve.sizes[-1] * _FEWER < lead.curve.sizes[-1]:  # type: ignore[union-attr]
            state.curve, state.search = lead.curve, deepcopy(lead.search)


def _worth_keeping(state: DeviceState) -> Any:
    """What is worth keeping of a state: a curve above whose best size nothing was found when it was looked at again."""
    if state.curve is None or state.search is None or not state.search.looks:
        return None
    return state.search.looks.bit_length(), state.curve.best, state.limit
