"""The best plan there is."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.pipeline.inputs import Pipeline
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan
from dovetail.pipeline.planner import plan


@policy("exact", level="pipeline")
def exact(
    pipeline: Pipeline,
    objective: Objective = "throughput",
    constraints: Constraints | None = None,
    microbatches: int = 8,
    slack: float = 0.0,
) -> Plan | Infeasible:
    """No plan has a smaller value of the objective; if the pool is too large for proof, the gap is stated."""
    return plan(pipeline, objective, constraints, microbatches=microbatches, slack=slack)
