"""Plans: where to cut a model and which device gets which stage, for several objectives and under constraints."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.labels import Found
from dovetail.pipeline.optimise.search import Search
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan


def plan(
    pipeline: Pipeline,
    objective: Objective = "throughput",
    constraints: Constraints | None = None,
    *,
    microbatches: int = 8,
    slack: float = 0.0,
) -> Plan | Infeasible:
    """The best plan, or why there is none. `slack` is how far above the least bottleneck `devices` may go."""
    constraints = constraints or Constraints()
    for host in (constraints.first, constraints.last):
        if host is not None and all(host not in c.hosts for c in pipeline.classes):
            known = [host for c in pipeline.classes for host in c.hosts]
            raise InputError(f"{host!r} is not an available host{did_you_mean(host, known)}")
    if microbatches < 1:
        raise InputError(f"microbatches: expected 1 or more, found {microbatches}")
    if not 0 <= slack < inf:
        raise InputError(f"slack: expected 0 or more, found {slack:g}")
    cuts = None if constraints.allowed_cuts is None else set(constraints.allowed_cuts)
    tables = Tables(pipeline, cuts)
    if not pipeline.layers:
        return finish(tables, constraints, objective, Found.best([], 0.0))
    if not tables.counts or not len(tables.candidates):
        return _infeasible(tables, constraints)
    found = Search(tables, constraints).run(objective, microbatches, slack)
    if found is None:
        return _infeasible(tables, constraints)
    made = finish(tables, constraints, objective, found)
    made.microbatches, made.slack = microbatches, slack
    return made


def _infeasible(tables: Tables, constraints: Constraints) -> Infeasible:
    from dovetail.pipeline.optimise.infeasible import why_not

    return Infeasible(model=tables.pipeline.model, reasons=why_not(tables, constraints))


def again(made: Plan, pipeline: Pipeline | None = None) -> Plan | Infeasible:
    """The best plan for what another was made for: the same problem, or one that has changed since.

    A stage that was pinned to a host which is gone is free.
    """
    pipeline = pipeline or made.problem
    if pipeline is None:
        raise InputError("the plan does not hold the problem it was made for; make it again with this version")
    known = {host for c in pipeline.classes for host in c.hosts}
    given = made.constraints or Constraints()
    gone = {name: None for name in ("first", "last") if getattr(given, name) not in known}
    constraints = replace(given, **gone)
    return plan(pipeline, made.objective, constraints, microbatches=made.microbatches, slack=made.slack)
