"""Values inside each other: dictionaries, tuples, lists, dataclasses, and whatever PyTorch knows as a pytree."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np
from torch import Size, Tensor
from torch.utils import _pytree as pytree

from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.kinds import kind_of

# What holds parts in attributes, by names: nothing is imported for them.
_ATTRIBUTES = {
    "transformers.DynamicCache": ["layers"],
    "transformers.DynamicLayer": ["keys", "values"],
    "transformers.EncoderDecoderCache": ["self_attention_cache", "cross_attention_cache"],
}
_FOUND: dict[type, list[str] | None] = {}  # what was looked for
ATOMS = frozenset({Tensor, int, float, bool, str, bytes, complex, type(None), slice})


class Opened(NamedTuple):
    """What a container holds, by name, what makes one like it of other parts, and what it keeps beside them."""

    names: Iterable[Any]
    parts: Iterable[Any]
    closed: Callable[[list[Any]], Any]
    beside: Any = None


def opened(tree: Any) -> Opened | None:
    """A container, opened; None if it is none."""
    kind = type(tree)
    if kind in ATOMS:
        return None
    if kind is dict:
        names = list(tree)
        return Opened(names, tree.values(), lambda parts: dict(zip(names, parts, strict=True)))
    if kind is list or kind is tuple:
        return Opened(range(len(tree)), tree, kind)
    return _opened_other(tree)


def _opened_other(tree: Any) -> Opened | None:
    kind = type(tree)
    if kind is Size:
        return Opened(
            range(len(tree)), tree, lambda parts: Size(parts) if {*map(type, parts)} <= {int} else tuple(parts)
        )
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is not None and kind_of(tree) is None:
        return _opened_node(tree, node)
    if isinstance(tree, tuple):
        names = getattr(kind, "_fields", range(len(tree)))
        return Opened(names, tree, lambda parts: _tuple_like(tree, parts), _attributes(tree))
    if isinstance(tree, list):
        return Opened(range(len(tree)), tree, lambda parts: list_like(tree, parts), _attributes(tree))
    if isinstance(tree, MutableMapping):
        beside = _attributes(tree) if isinstance(tree, dict) else None  # others have their parts there
        return Opened(list(tree), list(tree.values()), lambda parts: _refilled(tree, parts), beside)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree)]
        return _opened_attributes(tree, fields)
    if kind not in _FOUND:
        known = (_ATTRIBUTES.get(f"{base.__module__.partition('.')[0]}.{base.__name__}") for base in kind.__mro__)
        _FOUND[kind] = next((names for names in known if names is not None), None)
    names = _FOUND[kind]
    return None if names is None else _opened_attributes(tree, names)


def _opened_attributes(tree: Any, names: list[str]) -> Opened:
    parts = [getattr(tree, name) for name in names]
    return Opened(names, parts, lambda parts: _replaced(tree, names, parts), _attributes(tree, names))


def _attributes(tree: Any, names: Collection[str] = ()) -> dict[str, Any] | None:
    """What an object has, but for these."""
    return {name: value for name, value in getattr(tree, "__dict__", {}).items() if name not in names} or None


def _opened_node(tree: Any, node: Any) -> Opened:
    """A pytree, opened by what was registered for it."""
    if node.flatten_with_keys_fn is None:
        parts, context = node.flatten_fn(tree)
        return Opened(range(len(parts)), parts, lambda parts: node.unflatten_fn(parts, context), context)
    keyed, context = node.flatten_with_keys_fn(tree)
    names = [getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key, _ in keyed]
    parts = [part for _, part in keyed]
    if all(isinstance(key, pytree.GetAttrKey) for key, _ in keyed):  # what is no part of the tree stays with it
        return _opened_attributes(tree, names)
    beside = None if type(context) is list and context == names else context
    return Opened(names, parts, lambda parts: node.unflatten_fn(parts, context), beside)


def list_like(tree: list[Any], parts: Iterable[Any]) -> list[Any]:
    """A list of the same type, with its attributes."""
    if type(tree) is list:
        return list(parts)
    again = copy.copy(tree)
    list.__setitem__(again, slice(None), parts)
    return again


def _tuple_like(tree: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    if all(part is own for part, own in zip(parts, tree, strict=True)):
        return tree
    kind = type(tree)
    again = kind(parts) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, parts)
    getattr(again, "__dict__", {}).update(getattr(tree, "__dict__", {}))
    return again


def _refilled(tree: Any, parts: list[Any]) -> Any:
    again = copy.copy(tree)
    for key, part in zip(tree, parts, strict=True):
        again[key] = part
    return again


def _replaced(tree: Any, fields: list[str], parts: list[Any]) -> Any:
    """The same object with other values in its fields; what it computes when it is made is not computed again."""
    again = copy.copy(tree)
    for name, part in zip(fields, parts, strict=True):
        object.__setattr__(again, name, part)
    return again


def leaves(tree: Any, place: str = "batch") -> Iterator[tuple[str, Any]]:
    """Everything in a tree that holds nothing else, with the way to it."""
    inside = opened(tree)
    if inside is None:
        yield place, tree
        return
    for name, part in zip(inside.names, inside.parts, strict=True):
        yield from leaves(part, f"{place}.{name}")


def place_in(place: str, name: Any) -> str:
    """The way to a part of what is at a place; only names of one type that look alike (`repr`) give the same.

    >>> place_in("batch", "x"), place_in("batch", 1), place_in("batch", "1"), place_in("batch", 1.5)
    ('batch.x', 'batch.1', "batch['1']", 'batch[1.5]')
    """
    plain = type(name) is int or (type(name) is str and name.isidentifier())
    return f"{place}.{name}" if plain else f"{place}[{name!r}]"


def parts_of(tree: Any, place: str = "batch") -> Iterator[tuple[str, Any]]:
    """As `leaves`, but what has rows is one part, whatever it holds."""
    kind = type(tree)
    if kind in ATOMS:
        yield place, tree
    elif kind is dict:
        for name, part in tree.items():
            yield from parts_of(part, place_in(place, name))
    elif kind_of(tree) is None and (inside := opened(tree)) is not None:
        for name, part in zip(inside.names, inside.parts, strict=True):
            yield from parts_of(part, place_in(place, name))
    else:
        yield place, tree


def beside_of(tree: Any) -> Any:
    """What a container keeps beside its parts, or an array of another type beside its numbers; None if nothing."""
    if kind_of(tree) is None:
        return None if (inside := opened(tree)) is None else inside.beside
    own = isinstance(tree, np.ndarray) and not isinstance(tree, np.ma.MaskedArray | np.memmap)
    return _attributes(tree) if own else None


def beside_parts(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    """What everything that `parts_of` gives, or looks into, keeps beside its parts, if it does."""
    if type(tree) in ATOMS:
        return
    if (beside := beside_of(tree)) is not None:
        yield place, beside
    if kind_of(tree) is None and (inside := opened(tree)) is not None:
        for name, part in zip(inside.names, inside.parts, strict=True):
            yield from beside_parts(part, place_in(place, name))


def closing(tree: Any) -> Callable[[Iterator[Any]], Any]:
    """What makes a tree of this form out of parts, in the order of `parts_of`.

    >>> closing({"a": 1, "b": (2, [3])})(iter("xyz"))
    {'a': 'x', 'b': ('y', ['z'])}
    """
    inside = None if kind_of(tree) is not None else opened(tree)
    if inside is None:
        return next
    makers, closed = [closing(part) for part in inside.parts], inside.closed
    return lambda parts: closed([make(parts) for make in makers])


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with every leaf replaced.

    >>> mapped(abs, {"a": -1, "b": (2, [-3])})
    {'a': 1, 'b': (2, [3])}
    """
    inside = opened(tree)
    return function(tree) if inside is None else inside.closed([mapped(function, part) for part in inside.parts])


def grouped(function: Callable[[list[Any], str], Any], trees: list[Any], place: str = "result") -> Any:
    """A tree of the form that all of them have; `function` makes a part of theirs, or says `OPEN` to look inside.

    >>> grouped(lambda parts, place: sum(parts) if isinstance(parts[0], int) else OPEN, [{"a": 1}, {"a": 10}])
    {'a': 11}
    """
    found = function(trees, place)
    if found is not OPEN:
        return found
    first, *others = (dict(zip(inside.names, inside.parts, strict=True)) for inside in map(_open, trees))
    for other in others:
        if other.keys() != first.keys():
            odd = min(place_in(place, name) for name in other.keys() ^ first.keys())
            raise ResultFormError(f"chunks differ in what they return: {odd} is not in all of them")
    parts = [
        grouped(function, [first[name], *(other[name] for other in others)], place_in(place, name)) for name in first
    ]
    return _open(trees[0]).closed(parts)


def _open(tree: Any) -> Opened:
    inside = opened(tree)
    assert inside is not None
    return inside


OPEN = object()
