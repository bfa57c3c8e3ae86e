"""Load a model and cut it into layers: from a factory, an ONNX file or a Hugging Face configuration."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core.errors import InputError
from dovetail.pipeline.models.spec import Chain, ModelSpec, need_torch

if TYPE_CHECKING:
    from torch import nn

    from dovetail.pipeline.models.checkpoint import Checkpoint
    from dovetail.pipeline.models.spec import Built


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
        with _lazily(spec):
            built = build(spec)
    weights = _weights(built, spec)
    built.model.eval()
    shapes = spec.shapes or built.shapes
    if not shapes:
        raise InputError(f"{spec.source}: the shape of its input is not known; give it, or set model.input_shapes")
    expected = len(built.input_dtypes)
    if expected not in (1, len(shapes)):
        raise InputError(f"{spec.source}: takes {expected} inputs, found {len(shapes)} shapes")
    dtypes = [spec.input_dtype or each for each in built.input_dtypes] * (len(shapes) // expected)
    chain = Chain(built.name, [], [], shapes=shapes, input_dtypes=dtypes, id_limit=built.id_limit)
    chain.layers, chain.names = _cut(built.model, spec, chain)
    chain.weights = weights
    return chain


def _lazily(spec: ModelSpec) -> AbstractContextManager[None]:
    """Weights that can be read piece by piece are read when a part is made, and no others are made before."""
    from dovetail.pipeline.models.checkpoint import is_checkpoint, without_weights

    return without_weights() if spec.weights is not None and is_checkpoint(Path(spec.weights)) else nullcontext()


def _weights(built: Built, spec: ModelSpec) -> Checkpoint | None:
    from dovetail.pipeline.models.checkpoint import Checkpoint, is_checkpoint

    if spec.weights is None:
        return None
    path = Path(spec.weights)
    if is_checkpoint(path):
        return Checkpoint(path, built)
    from dovetail.pipeline.models.factory import load_weights

    load_weights(built.model, path)
    return None


def _cut(model: nn.Module, spec: ModelSpec, chain: Chain) -> tuple[list[Any], list[str]]:
    import torch

    plain = isinstance(model, torch.nn.Sequential) and type(model).forward is torch.nn.Sequential.forward
    if spec.cut == "sequential" and not plain:
        raise InputError(f"{spec.source}: expected a plain nn.Sequential for this cut, found {type(model).__name__}")
    if plain and spec.cut != "graph":
        named = _children(model)
        if spec.cut == "sequential" or len(named) > 1:
            return [layer for _, layer in named], [name for name, _ in named]
    if spec.source.startswith("hf:") and spec.cut == "auto":
        from dovetail.pipeline.models.hugging_face import cut_decoder

        found = cut_decoder(model)
        if found is not None:
            return found
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
