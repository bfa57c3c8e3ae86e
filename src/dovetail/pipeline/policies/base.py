"""What a planning method is: a function from a problem to a plan, or to why there is none, with options of its own.

Methods are registered for the level `pipeline`, or are a user's own. Whatever they choose must be a valid plan: every
layer once, in order, on hosts of the problem, within their memory, over links that can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import index
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import registry
from dovetail.core.errors import DovetailError, InputError, PolicyError, check_functions, did_you_mean
from dovetail.core.files.document import checked
from dovetail.core.registry import named_options
from dovetail.pipeline.compat.auction_options import renamed
from dovetail.pipeline.inputs.pool import by_host
from dovetail.pipeline.inputs.problem import MIB, Pipeline, checked_problem
from dovetail.pipeline.optimise.clock import Tell
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.stages import Found, Option, Stages
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.optimise.verify import faults
from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Objective, Plan, dead_link, flag
from dovetail.pipeline.planner import TIME_LIMIT_S
from dovetail.pipeline.policies.sizes import best_of, plan_sizes

Method = Literal["exact"] | str | Callable[..., Any]


def plan(
    problem: Pipeline | Sequence[Pipeline],
    *,
    objective: Objective = "throughput",
    microbatches: int = 8,
    slack: float = 0.0,
    latency_cap_s: float | None = None,
    first: str | None = None,
    last: str | None = None,
    max_stages: int | None = None,
    cuts: Sequence[int] = (),
    data_mbps: float | None = None,
    replicas: int = 1,
    link_bits: Sequence[int] = (32,),
    throughput_floor_items_s: float | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    method: Method = "exact",
    option: Mapping[str, Any] | None = None,
    progress: Tell | None = None,
) -> Plan:
    """Where to cut a model and which device gets which layers; `InfeasibleError` if there is no plan.

    Of several problems, such as several batch sizes, the plan that is best for the objective is given. The exact method
    keeps the objective and the constraints, which are those of `dovetail pipeline plan`; others, for comparison, know
    neither: a name with its options (`option`), `file.py:name`, or a function of one's own. That takes the problem, and
    gives a plan or just the stages, as hosts with their first and last layer; one that breaks a constraint is refused.

    After `time_limit_s` the best plan found is given, with its proven `gap`. `progress` is told the best value so far
    (infinite: none) and the bound; if it gives True, the search ends as it does after the time limit.

    >>> from dovetail import pipeline
    >>> fast = pipeline.DeviceClass("fast", "fast", ["a", "b"], bw_mbps=1000.0, mem_mib=99.0, time_s=[0.1, 0.2, 0.3])
    >>> problem = pipeline.Pipeline(model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[fast],
    ...     batch_size=1, dtype="torch.float32")
    >>> pipeline.plan(problem)
    <Plan m in 2 stages: 3.33333 items/s, bottleneck 0.3 s per microbatch of 1 (optimal): compute on a (layers 1 to 2)>
    host  type  first  last  compute_s  send_s  send_bits  mem_mib  utilisation
    a     fast      1     2        0.3       0         32        2            1
    b     fast      3     3        0.3       0         32        1            1
    >>> pipeline.plan(problem, method=lambda problem: [("b", 1, 1), ("a", 2, 3)]).bottleneck_s
    0.5
    >>> pipeline.plan(problem, latency_cap_s=0.5)
    Traceback (most recent call last):
    dovetail.pipeline.plan.InfeasibleError: no plan: --latency-cap-s 0.5 leaves no plan: the least latency ... 0.6 s
    """
    problems = problems_of(problem)
    if objective not in (known := get_args(Objective)):
        raise InputError(f"objective: expected one of {', '.join(known)}, found {objective!r}")
    option = named_options(option)
    asked = {"microbatches": microbatches, "slack": slack, "option": option, "time_limit_s": time_limit_s}
    checked(asked, _Asked)
    constraints = Constraints.given(
        problems[0],
        cuts,
        latency_cap_s=latency_cap_s,
        first=first,
        last=last,
        max_stages=max_stages,
        data_mbps=data_mbps,
        replicas=replicas,
        link_bits=link_bits,
        throughput_floor_items_s=throughput_floor_items_s,
    )
    check_functions(progress=progress)
    if method == "exact":
        if option:
            raise InputError(f"--option {next(iter(option))}: method exact has no options")
        tried = plan_sizes(
            problems,
            objective,
            constraints,
            microbatches=microbatches,
            slack=slack,
            time_limit_s=time_limit_s,
            progress=progress,
        )
    else:
        _check_method(method, option)
        _check_unconstrained(method, objective, constraints)
        tried = [plan_by(method, p, option, constraints) for p in problems]
    made = best_of(tried, objective)
    if made is not None:
        return made
    reasons = [reason for found in tried if isinstance(found, Infeasible) for reason in found.reasons]
    raise InfeasibleError(list(dict.fromkeys(reasons)))


class _Asked(Struct):
    time_limit_s: float
    microbatches: int
    slack: float
    option: dict[str, Any]


def problems_of(given: Any) -> list[Pipeline]:
    """One problem or several, if that is what was given."""
    problems = [given] if isinstance(given, Pipeline) else given
    if not isinstance(problems, list | tuple) or not problems or not all(isinstance(p, Pipeline) for p in problems):
        raise InputError(f"problem: expected what pipeline.load gives, or a list of that; found {given!r:.80}")
    return [checked_problem(problem) for problem in problems]


def _check_method(method: Method, options: Mapping[str, Any]) -> None:
    """Refuse a method that is not registered, and options that it does not take."""
    if callable(method):
        return
    if not isinstance(method, str):
        raise InputError(f"method: expected a name, file.py:name or a function of your own, found {method!r}")
    known = registry.names("pipeline")
    if method not in known and ".py:" not in method:
        raise InputError(f"--method {method}: unknown{did_you_mean(method, known)}")
    taken = list(registry.options_of("pipeline", method))[1:]
    for name in renamed(options) if method == "auction" else options:
        if name not in taken:
            raise InputError(f"--option {name}: method {method} has no such option{did_you_mean(name, taken)}")


def _check_unconstrained(method: Method, objective: str, constraints: Constraints) -> None:
    """Methods for comparison know neither objectives nor constraints: to ask them for some is an error."""
    name = method if isinstance(method, str) else _name(method)
    if objective != "throughput":
        raise InputError(f"--objective {objective}: expected method exact, found {name}")
    if name != method or ".py:" in name:
        return  # a user's own: what it gives is held against them
    free = Constraints()
    for key in constraints.__struct_fields__:
        if getattr(constraints, key) != getattr(free, key):
            raise InputError(f"{flag(key)}: expected method exact, found {name}, which keeps no constraints")


def _name(method: Any) -> str:
    return str(getattr(method, "__name__", type(method).__name__))


def plan_by(
    method: Method, pipeline: Pipeline, options: Mapping[str, Any], constraints: Constraints | None = None
) -> Plan | Infeasible:
    """The plan of a method for comparison, with its options as text or values."""
    asked = constraints or Constraints()
    if not isinstance(method, str):
        try:
            found = method(pipeline, **options)
        except DovetailError:
            raise
        except (Exception, SystemExit) as error:
            raise PolicyError(f"method {_name(method)} failed: {type(error).__name__}: {error}") from error
        return _from_stages(pipeline, found, _name(method), asked)
    given = renamed(options) if method == "auction" else dict(options)
    if isinstance(given.get("order"), str):
        given["order"] = given["order"].split(",")
    takes = next(iter(registry.options_of("pipeline", method)), "")
    return _from_stages(pipeline, registry.create("pipeline", method, {takes: pipeline} | given), method, asked)


def _from_stages(pipeline: Pipeline, found: Any, name: str, constraints: Constraints) -> Plan | Infeasible:
    """What a method gave, as a plan that keeps the constraints; stages are a host, its first and its last layer."""
    if isinstance(found, Plan | Infeasible):
        try:
            plan = msgspec.convert(msgspec.to_builtins(found), type(found))
        except (TypeError, ValueError) as error:
            raise InputError(f"method {name}: the plan that it gives is none: {error}") from None
    else:
        plan = _finished(pipeline, found, name, constraints)
    if isinstance(plan, Infeasible):
        return plan
    made: Plan = replace(plan, problem=pipeline, constraints=constraints)
    if made.bottleneck_s == inf:
        return dead_link(made)
    for fault in faults(made, own_ends=True):
        raise InputError(f"method {name}: the plan that it gives is none: {fault}")
    return made


def _finished(pipeline: Pipeline, found: Any, name: str, constraints: Constraints) -> Plan | Infeasible:
    one = by_host(pipeline)
    hosts, tables = [c.name for c in one.classes], Tables(one)
    chosen: Stages = []
    at = 0
    for stage in found if isinstance(found, list | tuple) else [found]:
        try:
            host, first, last = stage
            k, first, last = hosts.index(host), index(first), index(last)
        except (TypeError, ValueError):
            expected = f"a host of {', '.join(hosts)} with its first and last layer"
            raise InputError(f"method {name}: expected a plan, or stages: {expected}; found {stage!r}") from None
        if first != at + 1 or not first <= last <= one.layers or any(k == option.k for option, _, _ in chosen):
            raise InputError(f"method {name}: {stage!r} does not go on from layer {at} on a host that is free")
        if not tables.fits[k, at, last]:
            need = float(tables.need_bytes[at, last]) / MIB
            return Infeasible(model=one.model, reasons=[f"{host} has no room for {need:.1f} MiB of {first} to {last}"])
        chosen.append((Option(k), at, last))
        at = last
    if at != one.layers:
        raise InputError(f"method {name}: expected stages for layers 1 to {one.layers}, found them up to {at}")
    free = replace(constraints, first=None, last=None)  # hosts are named already
    return finish(tables, free, "throughput", Found(chosen, method=name))
