"""Ways to cut a batch into chunks, one per file; `base.py` says what they see and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.dispatch.policies.base import ChunkPolicy


def policy_of(policy: str | ChunkPolicy | None, options: Mapping[str, Any] | None, *, sized: bool) -> ChunkPolicy:
    """The policy by its name or as it is; by default the one for devices whose sizes are all given, or to be found."""
    if policy is None:
        policy = "fixed" if sized else "finish_together"
    if isinstance(policy, str):
        made: ChunkPolicy = registry.create("dispatch", policy, options)
        return made
    if options:
        raise InputError("options are for a policy by name; this one is made already")
    return policy
