"""A model as a chain of layers: where it comes from, and the layers as functions."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from dovetail.core.errors import InputError, MissingExtraError, did_you_mean
from dovetail.core.files.document import as_path, checked

if TYPE_CHECKING:
    import torch
    from torch import nn

    Value: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


FLOAT_DTYPES = ("torch.float32", "torch.float16", "torch.bfloat16", "torch.float64")
INPUT_DTYPES = (*FLOAT_DTYPES, *(f"torch.{name}" for name in ("int64", "int32", "int16", "int8", "uint8", "bool")))


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model comes from, as plain data: every process that loads it gets the same layers and weights.

    `source` is `package.module:factory`, `path/file.py:factory`, `path/model.onnx` or `hf:CONFIG` (a folder or a JSON
    file); a factory gives a torch module, and `arguments` are its keyword arguments. `shapes` are those of the inputs
    without the batch dimension; without them the model is asked (`input_shapes` of a module, an ONNX file's inputs).
    """

    source: str
    arguments: dict[str, Any] = {}
    shapes: Shapes = ()
    input_dtype: str = ""
    weights: str | None = None
    seed: int = 0
    cut: Literal["auto", "sequential", "graph"] = "auto"


def model_spec(
    model: str | ModelSpec,
    *,
    argument: Mapping[str, Any] | None = None,
    shape: Sequence[Sequence[int]] = (),
    input_dtype: str = "",
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    cut: Literal["auto", "sequential", "graph"] = "auto",
) -> ModelSpec:
    """Where a model comes from, by what a user says of it.

    >>> model_spec("model.onnx", shape=[(3, 224, 224)]).shapes
    ((3, 224, 224),)
    """
    if isinstance(model, ModelSpec):
        return model
    if not isinstance(model, str):
        raise InputError(f"model: expected where it comes from, such as file.py:factory; found {model!r:.80}")
    check_source(model)
    asked = {
        "source": model,
        "arguments": argument or {},
        "shapes": shape,
        "input_dtype": input_dtype and full_dtype(input_dtype, INPUT_DTYPES),
        "weights": None if weights is None else str(as_path(weights, "weights")),
        "seed": seed,
        "cut": cut,
    }
    return checked(asked, ModelSpec)


def check_source(source: str) -> None:
    """Refuse what names no model."""
    if ":" not in source and not source.endswith(".onnx"):
        raise InputError(f"{source}: expected MODULE:FACTORY, FILE.py:FACTORY, FILE.onnx or hf:CONFIG")


def full_dtype(name: str, known: Sequence[str] = FLOAT_DTYPES) -> str:
    """A dtype by its name, with or without `torch.` before it.

    >>> full_dtype("float16")
    'torch.float16'
    """
    full = f"torch.{str(name).removeprefix('torch.')}"
    if full not in known:
        raise InputError(f"unknown dtype {name!r}{did_you_mean(full, known)}")
    return full


class StoredTensor(NamedTuple):
    """How a tensor of a model comes from files: as it is, or from others by a conversion."""

    names: tuple[str, ...]
    convert: Callable[[Sequence[torch.Tensor]], torch.Tensor] | None = None


class WeightSource(Protocol):
    """Where the weights of layers that were made without them come from."""

    def filled(self, layers: Sequence[Any], device: torch.device, dtype: torch.dtype) -> list[Any]:
        """Copies of layers with their weights."""
        ...


class Built(NamedTuple):
    """A model before it is cut, and what it says about its inputs; integer ones are below `id_limit`."""

    model: nn.Module
    name: str
    shapes: Shapes
    input_dtypes: tuple[str, ...]  # one for each input, or one for all; an empty one is that of the weights
    id_limit: int
    stored: Callable[[Sequence[str]], dict[str, StoredTensor]] | None = None  # how its tensors come from files


class Chain:
    """Layers in order, each a function from the value before it to the value after it: a tensor or a tuple of them."""

    def __init__(
        self,
        name: str,
        layers: Sequence[Callable[[Value], Value]],
        names: Sequence[str],
        *,
        shapes: Shapes,
        input_dtypes: Sequence[str] = (),
        id_limit: int = 2,
    ) -> None:
        self.name = name
        self.layers = list(layers)
        self.names = list(names)
        self.shapes = shapes
        self.input_dtypes = list(input_dtypes) or [""] * len(shapes)
        self.weights: WeightSource | None = None  # from which a part's own are read when it is made
        self.id_limit = id_limit  # integer inputs are below it: they are most often an index into an embedding

    def inputs(self, batch_size: int, dtype: str, device: str = "cpu", seed: int = 0) -> Value:
        """Random inputs; the same seed gives the same ones on any device."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        made = []
        for shape, own in zip(self.shapes, self.input_dtypes, strict=True):
            kind = torch_dtype(own or dtype)
            if kind.is_floating_point:
                tensor = torch.randn(batch_size, *shape, generator=generator).to(kind)
            else:
                tensor = torch.randint(0, self.id_limit, (batch_size, *shape), generator=generator, dtype=kind)
            made.append(tensor.to(device))
        return made[0] if len(made) == 1 else tuple(made)

    def part(
        self, first: int, last: int, device: str = "cpu", dtype: str = "torch.float32"
    ) -> Callable[[Value], Value]:
        """Layers first..last (from 1, both included) as one function, on a device and with a dtype."""
        import torch

        if not 1 <= first <= last <= len(self.layers):
            raise InputError(f"layers {first} to {last}: {self.name} has layers 1 to {len(self.layers)}")
        chosen = self.layers[first - 1 : last]
        if hasattr(chosen[0], "until"):
            chosen = [chosen[0].until(last)]
        layers = self._placed(chosen, device, dtype)

        def run(value: Value) -> Value:
            with torch.inference_mode():
                for layer in layers:
                    value = layer(value)
            return value

        return run

    def decoder(self, first: int, last: int, device: str = "cpu", dtype: str = "torch.float32") -> Any:
        """The layers of a language model as one part (`models/decoder.py`), which can keep a cache."""
        begin: Any = self.layers[first - 1]
        if not hasattr(begin, "until"):
            raise InputError(f"{self.name}: only a language model of transformers (hf:) generates tokens")
        return self._placed([begin.until(last)], device, dtype)[0]

    def _placed(self, layers: Sequence[Any], device: str, dtype: str) -> list[Any]:
        """Layers with their weights, on a device."""
        if self.weights is not None:
            import torch

            layers = self.weights.filled(layers, torch.device(device), torch_dtype(dtype))
        return [_placed(layer, device, dtype) for layer in layers]


def need_torch(what_for: str) -> ModuleType:
    """The module torch, or an error that says how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise MissingExtraError("torch", "PyTorch", what_for) from None


def one_line(error: Exception) -> str:
    """What somebody else's code raised, on one line.

    >>> one_line(ValueError("bad\\n  shape"))
    'ValueError: bad shape'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def torch_dtype(name: str) -> torch.dtype:
    """A dtype by name.

    >>> torch_dtype("torch.int64")
    torch.int64
    """
    import torch

    known = {f"torch.{key}" for key, value in vars(torch).items() if isinstance(value, torch.dtype)}
    if name not in known:
        raise InputError(f"unknown dtype {name!r}{did_you_mean(name, known)}")
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def _placed(layer: Callable[[Value], Value], device: str, dtype: str) -> Callable[[Value], Value]:
    """A layer on a device; the chain keeps its own copy, or a second dtype would start from rounded weights."""
    import torch

    kind, place = torch_dtype(dtype), torch.device(device)
    if hasattr(layer, "placed"):
        placed: Callable[[Value], Value] = layer.placed(place, kind)
        return placed
    if place.type == "cpu" and kind is torch.float32:
        return layer  # as it was loaded
    assert isinstance(layer, torch.nn.Module)
    moved: Callable[[Value], Value] = copy.deepcopy(layer).to(device=place, dtype=kind).eval()
    return moved
