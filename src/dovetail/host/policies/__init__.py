"""The policies of the host level, one per file. A third party's register in the same way."""

from __future__ import annotations

from typing import Any, TypeVar

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.host.policies.base import Assignment, MachineView, Planning
from dovetail.host.program import Program

__all__ = ["Assignment", "MachineView", "Planning", "Program", "make", "names", "pick", "policies"]

LEVEL = "host"
P = TypeVar("P", Planning, Assignment)


def pick(choice: Any, kind: type[P]) -> tuple[str, P]:
    """A policy of the kind that is wanted, by name, as `file.py:name`, or one's own; and what it is called."""
    name, found = registry.choose(LEVEL, choice)
    if not isinstance(found, kind):
        what = f"{kind.__name__.lower()} policies: {', '.join(names(kind))}"
        raise InputError(f"{name!r} is no {kind.__name__.lower()} policy; {what}")
    return name, found


def make(choice: Any, kind: type[P]) -> P:
    """The same, without its name."""
    return pick(choice, kind)[1]


def names(kind: type[Planning] | type[Assignment]) -> list[str]:
    """The policies of one kind."""
    return [name for name in registry.names(LEVEL) if isinstance(registry.create(LEVEL, name), kind)]


def policies() -> list[dict[str, str]]:
    """The plannings and assignments that are installed, and what each promises.

    >>> policies()[0]
    {'kind': 'planning', 'name': 'fcfs', 'promise': 'First come, first served: the oldest goes first.'}
    """
    kinds: dict[str, list[str]] = {"planning": names(Planning), "assignment": names(Assignment)}
    return [
        {"kind": kind, "name": name, "promise": registry.promise(LEVEL, name)}
        for kind, found in kinds.items()
        for name in found
    ]
