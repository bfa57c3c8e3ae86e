"""A function and a batch as users give them: as they are, by `file.py:name` or `package.module:name`, or by a shape."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.core.errors import DovetailError, InputError, did_you_mean
from dovetail.dispatch.inputs.devices import load_torch


def load(source: str) -> Any:
    """What `file.py:name` or `package.module:name` names.

    >>> load("math:sqrt")(9.0)
    3.0
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"{source}: expected file.py:name or package.module:name")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise InputError(f"{source}: {place} has no {part!r}{did_you_mean(part, public)}")
        found = getattr(found, part)
    return found


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: expected a Python file, found {'a folder' if path.is_dir() else 'nothing'}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that what it defines can be found again by name
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # and also in other processes, which get this path
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _from_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        text = f"{error}" if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{name}: cannot be imported: {text}") from error


def random_batch(shape: Sequence[int], dtype: str = "float32", seed: int = 0) -> Any:
    """A tensor of this shape with numbers between 0 and 1 (whole numbers of integer types: 0 to 9)."""
    torch = load_torch()
    kind = getattr(torch, str(dtype), None)
    if not isinstance(kind, torch.dtype):
        names = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
        raise InputError(f"dtype {dtype}: no such type{did_you_mean(str(dtype), names)}")
    if not isinstance(shape, Sequence) or not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        raise InputError(f"shape {shape}: expected at least one size, all of them at least 1")
    generator = torch.Generator().manual_seed(seed)
    try:
        if kind.is_floating_point:
            return torch.rand(tuple(shape), generator=generator, dtype=kind)
        return torch.randint(0, 10, tuple(shape), generator=generator).to(kind)
    except (RuntimeError, MemoryError) as error:  # too large, or a type that has no random numbers
        raise InputError(f"shape {list(shape)} of {dtype}: cannot be made: {error}") from error


def function_and_batch(
    function: Any, batch: Any = None, shape: Sequence[int] | None = None, dtype: str = "float32"
) -> tuple[Any, Any]:
    """A function, and what it is called with: a batch, what makes one, or random numbers of a shape. Text is a name."""
    made = load(function) if isinstance(function, str) else function
    if not callable(made) and not hasattr(made, "on"):
        raise InputError(f"{function}: expected a function or a module, found {type(made).__name__}")
    if (batch is None) == (shape is None):
        raise InputError("expected either batch or shape, to say what the function is called with")
    if shape is not None:
        return made, random_batch(shape, dtype)
    given = load(batch) if isinstance(batch, str) else batch
    with blamed(batch):
        given = given() if callable(given) else given
    if isinstance(given, str | int | float | Iterator):
        kind = type(given).__name__
        raise InputError(f"batch {batch}: expected a tensor or a tree of tensors, to be run again; found {kind}")
    return made, given


@contextmanager
def blamed(what: Any) -> Iterator[None]:
    """An error of code that was named by text is one line that says whose it is; the error itself is its cause."""
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        if not isinstance(what, str):
            raise
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        where = "".join(f" ({note})" for note in getattr(first, "__notes__", ()))
        text = f"{type(first).__name__}: {first}".rstrip(": ")
        raise InputError(f"{what}: raised {text}{where}") from error
