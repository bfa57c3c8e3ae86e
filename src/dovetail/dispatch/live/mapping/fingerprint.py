"""What a function and its data are, as a few letters that are the same in the next program while they are the same."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from logging import Logger
from pathlib import PurePath
from sysconfig import get_paths
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.dispatch.inputs.kinds import kind_of

_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None), range, slice, type(...), PurePath)
_PLAIN += (np.generic, np.dtype, torch.dtype, torch.device)
_NOTHING = object()
_CONSTANTS = (tuple, frozenset)  # whether equal ones are one object is up to the compiler


def fingerprint(value: Any) -> str:
    """A function's own code, constants, what it closes over and what it names beside it in its own package; a module's
    structure and weights; the values of tensors, arrays, frames and containers. Of anything else type and attributes.

    >>> fingerprint(lambda x: 2 * x) == fingerprint(lambda x: 2 * x), fingerprint({"a": [1]}) == fingerprint({"a": [2]})
    (True, False)
    """
    mark = hashlib.sha256()
    for part in _parts(value, {}, _package(value)):
        mark.update(part + b"\0")
    return mark.hexdigest()[:16]


def name_of(function: Any) -> str:
    """What to call a function in a sentence."""
    inner = getattr(function, "func", function)
    named = inner if hasattr(inner, "__qualname__") and hasattr(inner, "__module__") else type(inner)
    return f"{named.__module__}.{named.__qualname__}"


def _package(value: Any) -> str:
    inner = getattr(value, "func", value)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return str(module).partition(".")[0]


def _parts(value: Any, seen: dict[int, tuple[int, Any]], home: str) -> Iterator[bytes]:
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
        return
    if isinstance(value, Logger):
        return  # it knows what was logged before, and by whom
    if isinstance(value, ModuleType | type | BuiltinFunctionType | np.ufunc):
        yield value.__name__.encode()
        yield from _parts_of_class(value, seen, home) if isinstance(value, type) else ()
        return
    if not isinstance(value, _CONSTANTS):
        if id(value) in seen:
            yield f"as {seen[id(value)][0]}".encode()
            return
        seen[id(value)] = len(seen), value  # held, lest what is made meanwhile gets the place of what has gone
    if isinstance(value, Tensor | np.ndarray):
        yield from _bytes_of(value)
    elif kind_of(value) is not None:  # a frame or the like: what it holds is in no attribute
        yield pickle.dumps(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _parts(each, seen, home)
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, list | tuple):
        yield type(value).__name__.encode()
        for each in value:
            yield from _parts(each, seen, home)
    elif isinstance(value, CodeType):
        yield value.co_code + repr(value.co_names).encode()
        yield from _parts(value.co_consts, seen, home)
    else:
        yield from _parts_of_code(value, seen, home)


def _parts_of_code(value: Any, seen: dict[int, tuple[int, Any]], home: str) -> Iterator[bytes]:
    if isinstance(value, FunctionType):
        yield value.__qualname__.encode()
        if _package(value) != home and not value.__closure__ and not _is_beside(value.__module__):
            return  # a library's: its name stands for it
        yield from _parts(value.__code__, seen, home)
        yield from _parts([value.__defaults__, value.__kwdefaults__], seen, home)
        for cell in value.__closure__ or ():
            try:
                yield from _parts(cell.cell_contents, seen, home)
            except ValueError:  # a name that has no value yet
                continue
        names = list(_names(value.__code__))
        for name in names:
            found = value.__globals__.get(name, _NOTHING)
            if isinstance(found, ModuleType) and _is_beside(found.__name__):
                yield from _parts([vars(found)[each] for each in names if each in vars(found)], seen, home)
            elif found is not _NOTHING:
                yield from _parts(found, seen, home)
    elif isinstance(value, MethodType):
        yield from _parts((value.__func__, value.__self__), seen, home)
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords), seen, home)
    elif isinstance(value, torch.jit.ScriptModule):
        yield value.code.encode()
        yield from _parts((value.training, dict(value.state_dict())), seen, home)
    elif isinstance(value, torch.nn.Module):
        yield repr(value).encode()
        yield from _parts((type(value).forward, value.training, dict(value.state_dict())), seen, home)
        for each in value.modules():
            yield from _parts_of_class(type(each), seen, home)
            hooks = [*each._forward_pre_hooks.values(), *each._forward_hooks.values()]
            plain = {name: own for name, own in vars(each).items() if isinstance(own, _PLAIN)}
            yield from _parts((plain, hooks, dict(each._buffers)), seen, home)
    else:
        kind = type(value)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        yield from _parts([getattr(kind, name, None) for name in ("__call__", "on", "__getitem__")], seen, home)
        yield from _parts_of_class(kind, seen, home)
        yield from _parts(dict(getattr(value, "__dict__", {})), seen, home)


def _names(code: CodeType) -> Iterator[str]:
    """What a function names, and the functions within it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _parts_of_class(kind: type, seen: dict[int, tuple[int, Any]], home: str) -> Iterator[bytes]:
    """Methods and plain values of a class, and of those it comes from, unless they were installed."""
    for each in kind.__mro__:
        own = (_package(each) == home and not _is_installed(each)) or _is_beside(each.__module__)
        if own and id(each) not in seen:
            seen[id(each)] = len(seen), each
            for name, value in vars(each).items():
                inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(inner, FunctionType) or (isinstance(inner, _PLAIN) and not name.startswith("__")):
                    yield name.encode()
                    yield from _parts(inner, seen, home)


def _is_installed(kind: type) -> bool:
    """Whether a class is of a library: what they do is not looked at."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__ != "__main__" and (kind is object or _is_library(file))


def _is_beside(module: str) -> bool:
    """Whether a module is a file that was not installed, such as one beside the user's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not _is_library(file) and module.partition(".")[0] != "dovetail"


def _is_library(file: str) -> bool:
    """Whether a file was installed: for this environment, for its user, or by the system.

    >>> _is_library("/home/me/.local/lib/python3.11/site-packages/a.py"), _is_library("/home/me/train.py")
    (True, False)
    """
    places = tuple(get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    return file.startswith(places) or not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts)


def _bytes_of(value: Any) -> Iterator[bytes]:
    yield f"{value.dtype} {list(value.shape)}".encode()
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    elif value.dtype == object:
        yield repr(value.tolist()).encode()
    else:
        yield value.tobytes()
