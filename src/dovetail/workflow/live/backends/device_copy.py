"""A model's tensors on the devices where they are used, beside what they are in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.workflow.live.backends.weights import MappedWeights

_ALIGNED = 16  # bytes that kernels read at a time
_MOSTLY = 0.9


class DeviceCopy:
    """Gives a model that is in host memory the devices' copies of its tensors, and takes them away again.

    To one device a whole file goes at once, and tensors are views of it as they are of the file: many small pieces of a
    device's memory take longer to get, and to give back. On several devices, consecutive layers are on one, each with
    about the same share; what goes into a layer is moved to where it is.
    """

    def __init__(self, model: nn.Module, mapped: MappedWeights) -> None:
        self.model = model
        self._mapped = mapped
        self._host: list[tuple[Tensor, Tensor]] = []
        self._hooks: list[Any] = []

    def make(self, devices: Sequence[torch.device]) -> None:
        """Copy everything. If that fails, nothing stays on the devices."""
        places = spread(self.model, devices)
        where: dict[int, torch.device] = {}
        for module, device in places.items():
            for tensor in (*module.parameters(), *module.buffers()):
                where.setdefault(id(tensor), device)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        try:
            files = [] if len(devices) > 1 else self._sent_files(tensors, devices[0])
            for tensor in tensors:
                host, device = tensor.data, where[id(tensor)]
                copy = next((found for file, sent in files if (found := _view(host, file, sent)) is not None), None)
                if copy is None:
                    if device.type == "cuda" and not (self._mapped.holds(host) or host.is_pinned()):
                        host = host.pin_memory()  # it was converted; torch uses such memory again when it is free
                    copy = _sent(host, device)
                self._host.append((tensor, host))
                tensor.data = copy
            for device in {*devices}:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
        except BaseException:
            self.drop()
            raise
        if len({*places.values()}) > 1 or len(devices) > 1:
            for module, device in places.items():
                hook = partial(_moved, device)
                self._hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _sent_files(self, tensors: list[Tensor], device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """The files of which the model uses nearly all, and their copies."""
        files = []
        for file in self._mapped.data:
            begin, end = file.data_ptr(), file.data_ptr() + file.numel()
            used = sum(t.numel() * t.element_size() for t in tensors if begin <= t.data_ptr() < end)
            if used >= _MOSTLY * file.numel():
                files.append((file, _sent(file, device)))
        return files

    def drop(self) -> None:
        """Only the host's copy is left, as it was."""
        for hook in self._hooks:
            hook.remove()
        devices = {tensor.device for tensor, _ in self._host}
        for tensor, host in self._host:
            tensor.data = host
        self._hooks, self._host = [], []
        if any(device.type == "cuda" for device in devices):
            torch.cuda.empty_cache()

    @property
    def bytes(self) -> int:
        return sum(host.numel() * host.element_size() for _, host in self._host)


def spread(model: nn.Module, devices: Sequence[torch.device]) -> dict[nn.Module, torch.device]:
    """On which device each module is: the whole model, or its layers and what is before and behind them."""
    if len(devices) == 1:
        return {model: devices[0]}
    layers = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=_bytes, default=nn.ModuleList())
    whole, done = max(_bytes(layers), 1), 0
    places: dict[nn.Module, torch.device] = {}
    inside = {id(module) for module in layers.modules()}
    for layer in layers:
        size = _bytes(layer)
        places[layer] = devices[min(int((done + size / 2) / whole * len(devices)), len(devices) - 1)]
        done += size
    behind = False
    owner: dict[int, torch.device] = {}  # of weights that several modules use
    for module in model.modules():
        behind = behind or module is layers
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if id(module) not in inside and own:
            device = next((owner[id(t)] for t in own if id(t) in owner), devices[-1] if behind else devices[0])
            owner |= {id(tensor): device for tensor in own}
            places[module] = device
    return places


def _view(host: Tensor, file: Tensor, sent: Tensor) -> Tensor | None:
    """Where a tensor of a file is in the file's copy, if kernels can take it there."""
    at, size = host.data_ptr() - file.data_ptr(), host.numel() * host.element_size()
    if not (0 <= at <= file.numel() - size and host.is_contiguous()) or at % _ALIGNED:
        return None
    return sent[at : at + size].view(host.dtype).view(host.shape)


def _bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())


def _sent(host: Tensor, device: torch.device) -> Tensor:
    return host.to(device, non_blocking=True)


def _moved(device: torch.device, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        if type(value) in (tuple, list):
            return type(value)(move(one) for one in value)
        if isinstance(value, Mapping) and type(value) is dict:
            return {key: move(one) for key, one in value.items()}
        return value

    return move(args), move(kwargs)
