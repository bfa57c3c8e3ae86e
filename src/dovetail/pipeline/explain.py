"""What other devices and links would change: one device more or fewer, and curves of the best throughput."""

from __future__ import annotations

from math import inf

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.charts import Chart, Series
from dovetail.pipeline.inputs.pool import with_hosts
from dovetail.pipeline.inputs.problem import Pipeline
from dovetail.pipeline.optimise.costs import StageCosts
from dovetail.pipeline.optimise.furthest import Prober
from dovetail.pipeline.optimise.labels import cheapest_by_devices
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Objective, Plan
from dovetail.pipeline.planner import plan

# Effort, so that both curves take about a second at most: points are left out where all would take more.
_MOST_ADDITIONS = 3e8
_MOST_LOOK_UPS = 1e7
_FACTORS = tuple(2.0**i for i in range(-4, 5))


def curves(pipeline: Pipeline, constraints: Constraints | None = None) -> list[Chart]:
    """Throughput against the number of devices, and against the speed of all links; what is too large is left out.

    The limits on latency and on the number of stages are those of one plan, and are not kept here.
    """
    free = replace(constraints or Constraints(), latency_cap_s=None, max_stages=None)
    return [chart for chart in (_by_devices(pipeline, free), _by_bandwidth(pipeline, free)) if chart.series]


def curves_of(made: Plan) -> list[Chart]:
    """The curves of the problem that a plan was made for; none if it does not hold it."""
    return curves(made.problem, made.constraints) if made.problem is not None else []


def _by_devices(pipeline: Pipeline, constraints: Constraints) -> Chart:
    chart = Chart("Throughput by number of devices", "devices, at most", "items/s", [])
    tables = Tables(pipeline, None if constraints.allowed_cuts is None else set(constraints.allowed_cuts))
    if not tables.counts:
        return chart
    costs = StageCosts(tables, constraints)
    if costs.work > _MOST_ADDITIONS / 2:
        return chart
    found = cheapest_by_devices(costs.chain(inf), "max")
    points, least_s = [], inf
    for devices in range(1, sum(tables.counts) + 1):
        least_s = min(least_s, found[devices].value if devices in found else inf)
        if 0 < least_s < inf:
            points.append((float(devices), pipeline.batch_size / least_s))
    chart.series = [Series("best plan", points)] if points else []
    return chart


def _by_bandwidth(pipeline: Pipeline, constraints: Constraints) -> Chart:
    chart = Chart("Throughput by speed of the links", "all links so many times as fast", "items/s", [], log_x=True)
    plain = constraints.plain and pipeline.link_mbps is None and constraints.link_bits == (32,)
    tables = Tables(pipeline)
    if plain:
        most = _MOST_LOOK_UPS / (Prober.size(tables.counts) * max(len(tables.counts), 1))
    else:
        most = _MOST_ADDITIONS / max(StageCosts(tables, constraints).work, 1.0)
    thinned = (_FACTORS[::step] for step in (1, 2, 4))
    points = []
    for factor in next((factors for factors in thinned if len(factors) <= most), ()):
        found = plan(*_faster(pipeline, constraints, factor))
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


class WhatIf(Struct):
    """A change of the pool and the least bottleneck after it; None if there is no plan any more."""

    type: str
    change: int
    bottleneck_s: float | None
    ratio: float | None


def what_if(pipeline: Pipeline, now: Plan, constraints: Constraints | None = None) -> list[WhatIf]:
    """The least bottleneck with one device more and one fewer of each class."""
    rows = []
    for k, device in enumerate(pipeline.classes):
        for change in (1, -1):
            if change > 0:
                hosts = [*device.hosts, f"one more {device.name}"]
            else:  # hosts of a class are alike but for a pin
                free = [host for host in device.hosts if constraints is None or host not in constraints.pinned]
                if not free:
                    continue
                hosts = [host for host in device.hosts if host != free[-1]]
            other = plan(with_hosts(pipeline, k, hosts), "throughput", constraints)
            value = other.bottleneck_s if isinstance(other, Plan) else None
            ratio = value / now.bottleneck_s if value is not None and now.bottleneck_s else None
            rows.append(WhatIf(device.type, change, value, ratio))
    return rows
