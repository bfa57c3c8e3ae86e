"""What other devices and links would change: one device more or fewer, and curves of the best throughput."""

from __future__ import annotations

import time
from math import inf
from typing import Literal

import numpy as np
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.files.document import Source
from dovetail.core.results.charts import Chart, Series
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.run import Picture
from dovetail.pipeline.inputs.pool import with_hosts
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.by_devices import cheapest_by_devices, work
from dovetail.pipeline.optimise.chains import Chains
from dovetail.pipeline.optimise.costs import Costs
from dovetail.pipeline.optimise.furthest import Prober
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Objective, Plan, read_plan
from dovetail.pipeline.planner import TIME_LIMIT_S, check_time_limit, knows
from dovetail.pipeline.planner import plan as plan_exactly

# Effort, so that both curves take about a second at most: points are left out where all would take more.
_MOST_ADDITIONS = 3e8
_MOST_LOOK_UPS = 1e7
_LEAST_S = 0.01  # of time for a change, however many there are
_BY_DEVICES, _BY_LINKS = "Throughput by number of devices", "Throughput by speed of the links"
_FACTORS = tuple(2.0**i for i in range(-4, 5))


class Curves(list[Chart]):
    """Charts; a notebook shows them."""

    def plot(self, what: Literal["devices", "links"] = "devices") -> Picture:
        """The throughput of the best plan by number of devices, or by speed of the links."""
        title = {"devices": _BY_DEVICES, "links": _BY_LINKS}.get(what)
        if title is None:
            raise InputError(f"what {what!r}: expected devices or links")
        chart = next((chart for chart in self if chart.title == title), None)
        if chart is None:
            raise InputError(f"what {what!r}: the problem is too large for this curve")
        return Picture.of(chart)

    def _repr_html_(self) -> str:
        return "".join(Picture.of(chart).svg for chart in self)


def curves(plan: Plan | Source) -> Curves:
    """Throughput against the number of devices, and against the speed of all links, for the problem that a plan was
    made for; what is too large is left out.

    The limits on latency, throughput and the number of stages are those of one plan, and are not kept here.
    """
    made = read_plan(plan)
    if made.problem is None:
        return Curves()
    free = replace(
        made.constraints or Constraints(), latency_cap_s=None, throughput_floor_items_s=None, max_stages=None
    )
    return Curves(c for c in (_by_devices(made.problem, free), _by_bandwidth(made.problem, free)) if c.series)


def _by_devices(pipeline: Pipeline, constraints: Constraints) -> Chart:
    chart = Chart(_BY_DEVICES, "devices, at most", "items/s", [])
    tables = Tables(pipeline, None if constraints.allowed_cuts is None else set(constraints.allowed_cuts))
    if not tables.counts:
        return chart
    costs = Costs(tables, constraints)
    if work(costs) > _MOST_ADDITIONS / 2:
        return chart
    paces = (costs.stage_pace_s, costs.link_pace_s, costs.enter_s, costs.leave_s)
    chains = Chains(costs.options, tables.counts, *paces, np.zeros(len(costs.options)))
    found = cheapest_by_devices(chains, "max")
    points, least_s = [], inf
    for devices in range(1, sum(tables.counts) + 1):
        least_s = min(least_s, found[devices].value if devices in found else inf)
        if 0 < least_s < inf:
            points.append((float(devices), pipeline.batch_size / least_s))
    chart.series = [Series("best plan", points)] if points else []
    return chart


def _by_bandwidth(pipeline: Pipeline, constraints: Constraints) -> Chart:
    chart = Chart(_BY_LINKS, "all links so many times as fast", "items/s", [], log_x=True)
    plain = constraints.plain and pipeline.link_mbps is None and constraints.link_bits == (32,)
    tables = Tables(pipeline)
    if plain:
        most = _MOST_LOOK_UPS / (Prober.size(tables.counts) * max(len(tables.counts), 1))
    else:
        most = _MOST_ADDITIONS / max(work(Costs(tables, constraints)), 1.0)
    thinned = (_FACTORS[::step] for step in (1, 2, 4))
    points = []
    for factor in next((factors for factors in thinned if len(factors) <= most), ()):
        found = plan_exactly(*_faster(pipeline, constraints, factor))
        if isinstance(found, Plan) and found.bottleneck_s:
            points.append((factor, found.throughput_items_s))
    chart.series = [Series("best plan", points)] if points else []
    return chart


def _faster(pipeline: Pipeline, constraints: Constraints, factor: float) -> tuple[Pipeline, Objective, Constraints]:
    table = pipeline.link_mbps
    faster = replace(
        pipeline,
        classes=[replace(c, bw_mbps=c.bw_mbps * factor) for c in pipeline.classes],
        link_mbps=None if table is None else [[mbps * factor for mbps in row] for row in table],
    )
    data_mbps = constraints.data_mbps
    return faster, "throughput", replace(constraints, data_mbps=data_mbps and data_mbps * factor)


def what_if(plan: Plan | Source, *, time_limit_s: float = TIME_LIMIT_S) -> Comparison:
    """The best plan with one device more and one fewer of each class, for what a plan was made for: a row each with
    `type`, `change`, the `value` of the objective (None if there is no plan any more, or nothing known of what it
    spends), its `ratio` to now, and the plan's `bottleneck_s`.

    The time is for all of them: where it does not reach to prove one, it is the best that was found.

    >>> from dovetail import pipeline
    >>> device = pipeline.DeviceClass("t", "t", ["a"], bw_mbps=1000.0, mem_mib=99.0, time_s=[0.25, 0.25])
    >>> problem = pipeline.Pipeline(model="m", layers=2, mem_mib=[1.0] * 2, cut_bytes=[0] * 3, classes=[device],
    ...     batch_size=1, dtype="torch.float32")
    >>> pipeline.what_if(pipeline.plan(problem))
    type  change  value  ratio  bottleneck_s
    t          1   0.25    0.5          0.25
    t         -1      -      -             -
    """
    check_time_limit(time_limit_s)
    end_s = time.monotonic() + time_limit_s
    now = read_plan(plan)
    if now.problem is None:
        raise InputError("plan: it does not hold the problem it was made for; make it again with this version")
    objective = now.objective
    if objective == "tokens" or objective == "ttft":  # mypy does not narrow `in`
        raise InputError("plan: it is one for generation; plan_generation says what another pool gives")
    pinned = now.constraints.pinned if now.constraints is not None else []
    changes: list[tuple[int, int, list[str]]] = []
    for k, device in enumerate(now.problem.classes):
        changes.append((k, 1, [*device.hosts, f"one more {device.name}"]))
        if free := [host for host in device.hosts if host not in pinned]:  # hosts of a class are alike but for a pin
            changes.append((k, -1, [host for host in device.hosts if host != free[-1]]))
    rows = []
    for done, (k, change, hosts) in enumerate(changes):
        left_s = max((end_s - time.monotonic()) / (len(changes) - done), _LEAST_S)
        problem = with_hosts(now.problem, k, hosts)
        other = _best_of(problem, now, objective, left_s) if knows(problem, objective) else None
        ratio = other.value / now.value if other is not None and now.value else None
        figures = {"value": other and other.value, "ratio": ratio, "bottleneck_s": other and other.bottleneck_s}
        rows.append({"type": now.problem.classes[k].type, "change": change} | figures)
    return Comparison(rows)


def _best_of(problem: Pipeline, now: Plan, objective: Objective, limit_s: float) -> Plan | None:
    """The best plan of another problem for what one was made for."""
    found = plan_exactly(
        problem, objective, now.constraints, microbatches=now.microbatches, slack=now.slack, time_limit_s=limit_s
    )
    return found if isinstance(found, Plan) else None
