"""Cluster policies, one per file: jobs and accelerators in, shares of time with a reason out.

The suffix of a name says what a policy knows. None: nothing of the types, every job runs alike on all of them. `_perf`:
how fast every job runs on every type. `_packed`: also how fast two jobs run that share accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from inspect import isfunction, signature
from typing import Any

from dovetail.cluster.policies.base import Allocation, Policy, Problem
from dovetail.core.errors import InputError
from dovetail.core.registry import choose, create, find, named_options, names, options_of, written_options

__all__ = ["Allocation", "Policy", "Problem", "make"]


class FunctionPolicy(Policy):
    """A user's own function from a problem to an allocation."""

    def __init__(self, function: Callable[[Problem], Allocation]) -> None:
        self.function = function

    def allocate(self, problem: Problem) -> Allocation:
        return self.function(problem)


def name_of(choice: Any) -> str:
    """What journals and tables call a policy."""
    return choice if isinstance(choice, str) else str(getattr(choice, "__name__", type(choice).__name__))


def _own(choice: Any, options: Mapping[str, Any] | None) -> Policy:
    """A user's own policy: an object, of which every run has a copy, a class, or a function of the problem."""
    function = find("cluster", choice) if isinstance(choice, str) else choice
    if isfunction(function) and not options and len(signature(function).parameters) == 1:
        return FunctionPolicy(function)
    name, found = choose("cluster", choice, options)
    if found is choice:
        try:
            found = deepcopy(choice)
        except Exception as error:
            raise InputError(f"policy {name} cannot be copied for a run: {error}; give its class") from error
    if not callable(getattr(found, "allocate", None)):
        raise InputError(f"policy {name}: expected a method `allocate(problem)`, as dovetail.cluster.Policy has")
    for trait in ("agnostic", "packs", "strict"):
        if not isinstance(getattr(found, trait, None), bool):
            raise InputError(f"policy {name}: expected {trait} to be True or False; dovetail.cluster.Policy has it")
    own: Policy = found
    return own


def make(name: Any, options: Mapping[str, Any] | None = None) -> Policy:
    """A policy by its name, which may carry options, as `allox_alpha=0.5` and `allox,alpha=0.5` do; or one of a user's
    own.

    >>> make("allox_alpha=0.5").alpha, make("allox,alpha=0.5").alpha
    (0.5, 0.5)
    >>> make("tiresias", {"thresholds_s": "60,600"}).thresholds_s
    (60.0, 600.0)
    """
    if isinstance(name, str):
        name, written = written_options(name)
        options = written | dict(named_options(options))
    else:
        options = named_options(options)
    if not isinstance(name, str) or ".py:" in name:
        return _own(name, options)
    if name == "goodput":
        raise InputError(
            "no cluster policy is called 'goodput'; did you mean 'elastic_throughput', which had this name, or 'sia'?"
        )
    given = dict(options)
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
