"""The plan for the hosts that are left, as slow as they have become."""

from __future__ import annotations

from dovetail.pipeline.inputs.pool import slowed, without
from dovetail.pipeline.live.supervisor import Replan
from dovetail.pipeline.plan import Infeasible, Plan
from dovetail.pipeline.planner import again


def replanner(plan: Plan, absent: frozenset[str] = frozenset()) -> Replan:
    """A function that plans the same problem again, without dead hosts and those that are not there, and with slowed
    ones."""

    def replan(dead: frozenset[str], factors: dict[str, float]) -> Plan | Infeasible:
        problem = plan.problem
        if problem is None:
            return Infeasible(model=plan.model, reasons=["the plan does not hold its problem; make it again"])
        dead = dead | absent
        known = {host for device in problem.classes for host in device.hosts}
        if not known - dead:
            return Infeasible(model=plan.model, reasons=["all hosts are dead"])
        problem = without(problem, dead & known)
        for host, factor in factors.items():
            if host in known - dead:
                problem = slowed(problem, host, factor)
        return again(plan, problem)

    return replan
