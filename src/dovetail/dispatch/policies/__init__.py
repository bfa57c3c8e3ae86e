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


def name_of(policy: str | Policy) -> str:
    """A policy's name in files; of an object, that of its class.

    >>> class Halves: ...
    >>> name_of("guided"), name_of(Halves())
    ('guided', 'Halves')
    """
    return policy if isinstance(policy, str) else type(policy).__name__


def policy_of(policy: str | Policy, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy by its name, or as it is."""
    if isinstance(policy, str):
        made: Policy = registry.create("dispatch", policy, options)
        return made
    if options:
        raise InputError("options are for a policy by name; this one is made already")
    return policy
