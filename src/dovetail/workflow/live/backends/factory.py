"""Models that a function makes: `module:function` or `file.py:function`, called with the `ServedModel`.

It gives a back end, or a function of the inputs that gives the outputs; one that yields text is streamed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, util
from pathlib import Path
from threading import Event
from typing import Any, cast

from dovetail.core.errors import did_you_mean
from dovetail.workflow.live.protocol import (
    CALL_OPTIONS,
    Answer,
    BackEnd,
    BackEndError,
    Emit,
    Memory,
    ModelCall,
    ServedModel,
)

_VERBS = ("load", "unload", "call", "status", "memory")


def make(model: ServedModel) -> BackEnd:
    return _Made(model, _function(str(model.source["factory"])))


def _function(name: str) -> Callable[[ServedModel], Any]:
    where, colon, function = name.rpartition(":")
    if not colon:
        raise BackEndError(f"factory {name!r}: expected module:function or file.py:function")
    try:
        module = _file(Path(where)) if where.endswith(".py") else import_module(where)
    except Exception as error:
        raise BackEndError(f"factory {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        hint = did_you_mean(function, [known for known in vars(module) if not known.startswith("_")])
        raise BackEndError(f"factory {name!r}: {where} has no function {function!r}{hint}")
    return cast("Callable[[ServedModel], Any]", found)


def _file(path: Path) -> Any:
    name = f"dovetail_factory_{path.stem}_{abs(hash(str(path)))}"
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


class _Made:
    """Makes it when it is loaded: what the function does is the load."""

    def __init__(self, model: ServedModel, function: Callable[[ServedModel], Any]) -> None:
        self._model, self._function = model, function
        self._made: BackEnd | None = None

    def load(self, devices: Sequence[str]) -> None:
        if self._made is None:
            made = self._function(self._model)
            if all(hasattr(made, verb) for verb in _VERBS):
                self._made = made
            elif callable(made):
                self._made = _Function(made)
            else:
                expected = f"expected a back end ({', '.join(_VERBS)}) or a function of the inputs"
                raise BackEndError(f"factory {self._model.source['factory']!r} gave {made!r}, {expected}")
        self._made.load(devices)

    def unload(self, keep: bool) -> None:
        if self._made is not None:
            self._made.unload(keep)
        if not keep:
            self._made = None

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        assert self._made is not None
        return self._made.call(call, emit, stopped)

    def status(self) -> dict[str, Any]:
        return self._made.status() if self._made is not None else {"healthy": True}

    def memory(self) -> Memory:
        return self._made.memory() if self._made is not None else Memory()


class _Function:
    """A plain function of the inputs."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    def load(self, devices: Sequence[str]) -> None:
        pass  # it is there

    def unload(self, keep: bool) -> None:
        pass

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        for name in call.options:
            if name not in CALL_OPTIONS:  # a chat client may send these to anybody
                expected = f"{call.model} is a function of its inputs{did_you_mean(name, CALL_OPTIONS)}"
                raise BackEndError(f"unknown option {name!r}: {expected}", "call")
        found = self._function(call.inputs)
        if isinstance(found, Iterator):
            found = _streamed(found, emit, stopped)
        return Answer(call.id, dict(found) if isinstance(found, Mapping) else {"text": found})

    def status(self) -> dict[str, Any]:
        return {"healthy": True}

    def memory(self) -> Memory:
        return Memory()


def _streamed(pieces: Iterator[Any], emit: Emit, stopped: Event) -> str:
    said = []
    for piece in pieces:
        said.append(str(piece))
        emit(said[-1], 1)
        if stopped.is_set():
            break
    return "".join(said)
