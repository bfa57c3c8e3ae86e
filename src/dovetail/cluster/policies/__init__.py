"""Cluster policies, one per file: jobs and accelerators in, shares of time with a reason out.

The suffix of a name says what a policy knows. None: nothing of the types, every job runs alike on all of them. `_perf`:
how fast every job runs on every type. `_packed`: also how fast two jobs run that share accelerators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.cluster.policies.base import Allocation, Policy, Problem
from dovetail.core.registry import create, names, options_of

__all__ = ["Allocation", "Policy", "Problem", "make"]


def make(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """A policy by its name, which may carry one option, as `allox_alpha=0.5` does.

    >>> make("allox_alpha=0.5").alpha
    0.5
    >>> make("tiresias", {"thresholds_s": "60,600"}).thresholds_s
    (60.0, 600.0)
    """
    given = dict(options or {})
    for known in names("cluster"):
        option, equals, value = name.removeprefix(known + "_").partition("=")
        if equals and name.startswith(known + "_") and option.isidentifier():
            name = known
            given = {option: value, **given}
            break
    known_options = options_of("cluster", name) if name in names("cluster") else {}
    for option, value in given.items():
        if option in known_options and isinstance(known_options[option].default, tuple) and isinstance(value, str):
            given[option] = value.split(",")  # as it is typed: thresholds_s=3600,18000
    made: Policy = create("cluster", name, given)
    return made
