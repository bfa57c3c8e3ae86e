"""Load a model and cut it into layers: from a factory, an ONNX file or a Hugging Face configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core.errors import InputError
from dovetail.pipeline.models.spec import Chain, ModelSpec, need_torch

if TYPE_CHECKING:
    from torch import nn


def load(spec: ModelSpec) -> Chain:
    """Build a model and cut it into layers.

    >>> from dovetail.pipeline.models.load import ModelSpec, load
    >>> load(ModelSpec(source="no_such_package:model"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dovetail.core.errors.InputError: no_such_package:model: cannot import no_such_package...
    """
    path = Path(spec.source)
    if path.suffix == ".onnx":
        from dovetail.pipeline.models.onnx_layers import load_onnx

        return load_onnx(spec)
    need_torch("cutting a model into layers")
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if spec.source.startswith("hf:"):
            from dovetail.pipeline.models.hugging_face import build

        else:
            from dovetail.pipeline.models.factory import build
        built = build(spec)
    if spec.weights is not None:
        from dovetail.pipeline.models.factory import load_weights

        load_weights(built.model, Path(spec.weights))
    built.model.eval()
    shapes = spec.shapes or built.shapes
    if not shapes:
        raise InputError(f"{spec.source}: the shape of its input is not known; give it, or set model.input_shapes")
    dtypes = [spec.input_dtype or built.input_dtype] * len(shapes)
    chain = Chain(built.name, [], [], shapes=shapes, input_dtypes=dtypes, id_limit=built.id_limit)
    chain.layers, chain.names = _cut(built.model, spec, chain)
    return chain


def _cut(model: nn.Module, spec: ModelSpec, chain: Chain) -> tuple[list[Any], list[str]]:
    import torch

    plain = isinstance(model, torch.nn.Sequential) and type(model).forward is torch.nn.Sequential.forward
    if spec.cut == "sequential" and not plain:
        raise InputError(f"{spec.source}: expected a plain nn.Sequential for this cut, found {type(model).__name__}")
    if plain and spec.cut != "graph":
        named = _children(model)
        if spec.cut == "sequential" or len(named) > 1:
            return [layer for _, layer in named], [name for name, _ in named]
    from dovetail.pipeline.models.graph_layers import cut_graph

    return cut_graph(model, chain)


def _children(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of a Sequential; those that are a plain Sequential themselves give theirs."""
    import torch

    named = []
    for name, child in model.named_children():
        if type(child) is torch.nn.Sequential and len(child):
            named += [(f"{name}.{inner}", layer) for inner, layer in child.named_children()]
        else:
            named.append((name, child))
    return named
