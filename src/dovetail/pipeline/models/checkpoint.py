"""Weights in safetensors files, of which only those are read that a part of a model needs: its files are mapped."""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.models.spec import Built, StoredTensor

_ALIGNED = 64  # bytes; kernels add in another order, and round otherwise, where tensors begin elsewhere
_INDEX = "model.safetensors.index.json"


def is_checkpoint(path: Path) -> bool:
    """Whether weights can be read piece by piece: a safetensors file, an index of several, or a folder with either."""
    return path.suffix in (".safetensors", ".json") or path.is_dir()


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules that are made meanwhile have parameters without data; buffers are as ever."""
    register = nn.Module.register_parameter

    def empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            self._parameters[name] = nn.Parameter(param.detach().to("meta"), requires_grad=False)

    nn.Module.register_parameter = empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class Checkpoint:
    """The tensors of safetensors files, bound to a model that was made without weights."""

    def __init__(self, path: Path, built: Built) -> None:
        self._path = path
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, list[int]] = {}
        for place in _paths(path):
            with _opened(place) as file:
                for name in file.keys():  # noqa: SIM118
                    self._files[name], self._shapes[name] = place, list(file.get_slice(name).get_shape())
        stored = built.stored(list(self._files)) if built.stored else {n: StoredTensor((n,)) for n in self._files}
        self._model = built.model  # its tensors are known by their identity
        self._sources: dict[int, StoredTensor] = {}
        buffers = {name for name, _ in built.model.named_buffers()}
        tensors = dict(built.model.state_dict(keep_vars=True))
        names: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            names.setdefault(id(tensor), []).append(name)
        wrapper = "model." if built.stored else ""  # around the library's model, whose names a user knows
        for key, tied in names.items():
            held = next((name for name in tied if name in stored), None)
            if held is not None:
                self._sources[key] = stored[held]
                self._check(held.removeprefix(wrapper), stored[held], tensors[held].shape)
            elif not buffers.intersection(tied):
                missing, there = tied[0].removeprefix(wrapper), [name.removeprefix(wrapper) for name in stored]
                raise self._misfit(f"no {missing!r}{did_you_mean(missing, there)}")
        for name, source in stored.items():
            if name not in tensors and not self._is_harmless(name):
                raise self._misfit(f"it has no {source.names[0]!r}")

    def _misfit(self, why: str) -> InputError:
        return InputError(f"{self._path}: weights that do not fit the model: {why}")

    def _check(self, name: str, source: StoredTensor, shape: Sequence[int]) -> None:
        if source.convert is None:
            found = self._shapes[source.names[0]]
            if found != list(shape):
                raise self._misfit(f"{name} has shape {found}, expected {list(shape)}")

    def _is_harmless(self, name: str) -> bool:
        modules = self._model.modules()
        ignored = [each for m in modules for each in getattr(m, "_keys_to_ignore_on_load_unexpected", None) or ()]
        return name.endswith((".inv_freq", ".position_ids")) or any(re.search(each, name) for each in ignored)

    def filled(self, layers: Sequence[Any], device: torch.device, dtype: torch.dtype) -> list[Any]:
        """Copies of layers with their weights; what they share they share."""
        memo: dict[int, Any] = {}
        for layer in layers:
            for tensor in (*layer.parameters(), *layer.buffers()):
                if id(tensor) in self._sources and id(tensor) not in memo:
                    memo[id(tensor)] = self._read(self._sources[id(tensor)], tensor, device, dtype)
        return [copy.deepcopy(layer, memo) for layer in layers]

    def _tensor(self, name: str) -> torch.Tensor:
        with _opened(self._files[name]) as file:  # the mapping ends with the tensor
            found: torch.Tensor = file.get_tensor(name)
        return found

    def _read(self, source: StoredTensor, like: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        held = [self._tensor(name) for name in source.names]
        found: torch.Tensor = held[0] if source.convert is None else source.convert(held)
        if found.shape != like.shape:
            shapes = f"{source.names[0]} gives shape {list(found.shape)}, expected {list(like.shape)}"
            raise self._misfit(shapes)
        found = found.to(device, dtype if found.is_floating_point() else found.dtype)
        if found.data_ptr() % _ALIGNED:
            found = found.clone()
        return nn.Parameter(found, requires_grad=False) if isinstance(like, nn.Parameter) else found


def _opened(path: Path) -> Any:
    """A file, mapped: its head is read, and of its tensors those that are asked for."""
    try:
        safe_open = importlib.import_module("safetensors").safe_open
    except ImportError:
        raise InputError(f"{path}: needs safetensors, which is not installed: pip install safetensors") from None
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        return safe_open(path, framework="pt")
    except Exception as error:  # whatever a loader makes of a file that is something else
        raise InputError(f"{path}: expected weights as torch.save or safetensors write them") from error


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        if (path / _INDEX).is_file():
            return _paths(path / _INDEX)
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise InputError(f"{path}: expected {_INDEX} or one .safetensors file in it, found {len(found)}")
        return found
    if path.suffix != ".json":
        return [path]
    try:
        names = json.loads(path.read_text())["weight_map"].values()
        return [path.parent / name for name in dict.fromkeys(map(str, names))]
    except OSError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: expected an index of safetensors files, with a 'weight_map'") from None
