"""Whether a function changes its input: then it must not be called again with what it may have changed already."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from dovetail.dispatch.chunk import InputChangedError
from dovetail.dispatch.inputs.kinds import kind_of
from dovetail.dispatch.inputs.trees import ATOMS, closing, parts_of


def called_again(call: Callable[[Any], Any], work: Any, failed: BaseException | None, moved: bool = False) -> Any:
    """The result of a chunk that was begun before: on a copy, which tells whether the function changes what it gets.

    `failed`: why it is done again; `moved`: its tensors are copies already.
    """
    try:
        copies = [part if moved and isinstance(part, Tensor) else _copy(part) for _, part in parts_of(work)]
        again = closing(work)(iter(copies))
        # Every chunk has its own containers, but for those in the items of a list.
        items = list(again) if isinstance(again, list) else []
        before = _states(copies, items)
    except Exception as error:
        raise InputChangedError(
            "a chunk cannot be done again: its items may be changed already, and no copy of them can be made to see "
            f"it: {error}"
        ) from failed
    result = call(again)
    if _states(copies, items) != before:
        raise _changed() from failed
    return result


def copy_of(work: Any) -> Any:
    """What a function may change without anybody noticing."""
    return closing(work)(iter([_copy(part) for _, part in parts_of(work)]))


def _changed() -> InputChangedError:
    return InputChangedError(
        "the function changes its input in place, so a chunk cannot be done again: its items may be changed "
        "already; let it work on a copy, or give backend='process'"
    )


class _Pickler(pickle.Pickler):
    """Types, functions and modules stand for themselves, wherever they were defined."""

    def persistent_id(self, value: Any) -> int | None:
        return id(value) if isinstance(value, type | FunctionType | ModuleType) else None


def _copy(part: Any) -> Any:
    kind = kind_of(part)
    return copy.deepcopy(part) if kind is None else kind.copy(part)


def version_of(part: Any) -> int | None:
    """How often a tensor was changed; None of what does not count it."""
    return part._version if isinstance(part, Tensor) and not part.is_inference() else None


def _states(parts: list[Any], items: list[Any]) -> Any:
    return [_state(part) for part in parts], [(place, id(part)) for place, part in parts_of(items)]


def _state(part: Any) -> Any:
    """What changes with a part: how often a tensor was changed, if it counts it; else a digest of all there is."""
    if type(part) in ATOMS - {Tensor}:
        return None
    if (version := version_of(part)) is not None:
        return version
    _Pickler(file := BytesIO(), protocol=5).dump(part)
    return sha256(file.getbuffer()).digest()
