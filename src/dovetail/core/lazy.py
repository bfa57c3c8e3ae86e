"""Public names of a package that are imported when they are asked for: `import dovetail` must cost next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_PLACES: dict[str, Mapping[str, str]] = {}  # by package


class _Package(ModuleType):
    """A package in which a public name is never the module of the same name: `cluster.simulate` is the function, also
    after something has imported `dovetail.cluster.simulate`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _PLACES[self.__name__]):
            super().__setattr__(name, value)


def exports(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`; `places` says in which module of the package a name is, as `module` or,
    where it has another name there, `module:name`.

    >>> find, names = exports("dovetail.core", {"Pool": "resources", "Interval": "confidence:Interval"})
    >>> find("Pool").__module__, names()
    ('dovetail.core.resources', ['Interval', 'Pool'])
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        return getattr(import_module(f"{package}.{module}"), attribute or name)

    _PLACES[package] = places
    sys.modules[package].__class__ = _Package
    return find, lambda: sorted(places)
