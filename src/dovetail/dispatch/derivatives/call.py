"""One call of a differentiated function: its inputs, with rows or without, and the structure of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from dovetail.core.errors import InputError
from dovetail.dispatch.derivatives.chunk_task import Axis, kept_whole, together
from dovetail.dispatch.live.replicas import where_of


class Outputs(NamedTuple):
    """The outputs' structure, and where each of them has its rows."""

    spec: Any
    axes: tuple[Axis, ...]

    def structured(self, leaves: Sequence[Any]) -> Any:

        return pytree.tree_unflatten(list(leaves), self.spec)

    def joined(self, found: Sequence[Sequence[Any]]) -> Any:
        """The outputs from their chunks."""
        return self.structured([together(parts, axis) for parts, axis in zip(found, self.axes, strict=True)])

    def cotangents(self, given: Any, dim: int) -> list[Any]:
        leaves = _leaves_like(self.spec, given, "cotangents", "the outputs")
        return [c if axis is not None else kept_whole(c, dim) for c, axis in zip(leaves, self.axes, strict=True)]


class Wrt(NamedTuple):
    """What to differentiate by: leaves of the inputs by number, or parameters by name."""

    names: tuple[int | str, ...]
    axes: tuple[Axis, ...]
    single: tuple[
        Axis, ...
    ]  # the batch dimension of those that have it with size 1, for all rows; it is no part of a row
    dims: tuple[int, ...]

    def shaped(self, block: Any, i: int) -> Any:
        """A block without the batch dimension of an input that is the same for all rows."""
        single = self.single[i]
        return block if single is None else block.squeeze(block.ndim - self.dims[i] + single)


class Call:
    """What a function is called with, cut into chunks along `dim`; a tuple of inputs holds several arguments."""

    def __init__(self, inputs: Any, batched: Mapping[str, Any], dim: int) -> None:

        self.several = isinstance(inputs, tuple)
        self.args = inputs if self.several else (inputs,)
        self.batched = dict(batched)
        self.dim = dim
        self.leaves, self.spec = pytree.tree_flatten(self.args)
        tensors = [leaf for leaf in (*self.leaves, *self.batched.values()) if isinstance(leaf, torch.Tensor)]
        self.rows = rows_of(tensors, dim)
        self.home = tensors[0].device
        self.axes = [axis_of(leaf, dim, self.rows) for leaf in self.leaves]
        for name, tensor in self.batched.items():
            if axis_of(tensor, dim, self.rows) is None:
                found = tuple(tensor.shape)
                raise InputError(
                    f"parameter {name}: found shape {found}, expected {self.rows} rows along dimension {dim}"
                )

    @property
    def signature(self) -> Any:
        """The same for inputs that differ only in values and in the number of rows."""
        shapes = [
            (_row_shape(leaf, axis), leaf.dtype) if hasattr(leaf, "dtype") else leaf
            for leaf, axis in zip(self.leaves, self.axes, strict=True)
        ]
        return str((self.spec, shapes, self.rows if self.rows < 2 else "many"))

    def work(self, vectors: Sequence[Any] = ()) -> dict[str, Any]:
        """What a Dispatcher cuts into chunks."""
        first = torch.zeros(self.rows)
        first[:1] = 1
        first = first.reshape([1] * self.dim + [-1] if self.dim >= 0 else [-1] + [1] * (-self.dim - 1))
        return {"args": self.args, "parameters": self.batched, "direction": list(vectors), "first": first}

    def inputs(self) -> Wrt:
        """All leaves of the inputs that can be differentiated by."""
        chosen = [i for i, leaf in enumerate(self.leaves) if _differentiable(leaf)]
        axes = tuple(self.axes[i] for i in chosen)
        single = tuple(axis_of(self.leaves[i], self.dim, 1) if self.axes[i] is None else None for i in chosen)
        return Wrt(tuple(chosen), axes, single, tuple(self.leaves[i].ndim for i in chosen))

    def parameters(self, given: Mapping[str, Any]) -> Wrt:
        """All parameters that can be differentiated by."""
        chosen = {name: tensor for name, tensor in given.items() if _differentiable(tensor)}
        if not chosen:
            raise InputError("the function has no parameters; expected a module that has some, or `parameters`")
        axes = [axis_of(t, self.dim, self.rows) if name in self.batched else None for name, t in chosen.items()]
        names = tuple(chosen)
        return Wrt(names, tuple(axes), (None,) * len(names), tuple(t.ndim for t in chosen.values()))

    def tangents(self, given: Any) -> list[Any]:
        """The tangents of what can be differentiated by."""
        leaves = _leaves_like(self.spec, given if self.several else (given,), "tangents", "the inputs")
        chosen = self.inputs().names
        for i in chosen:
            if leaves[int(i)].shape != self.leaves[int(i)].shape:
                found, expected = tuple(leaves[int(i)].shape), tuple(self.leaves[int(i)].shape)
                raise InputError(f"tangents, leaf {i}: found shape {found}, expected that of the input, {expected}")
        return [leaves[int(i)] for i in chosen]

    def like_inputs(self, found: Sequence[Any]) -> Any:
        """Results by input in the inputs' structure; None where an input cannot be differentiated by."""
        by_leaf = dict(zip(self.inputs().names, found, strict=True))
        nested = pytree.tree_unflatten([by_leaf.get(i) for i in range(len(self.leaves))], self.spec)
        return nested if self.several else nested[0]

    def probe(self, function: Callable[[dict[str, Any]], Any], device: Any) -> Outputs:
        """Where the outputs have their rows: the axis along which two rows give more than one row."""
        sizes = (1, 2) if self.rows >= 2 else (self.rows,)
        found = [pytree.tree_flatten(function(self._part(n, where_of(device)))) for n in sizes]
        leaves, spec = found[-1]
        for leaf in leaves:
            if not hasattr(leaf, "shape"):
                raise InputError(f"the function's outputs: found {type(leaf).__name__}, expected tensors")
        axes = [axis_of(leaf, self.dim, sizes[-1]) for leaf in leaves]
        if len(sizes) == 2:
            few = found[0][0]
            axes = [axis if x.shape != y.shape else None for axis, x, y in zip(axes, few, leaves, strict=True)]
        return Outputs(spec, tuple(axes))

    def _part(self, rows: int, where: str) -> dict[str, Any]:
        """The first rows, on a device."""

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            axis = axis_of(leaf, self.dim, self.rows)
            return (leaf if axis is None else leaf.narrow(axis, 0, rows)).to(where)

        return {"args": pytree.tree_map(cut, self.args), "parameters": pytree.tree_map(cut, self.batched)}


def rows_of(tensors: Sequence[Any], dim: int) -> int:
    """How many rows there are: the size along `dim` of those tensors that have it, and not with size 1.

    >>> import torch
    >>> rows_of([torch.zeros(5, 3), torch.zeros(1, 3), torch.tensor(1.0)], dim=0)
    5
    """
    sizes = {tensor.shape[dim] for tensor in tensors if -tensor.ndim <= dim < tensor.ndim}
    if not sizes:
        raise InputError(f"no input has a dimension {dim}; expected at least one with rows along it")
    return 0 if 0 in sizes else int(max(sizes))


def axis_of(leaf: Any, dim: int, rows: int) -> Axis:
    """Along which axis a leaf has that many rows; None if it has not."""
    ndim = getattr(leaf, "ndim", 0)
    return dim % ndim if -ndim <= dim < ndim and leaf.shape[dim] == rows else None


def _row_shape(leaf: Any, axis: Axis) -> tuple[int, ...]:
    return tuple(-1 if d == axis else size for d, size in enumerate(leaf.shape))


def _differentiable(leaf: Any) -> bool:

    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _leaves_like(spec: Any, given: Any, what: str, like: str) -> list[Any]:

    leaves, found = pytree.tree_flatten(given)
    if found != spec:
        raise InputError(f"{what}: found the structure {found}, expected that of {like}, {spec}")
    return list(leaves)
