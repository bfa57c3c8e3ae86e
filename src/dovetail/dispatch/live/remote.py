"""The other end of a device that is not in this process: it gets a run's function, then does chunk after chunk."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.batch_run import BatchRun, Modes
from dovetail.dispatch.live.replicas import Replicas

_NOT_PICKLED = (pickle.PicklingError, AttributeError, TypeError)


class Remote:
    """Calls a run's function on one device, in the process where it is made."""

    def __init__(self, device: NodeDevice, threads: int = 0) -> None:
        self.device = device
        self._call: Callable[[Any], Any] = lambda work: work
        self._modes = Modes()
        if threads:
            torch.set_num_threads(threads)

    def begin(self, order: bytes) -> None:
        """The run that the next chunks belong to, as `Orders` sent it."""
        calling, self._modes = pickle.loads(order)
        self._call = calling.on(self.device, torch.device("cpu"))

    def call(self, work: Any) -> Any:
        """The result of a chunk."""
        with ExitStack() as stack:
            self._modes.enter(stack)
            return self._call(work)


class Orders:
    """What a worker tells its other end when a run begins: nothing, if it has the same function in the same state."""

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._last: Any = None

    def begin(self, run: BatchRun) -> bytes | None:
        """The order to send; None if none is needed."""
        calling, modes = run.calling, Modes()  # the thread that begins a run has the modes of its caller
        place: Any = calling.place  # a method `on` of something, or a plain function bound to its place
        function = place.args[0] if hasattr(place, "args") else getattr(place, "__self__", place)
        state = modes.grad, modes.inference, modes.autocast
        hooks = calling.preprocess, calling.postprocess
        states = [_state(each) for each in (function, *hooks)]
        now = function, states, hooks, calling.spread, state
        if None not in states and self._last == now:
            return None
        order = self._dumps((calling, modes))
        self._last = now
        return order


def _state(function: Any) -> Any:
    """Something that differs when a function's state does; None if there is no telling."""
    if isinstance(function, Replicas):
        return function.state()
    if function is None or isinstance(function, BuiltinFunctionType):
        return ()
    # One that another process cannot import goes there with the variables around it, and they may change.
    return () if isinstance(function, FunctionType) and "<" not in function.__qualname__ else None


def dumps(value: Any) -> bytes:
    """Pickled, by cloudpickle if that is needed and installed; else an error that says what to do."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except _NOT_PICKLED as error:
        with suppress(ImportError, *_NOT_PICKLED):
            return bytes(import_module("cloudpickle").dumps(value))
        raise InputError(
            f"the function cannot be sent to another process: {error}; define it at the top level of a module, or "
            "pip install cloudpickle"
        ) from None


def sendable(error: BaseException) -> BaseException:
    """An error that survives the way to another process: itself if it can, else its type and text."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        again = None
    if type(again) is type(error):
        return error
    text = f"{type(error).__name__}: {error}"
    return MemoryError(text) if isinstance(error, MemoryError) else RuntimeError(text)
