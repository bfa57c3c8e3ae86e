"""What inputs of ComfyUI's nodes are set to: their own values, or those of the nodes that they come from."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail.workflow.inputs.importers.comfyui_files import ComfyGraph, ComfyNode
from dovetail.workflow.inputs.importers.comfyui_types import is_weights

_DEEPEST = 12
_MATH = re.compile("math|expression", re.IGNORECASE)
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "round": round,
    "int": int,
    "float": float,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
}


class ComfyValues:
    """The values of a graph. What would have to be run to be known is None."""

    def __init__(self, graph: ComfyGraph) -> None:
        self.graph = graph
        self._nearest: dict[tuple[Sequence[str], ...], dict[str, tuple[int, list[float]] | None]] = {}

    def of(self, node: ComfyNode, name: str, deep: int = 0) -> Any:
        link = next((link for link in self.graph.into[node.id] if link.input == name), None)
        if link is None:
            return node.values.get(name)
        source = self.graph.nodes[link.source]
        into = self.graph.into[source.id]
        if deep > _DEEPEST:
            return None
        if branch := self._branch(source, deep):
            return self.of(source, branch, deep + 1)
        if not into:
            plain = [value for value in source.listed if isinstance(value, int | float | str)]
            return source.values.get("value", plain[0] if len(plain) == 1 else None)
        text = next((value for value in source.listed if isinstance(value, str)), "")
        if not _MATH.search(source.type):
            return None
        return computed(text, {one.input.rsplit(".")[-1]: self.of(source, one.input, deep + 1) for one in into})

    def _branch(self, node: ComfyNode, deep: int = 0) -> str:
        """The input that a switch takes; ComfyUI does not run the other."""
        given = {link.input for link in self.graph.into[node.id]}
        if not given & {"on_true", "on_false"}:
            return ""
        told = self.of(node, "switch", deep + 1)
        if told is None and "switch" not in given:
            told = next((value for value in node.listed if isinstance(value, bool)), None)
        return f"on_{str(told).lower()}" if isinstance(told, bool) else ""

    def chosen(self) -> ComfyGraph:
        """The graph without the branches that its switches do not take."""
        taken = {node.id: self._branch(node) for node in self.graph.nodes.values()}
        links = [
            link
            for link in self.graph.links
            if not taken[link.target] or link.input not in ("on_true", "on_false") or link.input == taken[link.target]
        ]
        graph = self.graph
        return ComfyGraph(graph.path, graph.nodes, links, graph.notes, graph.off)

    def number(self, node: ComfyNode, names: Iterable[str]) -> float | None:
        values = (self.of(node, name) for name in names)
        plain = (value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
        return next((float(value) for value in plain if 0 < value < 1e6), None)

    def nearest(self, node: ComfyNode, *names: Sequence[str]) -> list[float] | None:
        """Numbers that the node or the nearest node before it has, all of them."""
        if names not in self._nearest:
            self._nearest[names] = self._look_back(names)
        found = self._nearest[names][node.id]
        return None if found is None else found[1]

    def _look_back(self, names: Sequence[Sequence[str]]) -> dict[str, tuple[int, list[float]] | None]:
        """For each node, how far away such numbers are, and which."""
        found: dict[str, tuple[int, list[float]] | None] = {}
        for node in self.graph.order():
            own = [self.number(self.graph.nodes[node], alike) for alike in names]
            told = [number for number in own if number is not None]
            links = (link for link in self.graph.into[node] if not is_weights(link.type) or link.type == "GUIDER")
            before = [one for link in links if (one := found[link.source]) is not None]
            if len(told) == len(names):
                found[node] = 0, told
            else:
                near = min(before, key=lambda one: one[0], default=None)
                found[node] = None if near is None else (near[0] + 1, near[1])
        return found


def computed(text: str, given: Mapping[str, Any]) -> float | None:
    """The value of an expression over named numbers; None where it is something else.

    >>> computed("max(5, round(a * 16)) + 1", {"a": 5.0}), computed("a.b()", {"a": 1})
    (81, None)
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                return given[name]
            case ast.UnaryOp(op=op, operand=one):
                return _OPERATORS[type(op)](value(one))
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return _FUNCTIONS[name](*map(value, args))
        raise ValueError(node)

    try:
        found = value(ast.parse(text.strip(), mode="eval").body)
    except (ArithmeticError, KeyError, RecursionError, SyntaxError, TypeError, ValueError, MemoryError):
        return None
    return found if isinstance(found, int | float) and math.isfinite(found) else None
