"""Any torch module as a chain of layers: traced into a graph, which is cut where few tensors are alive."""

from __future__ import annotations

import copy
import io
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dovetail.core.errors import InputError
from dovetail.pipeline.models.cuts import MOST_ALIVE, choose_cuts
from dovetail.pipeline.models.graph_pieces import GraphPieces, Segment
from dovetail.pipeline.models.spec import one_line, torch_dtype

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Chain, Value


def cut_graph(model: nn.Module, chain: Chain) -> tuple[list[nn.Module], list[str]]:
    """Trace a module and cut its graph; the layers, one after another, are checked against the module itself.

    Of a model without weights only the shapes are: it is traced on tensors without data.
    """
    shadow = Shadow(model) if any(t.is_meta for t in model.parameters()) else None
    if shadow is None:
        _try(model, chain)
    failures = []
    close: tuple[list[nn.Module], list[str]] | None = None
    for trace in (_symbolic, _exported):
        try:
            with _silent():
                if shadow is not None:
                    with shadow.mode:
                        layers, names = _cut(trace(shadow.model, chain), chain)
                    return shadow.real(layers), names
                layers, names = _cut(trace(model, chain), chain)
            agreement = _agreement(model, layers, chain)
            if agreement == "equal":
                return layers, names
            close = close or ((layers, names) if agreement == "close" else None)
            failures.append("what was traced computes something else")
        except Exception as error:  # a tracer raises whatever the model's code makes it raise
            first = str(error).strip().splitlines() or [type(error).__name__]
            failures.append(f"{trace.__name__[1:]} trace: {first[0]}{_place(error)}")
    if close is not None:
        return close
    raise InputError(f"{chain.name}: cannot be cut into layers: {'; '.join(failures)}")


class Shadow:
    """A copy of a model on tensors without data, and the way back from its tensors to the model's."""

    def __init__(self, model: Any, mode: FakeTensorMode | None = None, dtype: torch.dtype | None = None) -> None:
        self.mode = mode or FakeTensorMode()
        kept = [*model.parameters(), *model.buffers()]
        with self.mode:
            made = [torch.empty(t.shape, dtype=dtype if dtype and t.is_floating_point() else t.dtype) for t in kept]
        made = [
            nn.Parameter(m, t.requires_grad) if isinstance(t, nn.Parameter) else m
            for m, t in zip(made, kept, strict=True)
        ]
        self.model = copy.deepcopy(model, {id(t): m for t, m in zip(kept, made, strict=True)})
        self._back = {id(m): t for m, t in zip(made, kept, strict=True)}
        self._made = made  # they are known by their identity

    def real(self, layers: Sequence[nn.Module]) -> list[nn.Module]:
        found = [copy.deepcopy(layer, dict(self._back)) for layer in layers]
        for layer in found:
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                if isinstance(tensor, FakeTensor):
                    raise LookupError(f"{name} has values that a trace without weights does not know")
        return found


def outline(layer: Any, mode: FakeTensorMode, dtype: str) -> Callable[[Value], Value]:
    """A layer as a function of tensors without data: what is done can be counted, nothing is computed."""
    kind = torch_dtype(dtype)
    made: Callable[[Value], Value] = Shadow(layer, mode, kind).model
    if isinstance(made, Segment):
        made.retype(torch.device("cpu"), kind)

    def run(value: Value) -> Value:
        with torch.inference_mode():
            return made(value)

    return run


def _try(model: nn.Module, chain: Chain) -> None:
    """Run the model once: what is wrong with its inputs is told better by itself than by a tracer."""
    given = chain.inputs(2, "torch.float32")
    try:
        with torch.inference_mode():
            model(*given) if isinstance(given, tuple) else model(given)
    except Exception as error:
        shapes = " and ".join("x".join(map(str, shape)) or "1" for shape in chain.shapes)
        raise InputError(f"{chain.name}: does not run on items of {shapes}: {one_line(error)}") from error


def _place(error: BaseException) -> str:
    """Where in the model's own code a tracer stopped: the last frame that is neither a library's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name})" if own else ""


@contextmanager
def _silent() -> Iterator[None]:
    """Tracers log and print at length what they cannot trace; the error says it in a line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def flat(nested: Any, kind: type) -> list[Any]:
    """The tensors (or nodes) in a nested result, in order.

    >>> flat({"logits": 1, "states": (2, [3, None])}, int)
    [1, 2, 3]
    """
    if isinstance(nested, kind):
        return [nested]
    items = list(nested.values()) if isinstance(nested, dict) else nested
    return [found for item in items for found in flat(item, kind)] if isinstance(items, list | tuple) else []


def _symbolic(model: nn.Module, chain: Chain) -> fx.GraphModule:
    return fx.symbolic_trace(model)


def _exported(model: nn.Module, chain: Chain) -> fx.GraphModule:
    value = chain.inputs(2, "torch.float32")
    args = value if isinstance(value, tuple) else (value,)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, args, dynamic_shapes=tuple({0: batch} for _ in args), strict=False)
    try:
        traced = program.module(check_guards=False)  # a guard would be a node without a tensor
    except TypeError:  # an older torch has no guards to leave out
        traced = program.module()
    assert isinstance(traced, fx.GraphModule)
    return traced


def _agreement(model: nn.Module, layers: Sequence[nn.Module], chain: Chain) -> Literal["equal", "close", "none"]:
    """How the layers' results compare with the model's own: bit by bit, or but for rounding."""
    value = given = chain.inputs(3, "torch.float32", seed=2)
    with torch.inference_mode():
        for layer in layers:
            value = layer(value)
        whole = flat(model(*given) if isinstance(given, tuple) else model(given), torch.Tensor)
    found = flat(value, torch.Tensor)
    if len(found) != len(whole):
        return "none"
    if all(map(torch.equal, found, whole)):
        return "equal"
    near = all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(found, whole, strict=True))
    return "close" if near else "none"


def _cut(module: fx.GraphModule, chain: Chain) -> tuple[list[nn.Module], list[str]]:
    pieces = GraphPieces(module, (chain.inputs(2, "torch.float32", seed=0), chain.inputs(3, "torch.float32", seed=1)))
    nodes = pieces.nodes[:-1]  # the last one is the output
    inputs = [node for node in nodes if node.op == "placeholder"]
    begin = max(map(nodes.index, inputs), default=-1)
    alive = [pieces.alive(i) if i >= begin else None for i in range(len(nodes))]
    counts = [len(live) if live is not None and len(live) <= MOST_ALIVE else None for live in alive]
    work = pieces.work()[:-1]
    cuts = choose_cuts(counts, work)
    ends = [inputs, *(alive[cut] or [] for cut in cuts), flat(pieces.nodes[-1].args, fx.Node)]
    layers: list[nn.Module] = []
    names = []
    for number, (before, last) in enumerate(zip([-1, *cuts], [*cuts, len(nodes) - 1], strict=True)):
        layers.append(pieces.segment(before + 1, last, ends[number], ends[number + 1]))
        names.append(_name(nodes[before + 1 : last + 1], work[before + 1 : last + 1]))
    return layers, names


def _name(nodes: Sequence[fx.Node], work: Sequence[float]) -> str:
    """The module that most of the work is in."""
    heavy = [node for node, share in zip(nodes, work, strict=True) if share >= 0.25 * max(work)]
    paths = [_module(node).removeprefix("model.").split(".") for node in heavy]
    shared = [steps[0] for steps in takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False))]
    return ".".join(shared or paths[0])


def _module(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else node.name
