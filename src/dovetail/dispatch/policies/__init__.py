"""Ways to cut a batch into chunks, one per file; `base.py` says what they see and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.dispatch.policies.base import Policy


def default_policy(sized: bool) -> str:
    """The policy for devices whose sizes are all given, or are to be found."""
    return "fixed" if sized else "finish_together"


def chosen(policy: Any, options: Mapping[str, Any] | None = None) -> tuple[str, Policy]:
    """A policy as users give one, with its name in files: by name, or one of their own, that of its class.

    >>> class Halves:
    ...     def next(self, device, view):
    ...         return max(1, view.remaining // 2)
    >>> chosen("guided", {"k": 3})[0], chosen(Halves())[0], chosen(Halves)[0]
    ('guided', 'Halves', 'Halves')
    """
    name, made = registry.choose("dispatch", policy, options)
    if not callable(getattr(made, "next", None)):
        raise InputError(f"policy {name}: expected an object with next(device, view) -> items")
    return name, made
