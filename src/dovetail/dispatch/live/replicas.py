"""Copies of a module on every device that follow the master: what changes in its parameters or buffers is seen before
the next call.

Where the device is the same, a copy has the master's own tensors, so nothing is held twice.
"""

from __future__ import annotations

import copy
import threading
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

State = tuple[int, int, bool, int]  # version, address, whether it takes a gradient, and then: steps of optimisers
_steps = 0


class Replicas:
    """A module on many devices; `replicas.on(device)` is always up to date.

    Changes are seen by the tensors' version counters and addresses. Where torch does not count (fused optimisers, the
    statistics of a norm that trains), what may have changed is taken over every time. A change in place through `.data`
    must be said: `replicas.changed()`.

    >>> import torch
    >>> master = torch.nn.Linear(2, 1)
    >>> replicas = Replicas(master)
    >>> with torch.no_grad():
    ...     _ = master.weight.fill_(3.0)
    >>> replicas.on("cpu").weight.tolist()
    [[3.0, 3.0]]
    """

    def __init__(self, master: Any) -> None:
        _count_steps()
        self.master = master
        self._forced = 0
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def on(self, device: Any) -> Any:
        """The module on this device, brought up to date; the master itself where all of it is on the device."""
        where = torch.device(where_of(device))
        if all(tensor.device == where for part in self.master.modules() for tensor in _tensors(part)):
            return self.master
        return self.copy_on(device)

    def copy_on(self, device: Any) -> Any:
        """A module of this device's own, also where the master is: one that may be called with other parameters."""
        name = str(getattr(device, "name", device))
        with self._lock:  # one walk over the master at a time
            found = self._copies.get(name)
            if found is None or not found.fits(self.master):
                found = self._copies[name] = _Copy(self.master, device)
            found.follow(self.master)
        return found.module

    def changed(self) -> None:
        """Something changed unseen: take everything over again."""
        with self._lock:
            self._copies.clear()
            self._forced += 1

    def state(self) -> tuple[Any, ...]:
        """Equal only if nothing changed: which tensors the master has, and the state of each."""
        found: list[Any] = [self._forced]
        for part in self.master.modules():
            found.append((part.training, object() if part.training and part._buffers else None))
            found += [(id(tensor), *_state(tensor)) for tensor in _tensors(part)]
        return tuple(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return Replicas, (self.master,)  # another process makes its own copies


class Mirror:
    """Tensors on one device that have the values of their originals; an original that is there is its own mirror."""

    def __init__(self, device: Any) -> None:

        self.device = torch.device(where_of(device))
        self._before: dict[int, tuple[Any, State, Any]] = {}
        self._now: dict[int, tuple[Any, State, Any]] = {}

    def begin(self) -> None:
        """A new pass over the originals; those that are not met in it are forgotten."""
        self._before, self._now = self._now, {}

    def here(self, tensor: Any, always: bool = False) -> Any:
        """This tensor's mirror, brought up to date; the same one for a tensor that is met twice."""
        if tensor is None or tensor.device == self.device:
            return tensor
        state = _state(tensor)
        _, known, ours = self._now.get(id(tensor)) or self._before.get(id(tensor)) or (None, None, None)
        if always or known != state:
            ours = _updated(ours, tensor, self.device)
        self._now[id(tensor)] = tensor, state, ours  # held, so that no new tensor gets its id
        return ours


def _updated(ours: Any, tensor: Any, device: Any) -> Any:

    if ours is not None and ours.shape == tensor.shape and ours.dtype == tensor.dtype:
        with torch.no_grad():
            ours.copy_(tensor)
    else:
        ours = tensor.detach().to(device, copy=True)
        if isinstance(tensor, torch.nn.Parameter):
            ours = torch.nn.Parameter(ours, requires_grad=False)
    return ours.requires_grad_(tensor.requires_grad)


class _Copy:
    """A module of the same structure, with the master's tensors mirrored on a device."""

    def __init__(self, master: Any, device: Any) -> None:
        own = {id(tensor): tensor for part in master.modules() for tensor in _tensors(part)}
        self.module = copy.deepcopy(master, own)  # what it is told to have copied already stays as it is
        self._mirror = Mirror(device)

    def fits(self, master: Any) -> bool:
        """Whether the master still consists of the same parts."""
        return [type(part) for part in self.module.modules()] == [type(part) for part in master.modules()]

    def follow(self, master: Any) -> None:
        """Take over what changed in the master: values, in place or by a new tensor, and whether it trains."""
        self._mirror.begin()
        for mine, theirs in zip(self.module.modules(), master.modules(), strict=True):
            mine.training = theirs.training
            for name, tensor in theirs._parameters.items():
                mine._parameters[name] = self._mirror.here(tensor)
            for name, tensor in theirs._buffers.items():
                mine._buffers[name] = self._mirror.here(tensor, always=theirs.training)


def _tensors(part: Any) -> list[Any]:
    """The parameters and buffers that one part of a module holds itself."""
    return [tensor for tensor in (*part._parameters.values(), *part._buffers.values()) if tensor is not None]


def _state(tensor: Any) -> State:
    return tensor._version, tensor.data_ptr(), tensor.requires_grad, _steps if tensor.requires_grad else 0


@cache
def _count_steps() -> None:
    """Count the steps of all optimisers: fused ones change parameters without counting it there."""

    def stepped(*_: Any) -> None:
        global _steps
        _steps += 1

    register_optimizer_step_post_hook(stepped)


def where_of(device: Any) -> str:
    """The torch device of a device, which is one of ours, one of torch's, or a name."""
    return str(getattr(device, "place", device))
