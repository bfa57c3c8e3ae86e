"""What a shell completes after a flag, where that is neither a file nor one of a few words of the command itself."""

from __future__ import annotations

from typing import Any, Literal

from cyclopts import Parameter


def policies_of(level: str) -> Parameter:
    """The policies of a level that are installed, found when the key is pressed.

    >>> "dovetail" in policies_of("workflow").completer(None)
    True
    """

    def names(_: Any) -> list[str]:
        from dovetail.core import registry

        return registry.names(level)

    return Parameter(completer=names)


def host_rules(kind: Literal["planning", "assignment"]) -> Parameter:
    """The plannings of the host level that are installed, or its assignments.

    >>> "fcfs" in host_rules("planning").completer(None), "strict" in host_rules("assignment").completer(None)
    (True, True)
    """

    def names(_: Any) -> list[str]:
        from dovetail.host import policies

        return [row["name"] for row in policies() if row["kind"] == kind]

    return Parameter(completer=names)
