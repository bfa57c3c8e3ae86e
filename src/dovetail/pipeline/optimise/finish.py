"""From the chosen stages to a plan: hosts by name, widths on the links, and every figure."""

from __future__ import annotations

from math import inf

from dovetail.pipeline.inputs.problem import MIB, Pipeline
from dovetail.pipeline.optimise.chains import LIMIT
from dovetail.pipeline.optimise.costs import width_share
from dovetail.pipeline.optimise.stages import Found, Option, Stages
from dovetail.pipeline.optimise.tables import Tables, data_s
from dovetail.pipeline.plan import Constraints, Objective, Plan, Stage


def finish(
    tables: Tables,
    constraints: Constraints,
    objective: Objective,
    found: Found,
    ends_s: tuple[float, float] | None = None,
) -> Plan:
    """Name the hosts, choose the widths on the links, and compute every figure of the plan from its stages.

    `ends_s` are the transfers from and to a data host, where they are not those of the constraints. Without a value of
    its own the plan has its bottleneck for one.
    """
    p, chosen = tables.pipeline, found.stages
    if ends_s is None and chosen:
        ends_s = (
            data_s(p, chosen[0][0].k, 0, constraints.data_mbps),
            data_s(p, chosen[-1][0].k, p.layers, constraints.data_mbps),
        )
    enter_s, leave_s = ends_s or (0.0, 0.0)
    singles = [float(tables.compute[o.k, i, j]) for o, i, j in chosen]
    computes = [single / o.devices for single, (o, _, _) in zip(singles, chosen, strict=True)]
    widths = [min(constraints.link_bits)] * len(chosen)
    least = [_sends(tables, chosen, x, bits, leave_s) for x, bits in enumerate(widths)]
    bottleneck = max([*computes, *least, enter_s], default=0.0)
    cap_s = inf if constraints.latency_cap_s is None else constraints.latency_cap_s * LIMIT
    for x, narrow in enumerate(widths):
        alone = [_sends(tables, chosen, y, bits, leave_s, alone=True) for y, bits in enumerate(widths)]
        spare_s = 0.0 if objective in ("latency", "batch") else cap_s - (sum(singles) + sum(alone) + enter_s)
        widths[x] = max(
            bits
            for bits in constraints.link_bits
            if bits == narrow
            or (
                _sends(tables, chosen, x, bits, leave_s) <= bottleneck
                and _sends(tables, chosen, x, bits, leave_s, alone=True) <= alone[x] + max(spare_s, 0.0)
            )
        )
    stages = _stages(tables, constraints, chosen, bottleneck, leave_s, widths)
    waits = [_sends(tables, chosen, x, bits, leave_s, alone=True) for x, bits in enumerate(widths)]
    return Plan(
        model=p.model,
        objective=objective,
        method=found.method,
        batch_size=p.batch_size,
        bottleneck_s=bottleneck,
        latency_s=sum(singles) + sum(waits) + enter_s,
        throughput_items_s=p.batch_size / bottleneck if bottleneck else 0.0,
        value=bottleneck if found.value is None else found.value,
        bound_s=found.bound_s,
        optimal=found.optimal,
        gap=found.gap,
        binding=_binding(stages, bottleneck, enter_s),
        stages=stages,
        enter_s=enter_s,
        energy_j_per_item=_energy_j(p, chosen, computes, bottleneck),
        money_per_item=_money(p, chosen, bottleneck),
        probes=found.probes,
        problem=p,
        constraints=constraints,
    )


def _stages(
    tables: Tables,
    constraints: Constraints,
    chosen: Stages,
    bottleneck_s: float,
    leave_s: float,
    widths: list[int],
) -> list[Stage]:
    p = tables.pipeline
    hosts = _named(p, constraints, [option for option, _, _ in chosen])
    stages = []
    for x, (option, i, j) in enumerate(chosen):
        compute_s = float(tables.compute[option.k, i, j]) / option.devices
        send_s = _sends(tables, chosen, x, widths[x], leave_s)
        device, mem_mib = p.classes[option.k], float(tables.need_bytes[i, j]) / MIB
        stages.append(
            Stage(
                host=hosts[x][0],
                type=device.type,
                layers=(i + 1, j),
                compute_s=compute_s,
                send_s=send_s,
                send_bits=widths[x],
                mem_mib=mem_mib,
                mem_limit_mib=device.mem_mib,
                utilisation=compute_s / bottleneck_s if bottleneck_s else 0.0,
                replicas=hosts[x][1:],
                slack_s=bottleneck_s - compute_s,
                send_slack_s=bottleneck_s - send_s,
                mem_slack_mib=device.mem_mib - mem_mib,
            )
        )
    return stages


def _named(p: Pipeline, constraints: Constraints, options: list[Option]) -> list[list[str]]:
    """Hosts for each stage, in the order of the files; pinned ones come first at their end of the pipeline."""
    pins: list[list[str]] = [[] for _ in options]
    for x, host in ((0, constraints.first), (-1, constraints.last)):
        if host is not None and pins and host not in pins[x]:
            pins[x].append(host)
    free = [[host for host in c.hosts if host not in constraints.pinned] for c in p.classes]
    return [
        [*pinned, *(free[option.k].pop(0) for _ in range(option.devices - len(pinned)))]
        for pinned, option in zip(pins, options, strict=True)
    ]


def _energy_j(p: Pipeline, chosen: Stages, computes: list[float], bottleneck_s: float) -> float | None:
    """Joules per item: what devices draw while busy and while they wait for the slowest; None if watts are unknown."""
    if not any(c.watts_busy or c.watts_idle for c in p.classes):
        return None
    drawn = 0.0
    for (option, _, _), busy_s in zip(chosen, computes, strict=True):
        c = p.classes[option.k]
        drawn += option.devices * (busy_s * c.watts_busy + (bottleneck_s - busy_s) * c.watts_idle)
    return drawn / p.batch_size


def _money(p: Pipeline, chosen: Stages, bottleneck_s: float) -> float | None:
    """What an item costs at the devices' hourly prices; None if no prices are known."""
    if not any(c.price_per_hour for c in p.classes):
        return None
    per_hour = sum(option.devices * p.classes[option.k].price_per_hour for option, _, _ in chosen)
    return per_hour / 3600 * bottleneck_s / p.batch_size


def _sends(tables: Tables, chosen: Stages, x: int, bits: int, leave_s: float, alone: bool = False) -> float:
    """Seconds to send what a stage gives: the pace of its link, or what one microbatch waits for it."""
    p = tables.pipeline
    option, _, j = chosen[x]
    if x == len(chosen) - 1:
        return leave_s
    following = chosen[x + 1][0]
    latency = p.link_s[option.k][following.k] if p.link_s else 0.0
    full = float(tables.transfers[option.k, following.k, j]) - latency
    return (full * width_share(p.dtype, bits) + latency) / (1 if alone else min(option.devices, following.devices))


def _binding(stages: list[Stage], bottleneck_s: float, enter_s: float) -> str:
    if enter_s and enter_s == bottleneck_s:
        return "the transfer of the input"
    for x, stage in enumerate(stages):
        if stage.compute_s == bottleneck_s:
            return f"compute on {stage.host} (layers {stage.layers[0]} to {stage.layers[1]})"
        if stage.send_s == bottleneck_s:
            to = stages[x + 1].host if x + 1 < len(stages) else "the data host"
            return f"the link from {stage.host} to {to} (after layer {stage.layers[1]})"
    return ""
