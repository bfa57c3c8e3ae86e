"""Plans: where to cut a model and which device gets which stage, for several objectives and under constraints."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.clock import SearchClock, Tell
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.search import Search
from dovetail.pipeline.optimise.stages import Found
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.optimise.verify import verified
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan

TIME_LIMIT_S = 10.0
SPENT = {"energy": ("watts_busy", "watts_idle"), "money": ("price_per_hour",)}


def plan(
    pipeline: Pipeline,
    objective: Objective = "throughput",
    constraints: Constraints | None = None,
    *,
    microbatches: int = 8,
    slack: float = 0.0,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Tell | None = None,
) -> Plan | Infeasible:
    """The best plan that is found in time, with how near it is to the best, or why there is none.

    `slack` is how far above the least bottleneck `devices` may go. `progress` is told the best value and the bound;
    if it gives True, the search ends as it does after the time limit.
    """
    constraints = constraints or Constraints()
    for host in (constraints.first, constraints.last):
        if host is not None and all(host not in c.hosts for c in pipeline.classes):
            known = [host for c in pipeline.classes for host in c.hosts]
            raise InputError(f"{host!r} is not an available host{did_you_mean(host, known)}")
    if microbatches < 1:
        raise InputError(f"microbatches: expected 1 or more, found {microbatches}")
    if not 0 <= slack < inf:
        raise InputError(f"slack: expected 0 or more, found {slack:g}")
    check_time_limit(time_limit_s)
    clock = SearchClock(time_limit_s, progress)
    cuts = None if constraints.allowed_cuts is None else set(constraints.allowed_cuts)
    tables = Tables(pipeline, cuts)
    if not pipeline.layers:
        return finish(tables, constraints, objective, Found.best([], 0.0))
    search = Search(tables, constraints, clock)
    found = search.run(objective, microbatches, slack)
    if found.stages is None:
        if found.bound < inf:
            ended = "before the search was stopped" if clock.stopped else f"in {time_limit_s:g} s (--time-limit-s)"
            told = f"no plan was found {ended}; that there is none is not proven"
            return Infeasible(model=pipeline.model, reasons=[told], proven=False)
        from dovetail.pipeline.optimise.infeasible import why_not

        return Infeasible(model=pipeline.model, reasons=why_not(tables, constraints, clock))
    bound = found.value if found.closed else found.bound
    method = "exact" if found.proven else "exact, within the slack of the best pace found"
    made = finish(tables, constraints, objective, Found(found.stages, found.value, bound, found.closed, method))
    made.probes, made.microbatches, made.slack = search.probes, microbatches, slack
    if not found.proven and made.gap is not None:
        made.gap = max(made.gap, search.pace_gap) if search.pace_gap < inf else None
    return verified(made)


def check_time_limit(time_limit_s: float) -> None:
    """Refuse what is no time."""
    if not isinstance(time_limit_s, int | float) or not 0 < time_limit_s < inf:
        raise InputError(f"--time-limit-s {time_limit_s!r}: expected a positive number of seconds")


def knows(pipeline: Pipeline, objective: Objective) -> bool:
    """Whether anything is known of what an objective spends."""
    keys = SPENT.get(objective, ())
    return not keys or any(getattr(c, key) for c in pipeline.classes for key in keys)


def again(made: Plan, pipeline: Pipeline | None = None) -> Plan | Infeasible:
    """The best plan for what another was made for: the same problem, or one that has changed since.

    A stage that was pinned to a host which is gone is free. Where nothing is known any more of what was to be spent, it
    is the fastest plan.
    """
    pipeline = pipeline or made.problem
    if pipeline is None:
        raise InputError("the plan does not hold the problem it was made for; make it again with this version")
    known = {host for c in pipeline.classes for host in c.hosts}
    given = made.constraints or Constraints()
    gone = {name: None for name in ("first", "last") if getattr(given, name) not in known}
    constraints = replace(given, **gone)
    objective = _again_for(made)
    if not knows(pipeline, objective):
        objective = "throughput"
    return plan(pipeline, objective, constraints, microbatches=made.microbatches, slack=made.slack)


def _again_for(made: Plan) -> Objective:
    """What a plan is made for again; one for generation, whose prompts the problem does not hold, for its tokens."""
    if made.objective == "tokens" or made.objective == "ttft":
        return "throughput" if made.generation is not None and made.generation.groups > 1 else "latency"
    return made.objective
