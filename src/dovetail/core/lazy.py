"""Public names of a package that are imported when they are asked for: `import dovetail` must cost next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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

    return find, lambda: sorted(places)
