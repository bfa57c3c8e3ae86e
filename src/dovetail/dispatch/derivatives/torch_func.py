"""Derivatives of one chunk whose rows are independent of each other, on torch.func.

A block of a Jacobian has the shape of the output followed by that of one row of the input: rows never mix, so one
tangent (or cotangent) put into every row at once gives a column (or row) of all their blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from math import prod
from threading import Condition
from typing import Any

import torch
from torch import func

from dovetail.core.errors import InputError

Axes = Sequence[int | None]  # by leaf: along which axis its rows lie; None if it has none
Function = Callable[..., tuple[Any, ...]]


@cache
def prepare() -> None:
    """Load what torch loads at the first derivative, without its warning about its own old means."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._decomp.decompositions_for_jvp")


class _Level:
    """Forward mode in several threads. torch has one level of dual numbers for all of them, and forgets all tangents
    when it is left: `torch.func.jvp` in two threads at once fails for that.

    So threads that `share` it leave it open until the last of them is done; who needs it `alone` waits for them.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._users = 0  # -1: one alone

    @contextmanager
    def share(self) -> Iterator[None]:
        forward: Any = import_module("torch.autograd.forward_ad")
        with self._changed:
            self._changed.wait_for(lambda: self._users >= 0)
            self._users += 1
            if self._users == 1:
                forward.enter_dual_level()
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    forward.exit_dual_level()
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
            self._users = -1
        try:
            yield
        finally:
            with self._changed:
                self._users = 0
                self._changed.notify_all()


_level = _Level()


def jvp(call: Function, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The outputs and their tangents."""
    forward: Any = import_module("torch.autograd.forward_ad")
    with _level.share():
        duals = [forward.make_dual(x, tangent) for x, tangent in zip(inputs, tangents, strict=True)]
        found = [forward.unpack_dual(y) for y in call(*duals)]
        pushed = [torch.zeros_like(value) if tangent is None else tangent for value, tangent in found]
    return tuple(value for value, _ in found), tuple(pushed)


def vjp(call: Function, inputs: Sequence[Any], cotangents: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The outputs, and the inputs' cotangents."""
    found: Any = func.vjp(call, *inputs)
    return found[0], found[1](tuple(cotangents))


def jacobian(
    call: Function, inputs: Sequence[Any], axes: Axes, out_axes: Axes, *, alone: bool = True
) -> list[list[Any]]:
    """Blocks by output and input. Columns or rows are computed, whichever are fewer; `alone`: by one thread only.

    An output without rows can only depend on inputs without rows; its other blocks are zero.
    """
    outputs = call(*inputs)
    rows = next((y.shape[axis] for y, axis in zip(outputs, out_axes, strict=True) if axis is not None), 1)
    mixed = any(axis is None for axis in axes)
    columns = sum(prod(base(x, axis)) for x, axis in zip(inputs, axes, strict=True))
    pulls = sum(
        prod(base(y, axis)) * (rows if mixed and axis is not None else 1)
        for y, axis in zip(outputs, out_axes, strict=True)
    )
    blocks = None
    if columns < pulls or not rows:
        with suppress(NotImplementedError):  # an operation without forward derivative
            blocks = _by_columns(call, inputs, axes, outputs, alone)
    blocks = blocks or _by_rows(call, inputs, axes, out_axes, rows)
    for of_output, out_axis in zip(blocks, out_axes, strict=True):
        by_rows = [block for block, axis in zip(of_output, axes, strict=True) if axis is not None]
        if out_axis is None and any(bool(block.any()) for block in by_rows):
            raise InputError("an output without batch dimension depends on the rows of an input; it cannot be divided")
    return blocks


def base(tensor: Any, axis: int | None) -> tuple[int, ...]:
    """The shape of one row."""
    shape = tuple(tensor.shape)
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


def _basis(tensor: Any, axis: int | None) -> Any:
    """Unit vectors of a row's shape, each in all the rows at once: as many as a row has elements, stacked in front."""
    shape = base(tensor, axis)
    units = torch.eye(prod(shape), dtype=tensor.dtype, device=tensor.device).reshape(-1, *shape)
    return units if axis is None else units.unsqueeze(axis + 1).expand(-1, *tensor.shape)


def _by_columns(
    call: Function, inputs: Sequence[Any], axes: Axes, outputs: Sequence[Any], alone: bool = True
) -> list[list[Any]]:
    """Forward mode: a column is the outputs' change with one element of the input, in all rows.

    All columns at once are up to twice as fast, but that way works in one thread at a time.
    """
    blocks: list[list[Any]] = [[] for _ in outputs]
    still = [torch.zeros_like(x) for x in inputs]
    for i, (x, axis) in enumerate(zip(inputs, axes, strict=True)):

        def push(tangent: Any, i: int = i) -> Any:
            tangents = (*still[:i], tangent, *still[i + 1 :])
            return func.jvp(call, tuple(inputs), tangents)[1] if alone else jvp(call, inputs, tangents)[1]

        if alone:
            with _level.alone():
                columns = func.vmap(push)(_basis(x, axis))
        else:
            columns = [torch.stack(found) for found in zip(*map(push, _basis(x, axis)), strict=True)]
        for of_output, y, column in zip(blocks, outputs, columns, strict=True):
            of_output.append(column.movedim(0, -1).reshape((*y.shape, *base(x, axis))))
    return blocks


def _by_rows(call: Function, inputs: Sequence[Any], axes: Axes, out_axes: Axes, rows: int) -> list[list[Any]]:
    """Reverse mode: how one element of the output depends on all inputs, in all rows; the function runs only once."""
    found: Any = func.vjp(call, *inputs)
    outputs, pull = found
    none = [torch.zeros_like(y) for y in outputs]
    blocks = []
    for o, (y, out_axis) in enumerate(zip(outputs, out_axes, strict=True)):

        def back(cotangent: Any, o: int = o) -> Any:
            return pull((*none[:o], cotangent, *none[o + 1 :]))

        units = _basis(y, out_axis)
        of_output: list[Any] = [None] * len(inputs)
        if out_axis is not None and any(axis is None for axis in axes):
            # An input without rows is met by all rows: each has to be asked alone.
            each = torch.eye(rows, dtype=y.dtype, device=y.device)
            each = each.reshape(rows, 1, *[rows if d == out_axis else 1 for d in range(y.ndim)])
            alone = func.vmap(back)((units * each).reshape(-1, *y.shape))
            for i, axis in enumerate(axes):
                if axis is None:
                    of_output[i] = _placed(alone[i].reshape(rows, len(units), *alone[i].shape[1:]), y, out_axis)
        together = func.vmap(back)(units)
        for i, axis in enumerate(axes):
            if axis is not None and out_axis is not None:
                of_output[i] = _placed(together[i].movedim(axis + 1, 0), y, out_axis)
            elif out_axis is None:
                whole = together[i] if axis is None else together[i].sum(axis + 1)
                of_output[i] = whole.reshape((*y.shape, *whole.shape[1:]))
        blocks.append(of_output)
    return blocks


def _placed(block: Any, output: Any, out_axis: int) -> Any:
    """From (row, element of the output, input's row) to the output's own shape, then the input's."""
    shaped = block.reshape((block.shape[0], *base(output, out_axis), *block.shape[2:]))
    return shaped.movedim(0, out_axis)
