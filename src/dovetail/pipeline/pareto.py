"""The Pareto front: the plans of which no other is at least as good in bottleneck, latency and number of devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, check_functions
from dovetail.pipeline.inputs.problem import Pipeline, checked_problem
from dovetail.pipeline.optimise.boxes import Boxes, FrontPoint
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.stages import Found, Option
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.optimise.verify import verified
from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Plan
from dovetail.pipeline.planner import TIME_LIMIT_S, check_time_limit, plan

if TYPE_CHECKING:
    from dovetail.core.results.comparison import Comparison

_FIRST_SHARE = 0.3  # of the time, for the least bottleneck: no plan of the front is faster


class Front(Struct, kw_only=True):
    """The plans of the front from the least bottleneck on; `complete` says that every one was found.

    Every possible plan is within `factor` of one that was found, in all three figures: 0.02 is 2 %, 0 if the front is
    complete, None if nothing is proven. `found` counts plans before some were left out to keep to the number of points
    asked for.
    """

    model: str
    complete: bool
    factor: float | None
    found: int
    points: list[Plan]
    problem: Pipeline
    constraints: Constraints

    @property
    def table(self) -> Comparison:
        """A row per plan; energy and money only where they are known."""
        from dovetail.core.results.comparison import Comparison

        priced = [key for key in ("energy_j_per_item", "money_per_item") if any(getattr(p, key) for p in self.points)]
        keys = ("bottleneck_s", "throughput_items_s", "latency_s")
        rows = [
            {key: getattr(p, key) for key in keys}
            | {"devices": len(p.hosts)}
            | {key: getattr(p, key) for key in priced}
            | {"stages": ", ".join(f"{stage.host} {stage.layers[0]}-{stage.layers[1]}" for stage in p.stages)}
            for p in self.points
        ]
        return Comparison(rows)

    def proof(self) -> str:
        """What is known of the plans that were not found."""
        if self.complete:
            return "No other plan is missing."
        if self.factor is None:
            return "There may be more: the search was cut short."
        return f"Every possible plan is within {100 * self.factor:.2g} % of one of the {self.found} found in all three."

    def frame(self) -> Any:
        """A row per plan: a frame of pandas or polars where one is installed, else columns."""
        return self.table.frame()

    def __repr__(self) -> str:
        return f"<Front {self.model}: {len(self.points)} of {self.found} plans. {self.proof()}>\n{self.table}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def front(
    problem: Pipeline,
    *,
    points: int | None = 20,
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
    progress: Callable[[float], object] | None = None,
) -> Front:
    """All plans that no other beats in bottleneck, latency and number of devices; at most `points` of them, spread from
    end to end. `InfeasibleError` if there is no plan.

    After `time_limit_s` the plans found so far are given, with the `factor` by which others may be better. `progress`
    is told how near all others are known to be, from 0 to 1 (none is missing); if it gives True, the search ends as it
    does after the time limit.
    """
    if not isinstance(problem, Pipeline):
        raise InputError(f"problem: expected what pipeline.load gives, found {problem!r:.80}")
    problem = checked_problem(problem)
    check_functions(progress=progress)
    if points is not None and not (type(points) is int and points >= 2):
        raise InputError(f"points: expected 2 or more, found {points}")
    constraints = Constraints.given(
        problem,
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
    check_time_limit(time_limit_s)
    start_s = time.monotonic()
    least = plan(problem, "throughput", constraints, time_limit_s=_FIRST_SHARE * time_limit_s)
    if isinstance(least, Infeasible) and not least.proven:
        least = plan(problem, "throughput", constraints, time_limit_s=(1 - _FIRST_SHARE) * time_limit_s)
    if isinstance(least, Infeasible):
        raise InfeasibleError(least.reasons)
    made, factor = [least], 0.0
    if least.stages:
        clock = _Told(max(start_s + time_limit_s - time.monotonic(), 0.0), progress or (lambda share: None))
        made, factor = _found(least, constraints, clock)
    shown = made if points is None else _spread(made, points)
    for one in shown:
        one.problem = one.constraints = None  # kept once, beside the points
    return Front(
        model=problem.model,
        complete=factor == 0,
        factor=factor if factor < inf else None,
        found=len(made),
        points=shown,
        problem=problem,
        constraints=constraints,
    )


class _Told(SearchClock):
    """A clock that tells how much is done, and is over when it is told so."""

    def __init__(self, limit_s: float, progress: Callable[[float], object]) -> None:
        super().__init__(limit_s, lambda best, bound: progress(self.share))
        self._progress = progress
        self.share = 0.0

    def near(self, factor: float) -> None:
        """What others may be better by; it may seem to grow, where a box is split."""
        self.share = max(self.share, 1 / (1 + factor))
        self.stopped = self.stopped or self._progress(self.share) is True


def _found(least: Plan, constraints: Constraints, clock: _Told) -> tuple[list[Plan], float]:
    """The plans of the front, and how near all others are."""
    assert least.problem is not None
    tables = Tables(least.problem, None if constraints.allowed_cuts is None else set(constraints.allowed_cuts))
    boxes = Boxes(Costs(tables, constraints), clock)
    at = {host: k for k, c in enumerate(least.problem.classes) for host in c.hosts}
    boxes.offer([(Option(at[s.host], len(s.hosts)), s.layers[0] - 1, s.layers[1]) for s in least.stages])
    factor = boxes.run(least.bound_s, clock.near)
    clock.near(factor)
    proven = factor == 0

    def planned(point: FrontPoint) -> Plan:
        limits = replace(
            constraints, latency_cap_s=point.latency_s, max_stages=point.devices
        )  # as fast as any of these
        found = Found(point.stages, point.pace_s, point.pace_s if proven else 0.0, proven)
        return verified(finish(tables, limits, "throughput", found))

    return [planned(point) for point in sorted(boxes.points)], factor


def _spread(plans: list[Plan], count: int) -> list[Plan]:
    """So many of them, evenly from the first to the last."""
    if len(plans) <= count:
        return plans
    return [plans[round(i * (len(plans) - 1) / (count - 1))] for i in range(count)]
