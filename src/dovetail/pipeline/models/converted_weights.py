"""How the tensors of a Hugging Face model come from files with older names, or with one tensor for each expert."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.pipeline.models.spec import StoredTensor


def stored_tensors(model: Any, names: Sequence[str]) -> dict[str, StoredTensor]:
    """By each tensor's name in the wrapped model (`model.` and the library's own): what of the files makes it."""
    renamed, converters = _renamed(model, names)
    groups: dict[str, list[tuple[str, str]]] = {}
    found: dict[str, StoredTensor] = {}
    for name, (target, pattern) in renamed.items():
        if pattern is None:
            found[f"model.{target}"] = StoredTensor((name,))
        else:
            groups.setdefault(target, []).append((pattern, name))
    for target, members in groups.items():
        converter = next(each for each in converters if members[0][0] in each.source_patterns)
        first, *others = converter.target_patterns
        made = [target, *(target.replace(first, other) for other in others)]
        for each in made:
            convert = _conversion(converter, model, target, [pattern for pattern, _ in members], each)
            found[f"model.{each}"] = StoredTensor(tuple(name for _, name in members), convert)
    return found


def _renamed(model: Any, names: Sequence[str]) -> tuple[dict[str, tuple[str, str | None]], list[Any]]:
    """What the library calls each tensor of the files, and by which pattern if it is converted."""
    try:
        mapping = importlib.import_module("transformers.conversion_mapping")
        loading = importlib.import_module("transformers.core_model_loading")
    except ImportError:  # a library before the fifth version: names are as they are
        return {name: (name, None) for name in names}, []
    transforms = mapping.get_model_conversion_mapping(model)
    renamings = [each for each in transforms if not isinstance(each, loading.WeightConverter)]
    converters = [each for each in transforms if isinstance(each, loading.WeightConverter)]
    known = model.state_dict()
    renamed = {}
    for name in sorted(names, key=loading.dot_natural_key):
        renamed[name] = loading.rename_source_key(name, renamings, converters, model.base_model_prefix, known)
    return renamed, converters


def _conversion(
    converter: Any, model: Any, target: str, patterns: Sequence[str], wanted: str
) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    def convert(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        for pattern, tensor in zip(patterns, tensors, strict=True):
            converter.collected_tensors[pattern].append(tensor)
        found = converter.convert(target, model=model, config=model.config)[wanted]
        made: torch.Tensor = found[0] if isinstance(found, list) else found
        return made

    return convert
