"""What a planning method is: a function from a problem to a plan, or to why there is none, with options of its own.

Methods are registered for the level `pipeline`. Whatever they choose must be a valid plan: every layer once, in order,
on hosts of the problem, within their memory, over links that can be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core import registry
from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.compat.auction_options import renamed
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.plan import Infeasible, Plan
from dovetail.pipeline.planner import plan


def check_method(method: str, options: Mapping[str, Any]) -> None:
    """Refuse a method that is not registered, and options that it does not take."""
    known = registry.names("pipeline")
    if method not in known:
        raise InputError(f"--method {method}: unknown{did_you_mean(method, known)}")
    taken = [name for name in registry.options_of("pipeline", method) if name != "pipeline"]
    for name in renamed(options) if method == "auction" else options:
        if name not in taken:
            raise InputError(f"--option {name}: method {method} has no such option{did_you_mean(name, taken)}")


def best_plan(
    problems: Sequence[Pipeline],
    method: str = "exact",
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> tuple[Pipeline, Plan] | Infeasible:
    """The plan with the highest throughput for one of several problems, such as several batch sizes; `how` goes to the
    exact planner (objective, constraints, ...)."""
    tried = [
        (problem, plan(problem, **how) if method == "exact" else plan_by(method, problem, options or {}))
        for problem in problems
    ]
    made = [(problem, found) for problem, found in tried if isinstance(found, Plan)]
    if made:
        return max(made, key=lambda pair: pair[1].throughput_items_s)
    reasons = [reason for _, found in tried if isinstance(found, Infeasible) for reason in found.reasons]
    return Infeasible(model=problems[0].model, reasons=list(dict.fromkeys(reasons)))


def plan_by(method: str, pipeline: Pipeline, options: Mapping[str, Any]) -> Plan | Infeasible:
    """The plan of a method for comparison, with its options as text or values."""
    given = renamed(options) if method == "auction" else dict(options)
    if isinstance(given.get("order"), str):
        given["order"] = given["order"].split(",")
    found: Plan | Infeasible = registry.create("pipeline", method, {"pipeline": pipeline} | given)
    return found
