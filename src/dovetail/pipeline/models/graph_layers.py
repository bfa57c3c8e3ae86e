"""Any torch module as a chain of layers: traced into a graph, which is cut where few tensors are alive."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from dovetail.core.errors import InputError
from dovetail.pipeline.models.cuts import MOST_ALIVE, choose_cuts
from dovetail.pipeline.models.graph_pieces import GraphPieces
from dovetail.pipeline.models.spec import one_line

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Chain


def cut_graph(model: nn.Module, chain: Chain) -> tuple[list[nn.Module], list[str]]:
    """Trace a module and cut its graph; the layers, one after another, are checked against the module itself."""
    _try(model, chain)
    failures = []
    for trace in (_symbolic, _exported):
        try:
            with _silent():
                layers, names = _cut(trace(model, chain), chain)
            if _agree(model, layers, chain):
                return layers, names
            failures.append("what was traced computes something else")
        except Exception as error:  # a tracer raises whatever the model's code makes it raise
            first = str(error).strip().splitlines() or [type(error).__name__]
            failures.append(f"{trace.__name__[1:]} trace: {first[0]}")
    raise InputError(f"{chain.name}: cannot be cut into layers: {'; '.join(failures)}")


def _try(model: nn.Module, chain: Chain) -> None:
    """Run the model once: what is wrong with its inputs is told better by itself than by a tracer."""
    given = chain.inputs(2, "torch.float32")
    try:
        with torch.inference_mode():
            model(*given) if isinstance(given, tuple) else model(given)
    except Exception as error:
        shapes = " and ".join("x".join(map(str, shape)) or "1" for shape in chain.shapes)
        raise InputError(f"{chain.name}: does not run on items of {shapes}: {one_line(error)}") from error


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


def _agree(model: nn.Module, layers: Sequence[nn.Module], chain: Chain) -> bool:
    value = given = chain.inputs(3, "torch.float32", seed=2)
    with torch.inference_mode():
        for layer in layers:
            value = layer(value)
        whole = flat(model(*given) if isinstance(given, tuple) else model(given), torch.Tensor)
    found = flat(value, torch.Tensor)
    return len(found) == len(whole) and all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(found, whole, strict=True))


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
