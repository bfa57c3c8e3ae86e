"""The policies of the host level, one per file. A third party's register in the same way."""

from __future__ import annotations

from typing import TypeVar

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.host.policies.base import Assignment, MachineView, Planning
from dovetail.host.program import Program

__all__ = ["Assignment", "MachineView", "Planning", "Program", "make", "names"]

LEVEL = "host"
P = TypeVar("P", Planning, Assignment)


def make(name: str, kind: type[P]) -> P:
    """A policy of this level by name, if it is of the kind that is wanted."""
    found = registry.create(LEVEL, name)
    if not isinstance(found, kind):
        what = f"{kind.__name__.lower()} policies: {', '.join(names(kind))}"
        raise InputError(f"{name!r} is no {kind.__name__.lower()} policy; {what}")
    return found


def names(kind: type[Planning] | type[Assignment]) -> list[str]:
    """The policies of one kind."""
    return [name for name in registry.names(LEVEL) if isinstance(registry.create(LEVEL, name), kind)]
