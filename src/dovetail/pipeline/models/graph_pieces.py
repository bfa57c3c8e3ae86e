"""A traced graph and its pieces: what is alive between two operations, and a range of operations as a layer."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value

_PLAIN = (str, float, bool, type(None), torch.dtype, torch.device)


class Segment(nn.Module):
    """A piece of a graph as a layer: takes and gives one tensor, or a tuple of those alive at its ends."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, value: Value) -> Value:
        out: Value = self.graph(*value) if isinstance(value, tuple) else self.graph(value)
        return out

    def placed(self, device: torch.device, dtype: torch.dtype) -> Segment:
        """A copy for a device and dtype: a graph also holds those that it was traced with, as constants."""
        if device.type == "cpu" and dtype is torch.float32:
            return self
        made = copy.deepcopy(self)
        made.retype(device, dtype)
        return made.to(device=device, dtype=dtype).eval()

    def retype(self, device: torch.device, dtype: torch.dtype) -> None:
        """Change the device and the dtype that are constants of the graph."""

        def change(item: Any) -> Any:
            if isinstance(item, torch.device):
                return device
            if isinstance(item, str) and item == "cpu":
                return device.type
            return dtype if item is torch.float32 else item

        for module in self.modules():
            if isinstance(module, fx.GraphModule):
                for node in module.graph.nodes:
                    node.args, node.kwargs = _changed(node.args, change), _changed(node.kwargs, change)
                module.recompile()


def _changed(args: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(args, dict):
        return {key: _changed(value, change) for key, value in args.items()}
    if isinstance(args, tuple | list):
        return type(args)(_changed(item, change) for item in args)
    return change(args)


class _Shape(tuple[int, ...]):
    """The shape of a tensor; its own type, because a model may also compute with shapes."""


class _Observer(fx.Interpreter):
    """Runs a graph and notes of every value its shape (or, if it is no tensor, the value), and its cost."""

    def __init__(self, module: fx.GraphModule, value: Value) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Any] = {}
        self.flops: dict[fx.Node, int] = {}
        with torch.inference_mode():
            self.run(*(value if isinstance(value, tuple) else (value,)))

    def run_node(self, n: fx.Node) -> Any:
        with FlopCounterMode(display=False) as counter:
            result = super().run_node(n)
        self.flops[n] = counter.get_total_flops()
        self.seen[n] = _described(result)
        return result


def _described(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return _Shape(result.shape)
    return tuple(map(_described, result)) if isinstance(result, tuple | list) else result


class GraphPieces:
    """A graph that was run with inputs of two batch sizes: what differs between the runs follows the batch."""

    def __init__(self, module: fx.GraphModule, inputs: tuple[Value, Value]) -> None:
        self.module = module
        self.nodes = [node for node in module.graph.nodes if "_assert_tensor_metadata" not in str(node.target)]
        one, two = (_Observer(module, value) for value in inputs)
        self._runs = (one.seen, two.seen)
        self._flops = one.flops
        self._free: set[fx.Node] = set()
        for node in self.nodes:
            if self._is_free(node):
                self._free.add(node)
        place = {node: i for i, node in enumerate(self.nodes)}
        users = {node: [place[user] for user in node.users if user in place] for node in self.nodes}
        self._last_use = {node: max(places, default=-1) for node, places in users.items()}
        for node in reversed(self.nodes):
            if node in self._free:  # what it reads must be there wherever it is made again
                for source in node.all_input_nodes:
                    self._last_use[source] = max(self._last_use[source], self._last_use[node])

    def _is_free(self, node: fx.Node) -> bool:
        """Whether it needs no data: a weight, or made of weights and sizes. It is made again where it is used."""
        if node.op not in ("get_attr", "call_function", "call_method"):
            return False
        if any(map(_changes_in_place, [node, *node.users])):
            return False
        if node.op != "get_attr" and not self._has_tensors(node):
            return False  # a number: said by sizes instead
        return all(source in self._free for source in node.all_input_nodes if self._has_tensors(source))

    def _has_tensors(self, node: fx.Node) -> bool:
        seen = self._runs[0].get(node)
        return isinstance(seen, _Shape) or (isinstance(seen, tuple) and any(isinstance(x, _Shape) for x in seen))

    def _is_tensor(self, node: fx.Node) -> bool:
        return isinstance(self._runs[0].get(node), _Shape)

    def alive(self, position: int) -> list[fx.Node] | None:
        """The tensors that cross the cut after a node; None if something else would have to."""
        nodes = self.nodes[: position + 1]
        crossing = [node for node in nodes if self._last_use[node] > position and node not in self._free]
        tensors = [node for node in crossing if self._is_tensor(node)]
        graph = fx.Graph()
        env = {node: graph.placeholder(node.name) for node in tensors}
        try:
            for node in crossing:
                if node not in env:
                    self._from_sizes(self._runs[0][node], self._runs[1][node], env, graph)
        except LookupError:
            return None
        return tensors or None

    def _from_sizes(self, one: Any, two: Any, env: dict[fx.Node, fx.Node], graph: fx.Graph) -> Any:
        """What is no tensor, said again by the sizes of tensors that are there."""
        if isinstance(one, tuple) and isinstance(two, tuple) and not isinstance(one, _Shape) and len(one) == len(two):
            return tuple(self._from_sizes(a, b, env, graph) for a, b in zip(one, two, strict=True))
        if isinstance(one, (int, *_PLAIN)) and one == two:
            return one
        if isinstance(one, int) and isinstance(two, int):
            for node, tensor in env.items():
                for dim, (a, b) in enumerate(zip(self._runs[0][node], self._runs[1][node], strict=True)):
                    if a not in (b, 0) and one % a == 0 and one // a * b == two:
                        size = graph.call_method("size", (tensor, dim))
                        return size if one == a else graph.call_function(operator.mul, (size, one // a))
        raise LookupError(one)

    def segment(self, first: int, last: int, entering: Sequence[fx.Node], leaving: Sequence[fx.Node]) -> Segment:
        """The nodes first..last as a layer."""
        graph = fx.Graph()
        env = {node: graph.placeholder(node.name) for node in entering}
        made: dict[fx.Node, Any] = dict(env)

        def get(node: fx.Node) -> Any:
            if node not in made:
                if node in self._free:
                    made[node] = graph.node_copy(node, get)
                else:
                    made[node] = self._from_sizes(self._runs[0][node], self._runs[1][node], env, graph)
            return made[node]

        for node in self.nodes[first : last + 1]:
            if node.op not in ("placeholder", "output") and node not in self._free:
                made[node] = graph.node_copy(node, get)
        out = tuple(get(node) for node in leaving)
        graph.output(out[0] if len(out) == 1 else out)
        return Segment(fx.GraphModule(self.module, graph))

    def work(self) -> list[float]:
        """The share of each node in the model's arithmetic and weights; a weight counts where it is used first."""
        values = dict.fromkeys(self.nodes, 0)
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        place = {node: i for i, node in enumerate(self.nodes)}
        for node in self.nodes:
            if node.op == "call_module":
                held = self.module.get_submodule(str(node.target)).parameters()
                values[node] += sum(tensor.numel() for tensor in held)
            elif node.op == "get_attr" and str(node.target) in tensors:
                users = [user for user in node.users if user in place]
                if users:
                    values[min(users, key=place.__getitem__)] += tensors[str(node.target)].numel()
        all_values, all_flops = sum(values.values()) or 1, sum(self._flops.values()) or 1
        return [values[node] / all_values + self._flops[node] / all_flops for node in self.nodes]


def _changes_in_place(node: fx.Node) -> bool:
    if node.target in (operator.setitem, operator.iadd, operator.imul):
        return True
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    return node.op in ("call_function", "call_method") and name.endswith("_") and not name.endswith("__")
