"""Derivatives of a batched function, chunk by chunk over the devices: products with vectors and whole Jacobians, by
inputs and by parameters.

What has rows is put together again along them. What has none is the same in every chunk and passed through, or, where
it collects something from all rows (the cotangent of a global parameter), it is the sum over the chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.core.errors import InputError, did_you_mean
from dovetail.dispatch.derivatives.call import Call, Outputs, Wrt
from dovetail.dispatch.derivatives.chunk_task import DerivativeTask, Kind, together
from dovetail.dispatch.derivatives.torch_func import prepare
from dovetail.dispatch.inputs.devices import resolve
from dovetail.dispatch.live.dispatcher import Dispatcher
from dovetail.dispatch.live.replicas import Replicas
from dovetail.dispatch.live.tuning_cache import cache_folder, function_name


class Derivatives:
    """A function and its derivatives over any devices; options are those of a Dispatcher.

    `inputs` is what the function takes: a tensor or nested tensors; a tuple holds several arguments. Parameters are
    those of a module, or `parameters`, which a plain function gets as keyword `parameters`. Those named in `batched`
    have one value per row, the others are the same for all rows.

    >>> import torch
    >>> with Derivatives(torch.sin, ["cpu"], sizes=[2]) as sine:
    ...     sine.jacobian(torch.zeros(5, 1)).flatten().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        function: Any,
        devices: Any = "cpu",
        *,
        parameters: Mapping[str, Any] | None = None,
        batched: Collection[str] = (),
        dim: int = 0,
        **options: Any,
    ) -> None:

        prepare()
        self._replicas = Replicas(function) if isinstance(function, torch.nn.Module) else None
        self._function = function
        self.parameters = dict(parameters or {})
        self.batched = tuple(batched)
        self.dim = dim
        self._devices, self._options = devices, options
        self._dispatchers: dict[Any, Any] = {}
        self._known: dict[Any, Outputs] = {}
        for name in self.batched:
            if name not in self.named_parameters():
                raise InputError(f"no parameter is called {name!r}{did_you_mean(name, self.named_parameters())}")

    def __enter__(self) -> Derivatives:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers."""
        for dispatcher in self._dispatchers.values():
            dispatcher.close()
        self._dispatchers.clear()

    def named_parameters(self) -> dict[str, Any]:
        """All parameters by name, as they are now."""
        own = {} if self._replicas is None else dict(self._replicas.master.named_parameters())
        return own | self.parameters

    def value(self, inputs: Any) -> Any:
        """The function itself."""
        return self._dispatcher(self._task("value"), reduce=None).run(self._call(inputs).work())

    def jvp(self, inputs: Any, tangents: Any) -> tuple[Any, Any]:
        """The outputs, and their tangents for these tangents of the inputs (of the same structure and shapes)."""
        call = self._call(inputs)
        outputs = self._outputs(call)
        found = self._chunks("jvp", call, call.inputs(), outputs, call.tangents(tangents))
        values, pushed = found[: len(outputs.axes)], found[len(outputs.axes) :]
        return outputs.joined(values), outputs.joined(pushed)

    def vjp(self, inputs: Any, cotangents: Any) -> tuple[Any, Any]:
        """The outputs, and the cotangents of the inputs for these cotangents of the outputs.

        An input that is the same for all rows gets the sum over them.
        """
        call = self._call(inputs)
        values, pulled = self._pulled(call, call.inputs(), cotangents)
        return values, call.like_inputs(pulled)

    def parameter_vjp(self, inputs: Any, cotangents: Any) -> tuple[Any, dict[str, Any]]:
        """The outputs, and by parameter its cotangent: per row if it is batched, the sum over all rows otherwise."""
        call = self._call(inputs)
        by = call.parameters(self.named_parameters())
        values, pulled = self._pulled(call, by, cotangents)
        return values, dict(zip(map(str, by.names), pulled, strict=True))

    def jacobian(self, inputs: Any) -> Any:
        """Blocks by output and input: in the outputs' structure, for each, the inputs' structure.

        A block is shaped like the output, then like one row of the input; the rows lie where the output has them. A
        block of an output and an input without rows has none, and is the same for the whole batch.
        """
        call = self._call(inputs)
        outputs, blocks = self._blocks(call, call.inputs())
        return outputs.structured([call.like_inputs(of_output) for of_output in blocks])

    def parameter_jacobian(self, inputs: Any) -> Any:
        """Blocks by output and parameter: in the outputs' structure, for each, a dictionary by parameter."""
        call = self._call(inputs)
        by = call.parameters(self.named_parameters())
        outputs, blocks = self._blocks(call, by)
        return outputs.structured([dict(zip(by.names, of_output, strict=True)) for of_output in blocks])

    def _call(self, inputs: Any) -> Call:
        given = self.named_parameters()
        return Call(inputs, {name: given[name] for name in self.batched}, self.dim)

    def _pulled(self, call: Call, by: Wrt, cotangents: Any) -> tuple[Any, list[Any]]:
        outputs = self._outputs(call)
        found = self._chunks("vjp", call, by, outputs, outputs.cotangents(cotangents, self.dim))
        values, pulled = found[: len(outputs.axes)], found[len(outputs.axes) :]
        return outputs.joined(values), [
            together(parts, axis, add=True) for parts, axis in zip(pulled, by.axes, strict=True)
        ]

    def _blocks(self, call: Call, by: Wrt) -> tuple[Outputs, list[list[Any]]]:
        outputs = self._outputs(call)
        found = iter(self._chunks("jacobian", call, by, outputs))
        return outputs, [
            [by.shaped(together(next(found), axis), i) for i in range(len(by.names))] for axis in outputs.axes
        ]

    def _chunks(self, kind: Kind, call: Call, by: Wrt, outputs: Outputs, vectors: Sequence[Any] = ()) -> list[Any]:
        """What each of a task's results is in every chunk."""
        task = self._task(kind, by.names, by.axes, outputs.axes)
        chunks = self._dispatcher(task, reduce=list).run(call.work(vectors))
        return list(zip(*([tensor.to(call.home) for tensor in chunk] for chunk in chunks), strict=True))

    def _task(self, kind: Kind, *details: Any) -> DerivativeTask:
        several = not isinstance(self._devices, str) and len(self._devices) > 1
        alone = self._options.get("backend", "thread") != "thread" or not (several or "pool" in self._options)
        function = self._replicas or self._function
        return DerivativeTask(function, self.parameters, self.batched, kind, self.dim, *details, alone=alone)

    def _dispatcher(self, task: DerivativeTask, reduce: Any) -> Any:

        key = task.kind, task.names, task.axes, task.out_axes
        if key not in self._dispatchers:
            options = self._options | {"cache": self._cache(task)}
            self._dispatchers[key] = Dispatcher(task, self._devices, dim=self.dim, reduce=reduce, **options)
        return self._dispatchers[key]

    def _cache(self, task: DerivativeTask) -> Any:
        """Each kind of derivative has its own speed: its curves are kept apart."""
        given = self._options.get("cache", True)
        if given is False:
            return False
        kind = f"{task.kind}-{'parameters' if any(isinstance(name, str) for name in task.names) else 'inputs'}"
        return (cache_folder() if given is True else Path(given)) / kind / function_name(self._function)

    def _outputs(self, call: Call) -> Outputs:
        """Where the outputs have their rows: found once for inputs of these shapes, by calling with one row and two."""
        if call.signature not in self._known:
            device = resolve(self._devices)[0]
            function = self._task("value").on(device)
            self._known[call.signature] = call.probe(function, device)
        return self._known[call.signature]
