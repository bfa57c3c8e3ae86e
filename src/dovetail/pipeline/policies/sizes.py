"""Of several batch sizes the best plan for an objective: sizes compare in items, whatever a microbatch of theirs is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

from msgspec.structs import replace

from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.clock import Tell
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan
from dovetail.pipeline.planner import SPENT, TIME_LIMIT_S, knows, plan

_ANY_SLACK = 1e9  # where a floor on the throughput stands for the slack
_LEAST_S = 0.01  # of time for a size, however many there are
_Tried = dict[int, Plan | Infeasible]


def plan_sizes(
    problems: Sequence[Pipeline],
    objective: Objective,
    constraints: Constraints,
    *,
    microbatches: int,
    slack: float,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Tell | None = None,
) -> list[Plan | Infeasible]:
    """The best plan of each size for what it was asked; the time is for all of them.

    A batch is as many items at every size: `microbatches` of the largest one. Fewest devices are those within the slack
    of the best throughput that any size has. Sizes without a pinned host, or of whose spending nothing is known, have
    no plan; if no size has the host, or anything to spend, that is an error.
    """

    def ask(
        p: Pipeline, limit_s: float, what: Objective = objective, asked: Constraints = constraints
    ) -> Plan | Infeasible:
        count = ceil(microbatches * largest / p.batch_size)
        own = _ANY_SLACK if asked is not constraints else slack
        return plan(p, what, asked, microbatches=count, slack=own, time_limit_s=limit_s, progress=progress)

    largest = max(p.batch_size for p in problems)
    if len(problems) == 1:
        return [ask(problems[0], time_limit_s)]
    missing = [_missing(p, objective, constraints) for p in problems]
    unusable = {i: next(iter(reasons.values())) for i, reasons in enumerate(missing) if reasons}
    if set.intersection(*map(set, missing)):  # what no size has was asked for in error, which is told
        unusable = {}
    able = {i: p for i, p in enumerate(problems) if i not in unusable}
    if objective == "devices":
        fast = _in_turn(able, time_limit_s / 2, lambda p, limit_s: ask(p, limit_s, "throughput"))
        paces = {i: made.bottleneck_s / made.batch_size for i, made in fast.items() if isinstance(made, Plan)}
        least = min(paces.values(), default=0.0)
        floor = constraints
        if least > 0:
            items_s = max(1 / (least * (1 + slack)), constraints.throughput_floor_items_s or 0.0)
            floor = replace(constraints, throughput_floor_items_s=items_s)
        near = {i: able[i] for i, pace in paces.items() if least > 0 or pace == 0}
        tried = fast | _in_turn(near, time_limit_s / 2, lambda p, limit_s: ask(p, limit_s, "devices", floor))
        proven = all(found.optimal if isinstance(found, Plan) else found.proven for found in fast.values())
        tried = {i: _fewest(found, near.get(i), constraints, slack, proven) for i, found in tried.items()}
    else:
        tried = _in_turn(able, time_limit_s, ask)
    tried |= {i: Infeasible(model=problems[i].model, reasons=[reason]) for i, reason in unusable.items()}
    return [tried[i] for i in range(len(problems))]


def _in_turn(
    problems: dict[int, Pipeline], limit_s: float, ask: Callable[[Pipeline, float], Plan | Infeasible]
) -> _Tried:
    """Each in turn, with its part of the time that is left."""
    end_s = time.monotonic() + limit_s
    tried: _Tried = {}
    for i, p in problems.items():
        left_s = max(end_s - time.monotonic(), 0.0) / (len(problems) - len(tried))
        tried[i] = ask(p, max(left_s, _LEAST_S))
    return tried


def _missing(p: Pipeline, objective: Objective, constraints: Constraints) -> dict[str, str]:
    """What a size lacks that others may have, and why it cannot be planned for without."""
    size = f"profile of batch size {p.batch_size}"
    reasons = {host: f"{host} has no {size}" for host in constraints.pinned if host not in p.hosts}
    if not knows(p, objective):
        reasons[objective] = f"no device with a {size} has {' or '.join(SPENT[objective])}"
    return reasons


def _fewest(
    found: Plan | Infeasible, near: Pipeline | None, constraints: Constraints, slack: float, proven: bool
) -> Plan | Infeasible:
    """What was found of fewest devices at a size, as an answer to what was asked of all sizes."""
    if isinstance(found, Infeasible):
        return found
    if near is None:
        return Infeasible(model=found.model, reasons=[f"batch size {found.batch_size} is slower than another"])
    made = replace(found, constraints=constraints, slack=slack)
    return made if proven else _unproven(made, min(made.bound_s, made.value * (1 - 1e-6)))


def best_of(tried: Sequence[Plan | Infeasible], objective: Objective) -> Plan | None:
    """The best of plans for several sizes, with what is proven of all of them; of equal ones that with the highest
    throughput. None if there is no plan."""
    plans = [made for made in tried if isinstance(made, Plan)]
    if not plans:
        return None

    def scale(made: Plan) -> int:  # a bottleneck is that of a microbatch
        return made.batch_size if objective == "throughput" else 1

    least = min(made.value / scale(made) for made in plans)
    near = [made for made in plans if made.value / scale(made) <= least * (1 + 1e-9)]
    best = max(near, key=lambda made: made.throughput_items_s)
    bound = scale(best) * min(made.bound_s / scale(made) for made in plans)
    if not all(found.proven for found in tried if isinstance(found, Infeasible)):
        bound = 0.0
    return best if best.value <= bound * (1 + 1e-9) else _unproven(best, bound)


def _unproven(made: Plan, bound: float) -> Plan:
    return replace(made, bound_s=bound, optimal=False, gap=made.value / bound - 1 if bound > 0 else None)
