"""A Hugging Face model from its configuration alone: no weights are fetched, the layers' shapes are what counts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.models.graph_layers import flat
from dovetail.pipeline.models.spec import Built, ModelSpec, one_line

_LONGEST = 512  # tokens of an item, where the configuration allows more


class Plain(nn.Module):
    """The model as a function of its main input alone, with its results as plain tensors."""

    def __init__(self, model: nn.Module, main_input: str) -> None:
        super().__init__()
        self.model = model
        self.main_input = main_input

    def forward(self, value: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        found = flat(self.model(**{self.main_input: value}, return_dict=True), torch.Tensor)
        return found[0] if len(found) == 1 else tuple(found)


def build(spec: ModelSpec) -> Built:
    """The model of a configuration, with random weights."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        message = f"{spec.source}: needs transformers, which is not installed: pip install transformers"
        raise InputError(message) from None
    path = Path(spec.source.removeprefix("hf:"))
    config = _config(transformers, path, spec.arguments)
    try:
        model = transformers.AutoModel.from_config(config)
    except Exception as error:  # whatever a model's own code finds wrong with its configuration
        raise InputError(f"{path}: no model can be built: {one_line(error)}") from error
    main_input = model.main_input_name
    folder = path if path.is_dir() else path.parent  # a file called config.json says nothing
    name = getattr(config, "name_or_path", "") or (path.stem if path.stem != "config" else folder.resolve().name)
    if main_input == "pixel_values":
        size = getattr(config, "image_size", 224)
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return Built(Plain(model, main_input), name, ((getattr(config, "num_channels", 3), *sides),), "", 2)
    if main_input != "input_ids":
        raise InputError(f"{path}: the input {main_input!r} is not known here; expected token ids or pixels")
    length = min(getattr(config, "max_position_embeddings", None) or _LONGEST, _LONGEST)
    return Built(Plain(model, main_input), name, ((length,),), "torch.int64", config.vocab_size)


def _config(transformers: Any, path: Path, changes: dict[str, Any]) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file; expected the configuration of a Hugging Face model")
    try:
        given = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from None
    kind = given.pop("model_type", None) if isinstance(given, dict) else None
    known = list(transformers.CONFIG_MAPPING)
    if isinstance(kind, str) and kind not in known:
        raise InputError(f"{file}: unknown model_type {kind!r}{did_you_mean(kind, known)}")
    if not kind:
        raise InputError(f"{file}: missing key 'model_type'; expected the configuration of a Hugging Face model")
    try:
        # A cache of keys and values is state that does not travel from layer to layer.
        return transformers.AutoConfig.for_model(kind, **(given | {"use_cache": False} | changes))
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: {one_line(error)}") from error
