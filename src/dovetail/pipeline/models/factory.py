"""A torch module from the factory that a user names, and weights for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.models.spec import Built, ModelSpec, check_source, one_line


def build(spec: ModelSpec) -> Built:
    """Call the factory that a specification names."""
    check_source(spec.source)
    where, _, name = spec.source.rpartition(":")
    module = _module(spec.source, where)
    if not hasattr(module, name):
        raise InputError(f"{spec.source}: no {name!r} in {where}{did_you_mean(name, _public(module))}")
    made = getattr(module, name)
    if not isinstance(made, nn.Module):
        try:
            made = made(**spec.arguments)
        except Exception as error:  # the factory is the user's: whatever it raises is about the input
            raise InputError(f"{spec.source}: the factory failed: {one_line(error)}") from error
    if isinstance(made, list | tuple | nn.ModuleList):
        made = nn.Sequential(*made)
    if not isinstance(made, nn.Module):
        raise InputError(f"{spec.source}: expected a nn.Module, found {type(made).__name__}")
    if type(made) is nn.Sequential and not len(made):
        raise InputError(f"{spec.source}: has no layers")
    shapes = tuple(tuple(shape) for shape in getattr(made, "input_shapes", ()))
    tables = [m.num_embeddings for m in made.modules() if isinstance(m, nn.Embedding)]
    return Built(made, name, shapes, (str(getattr(made, "input_dtype", "")),), min(tables, default=2))


def _module(source: str, where: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        path = Path(where)
        if not path.is_file():
            raise InputError(f"{where}: no such file")
        found = importlib.util.spec_from_file_location(f"dovetail_model_{path.stem}", path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[found.name] = module  # dataclasses and pickle look a class's module up
        found.loader.exec_module(module)
        return module
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{source}: cannot import {where}: {error}") from None
    except Exception as error:
        raise InputError(f"{source}: {where} failed: {one_line(error)}") from error


def _public(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def load_weights(model: nn.Module, path: Path) -> None:
    """Read a state_dict, from torch.save, into a model."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a loader makes of a file that is something else
        raise InputError(f"{path}: expected weights as torch.save or safetensors write them") from error
    try:
        model.load_state_dict(state)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: weights that do not fit the model: {first}") from error
