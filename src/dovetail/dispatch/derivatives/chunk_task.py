"""What a device does with one chunk to differentiate it, and how the chunks' results are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from dovetail.dispatch.derivatives import torch_func
from dovetail.dispatch.live.replicas import Mirror, Replicas

Kind = Literal["value", "jvp", "vjp", "jacobian"]
Axis = int | None  # along which axis a tensor has its rows; None if it has none


@dataclass(eq=False)
class DerivativeTask:
    """One kind of derivative of one function; a Dispatcher asks for it `on` each device when a run begins.

    A chunk is a dictionary: `args` and `parameters` (those with rows) to call the function with, `direction` (tangents
    or cotangents), and `first`, which is 1 in the first row of the whole batch and 0 in all others.
    """

    function: Replicas | Callable[..., Any]
    given: dict[str, Any]  # parameters that are not a module's own
    batched: tuple[str, ...]  # those that come with the chunk
    kind: Kind
    dim: int
    names: tuple[int | str, ...] = ()  # the inputs' leaves, or the parameters, to differentiate by
    axes: tuple[Axis, ...] = ()
    out_axes: tuple[Axis, ...] = ()
    alone: bool = field(default=True, kw_only=True)  # on one thread of this process
    _mirrors: dict[str, Mirror] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mirrors": {}}  # another process makes its own

    def on(self, device: Any) -> Callable[[dict[str, Any]], Any]:
        """The task with the function's and the parameters' copies on this device, up to date."""
        mirror = self._mirrors.setdefault(str(getattr(device, "name", device)), Mirror(device))
        mirror.begin()
        held = {name: mirror.here(tensor) for name, tensor in self.given.items() if name not in self.batched}
        function = self.function.copy_on(device) if isinstance(self.function, Replicas) else self.function
        return partial(self._chunk, function, held)

    def _chunk(self, function: Any, held: dict[str, Any], work: dict[str, Any]) -> Any:

        given = held | work["parameters"]
        if self.kind == "value":
            return evaluate(function, work["args"], given)
        leaves, spec = pytree.tree_flatten(work["args"])
        by_name = given if not hasattr(function, "named_parameters") else dict(function.named_parameters()) | given

        def call(*values: Any) -> tuple[Any, ...]:
            chosen = dict(zip(self.names, values, strict=True))
            args = pytree.tree_unflatten([chosen.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
            named = {name: tensor for name, tensor in chosen.items() if isinstance(name, str)}
            return tuple(pytree.tree_leaves(evaluate(function, args, given | named)))

        at = tuple(by_name[name] if isinstance(name, str) else leaves[name] for name in self.names)
        if self.kind == "jacobian":
            blocks = torch_func.jacobian(call, at, self.axes, self.out_axes, alone=self.alone)
            return tuple(block for of_output in blocks for block in of_output)
        if self.kind == "jvp":
            outputs, tangents = torch_func.jvp(call, at, work["direction"])
            return outputs + tangents
        outputs, cotangents = torch_func.vjp(call, at, self._cotangents(work))
        return outputs + cotangents

    def _cotangents(self, work: dict[str, Any]) -> list[Any]:
        """An output without rows is the same in every chunk: it must count once, in the chunk of the first row."""
        once = work["first"].sum()
        return [
            c if axis is not None else (restored(c, self.dim) * once).to(c.dtype)
            for c, axis in zip(work["direction"], self.out_axes, strict=True)
        ]


def evaluate(function: Any, args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
    """Call a module with other parameters, or a function with the keyword `parameters` if there are any."""
    if isinstance(function, torch.nn.Module):
        return torch.func.functional_call(function, parameters, args)
    return function(*args, parameters=parameters) if parameters else function(*args)


def kept_whole(tensor: Any, dim: int) -> Any:
    """The same values with size 1 along the batch dimension, so that no chunk gets only a part of them."""
    return tensor.unsqueeze(dim) if -tensor.ndim - 1 <= dim <= tensor.ndim else tensor


def restored(tensor: Any, dim: int) -> Any:
    """The inverse of `kept_whole`."""
    return tensor.squeeze(dim) if -tensor.ndim <= dim < tensor.ndim else tensor


def together(parts: Sequence[Any], axis: Axis, *, add: bool = False) -> Any:
    """What the chunks gave: joined along the rows; without rows, the sum or the one that all have."""
    if len(parts) == 1:
        return parts[0]
    if axis is not None:
        return torch.cat(list(parts), dim=axis)
    return torch.stack(list(parts)).sum(0) if add else parts[0]
