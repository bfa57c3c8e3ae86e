"""A Hugging Face model from its configuration alone: no weights are fetched, the layers' shapes are what counts."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.models.converted_weights import stored_tensors
from dovetail.pipeline.models.decoder import UncuttableError, find_decoder
from dovetail.pipeline.models.graph_layers import flat
from dovetail.pipeline.models.spec import Built, ModelSpec, one_line

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value

_LONGEST = 512  # tokens of an item, where the configuration allows more
_SAMPLES = 16000  # of sound: a second at the usual rate


class Plain(nn.Module):
    """The model as a function of its main inputs alone, with its results as plain tensors."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, value: torch.Tensor) -> Value:
        return self._results(value)

    def _results(self, *values: torch.Tensor) -> Value:
        found = flat(self.model(**dict(zip(self.names, values, strict=True)), return_dict=True), torch.Tensor)
        return found[0] if len(found) == 1 else tuple(found)


class PlainPair(Plain):
    """Of two inputs; tracers want them by name."""

    def forward(self, value: torch.Tensor, other: torch.Tensor) -> Value:  # type: ignore[override]
        return self._results(value, other)


def build(spec: ModelSpec) -> Built:
    """The model of a configuration, with random weights: the one that `architectures` names, head and all."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        message = f"{spec.source}: needs transformers, which is not installed: pip install transformers"
        raise InputError(message) from None
    path = Path(spec.source.removeprefix("hf:"))
    config = _config(transformers, path, spec.arguments)
    kind = _architecture(transformers, path, config)
    try:
        model = kind(config, dtype=torch.float32)
    except Exception as error:  # whatever a model's own code finds wrong with its configuration
        raise InputError(f"{path}: no model can be built: {one_line(error)}") from error
    folder = path if path.is_dir() else path.parent  # a file called config.json says nothing
    name = getattr(config, "name_or_path", "") or (path.stem if path.stem != "config" else folder.resolve().name)
    inputs = {key: _input(path, key, config) for key in _input_names(model, config)}
    plain = (Plain if len(inputs) == 1 else PlainPair)(model, tuple(inputs))
    dtypes = tuple("torch.int64" if key.endswith("_ids") else "" for key in inputs)
    limit = getattr(config.get_text_config(), "vocab_size", 2)
    return Built(plain, name, tuple(inputs.values()), dtypes, limit, partial(stored_tensors, model))


def _architecture(transformers: Any, path: Path, config: Any) -> Callable[..., Any]:
    """What makes the model that a configuration names; without a name, the one without a head."""
    named = getattr(config, "architectures", None) or []
    kind: Any = getattr(transformers, str(named[0]), None) if named else None
    if named and not hasattr(kind, "_from_config"):
        known = [name for name in dir(transformers) if name.startswith(str(named[0])[:3])]
        raise InputError(f"{path}: unknown architecture {named[0]!r}{did_you_mean(str(named[0]), known)}")
    made: Callable[..., Any] = kind._from_config if named else transformers.AutoModel.from_config
    return made


def _input_names(model: Any, config: Any) -> list[str]:
    names = [model.main_input_name]
    if hasattr(config, "text_config") and hasattr(config, "vision_config"):
        names = ["input_ids", "pixel_values"]
    return [*names, "decoder_input_ids"] if config.is_encoder_decoder else names


def _input(path: Path, name: str, config: Any) -> tuple[int, ...]:
    """The shape of an input of one item."""
    if name == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 224)
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return (getattr(vision, "num_channels", 3), *sides)
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return (config.num_mel_bins, 2 * config.max_source_positions)
    if name == "input_values":
        return (_SAMPLES,)
    if name not in ("input_ids", "decoder_input_ids"):
        raise InputError(f"{path}: the input {name!r} is not known here; expected token ids, pixels or sound")
    text = config.get_text_config()
    longest = getattr(text, "max_target_positions", None) or getattr(text, "max_position_embeddings", None)
    return (min(longest, _LONGEST) if longest and longest > 0 else _LONGEST,)  # -1 is no limit


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
    except Exception as error:  # whatever a configuration's own code finds wrong
        raise InputError(f"{file}: {one_line(error)}") from error


def cut_decoder(plain: nn.Module) -> tuple[list[Any], list[str]] | None:
    """A language model cut at its blocks; None if it is none, or if more than one tensor goes from block to block."""
    model: Any = plain.model
    if not (hasattr(model, "can_generate") and model.can_generate()) or model.config.is_encoder_decoder:
        return None
    try:
        return find_decoder(model).layers()
    except UncuttableError:
        return None
