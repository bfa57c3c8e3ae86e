"""A plan and its figures: which device gets which layers, what that gives, what binds it; or why there is none."""

from __future__ import annotations

from math import inf
from typing import Literal

from msgspec import Struct, field

from dovetail.pipeline.inputs import Pipeline
from dovetail.pipeline.labels import Option
from dovetail.pipeline.tables import BYTES_PER_S, MIB, Tables

Objective = Literal["throughput", "latency", "batch", "devices", "energy", "money"]


class Constraints(Struct, frozen=True, kw_only=True):
    """What a plan must respect."""

    latency_cap_s: float | None = None
    first: str | None = None  # host that must hold the first stage
    last: str | None = None  # host that must hold the last stage
    max_stages: int | None = None
    allowed_cuts: frozenset[int] | None = None  # layers after which a cut may be made
    data_mbps: float | None = None  # bandwidth of the host that sends the input and takes the output
    replicas: int = 1  # devices of one class that may take turns at a stage
    link_bits: tuple[int, ...] = (32,)  # widths that values may have on a link

    @property
    def plain(self) -> bool:
        """Whether none of them needs the general planner."""
        return self == Constraints(allowed_cuts=self.allowed_cuts, link_bits=self.link_bits)

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        for name in ("latency_cap_s", "max_stages", "data_mbps", "replicas"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                return f"{name}: expected a positive number, found {value}"
        if not self.link_bits or any(not 1 <= bits <= 32 for bits in self.link_bits):
            return f"link_bits: expected widths from 1 to 32, found {list(self.link_bits)}"
        return None


class Stage(Struct, kw_only=True):
    """One stage. `send_s` is the transfer to the next (of the last: to the data host, if there is one)."""

    host: str
    type: str
    layers: tuple[int, int]  # first and last, from 1
    compute_s: float
    send_s: float
    send_bits: int
    mem_mib: float
    mem_limit_mib: float
    utilisation: float
    replicas: list[str] = field(default_factory=list)


class Plan(Struct, kw_only=True):
    """A plan and what it gives. `bound_s` is proven: no plan has a smaller value of the objective."""

    model: str
    objective: Objective
    method: str
    batch_size: int
    bottleneck_s: float
    latency_s: float
    throughput_items_s: float
    value: float
    bound_s: float
    optimal: bool
    binding: str
    stages: list[Stage]
    energy_j_per_item: float | None = None
    money_per_item: float | None = None
    probes: int = 0


class Infeasible(Struct, kw_only=True):
    """There is no plan, and why."""

    model: str
    reasons: list[str]


def data_s(p: Pipeline, k: int, cut: int, data_mbps: float | None) -> float:
    if data_mbps is None:
        return 0.0
    mbps = min(data_mbps, p.classes[k].bw_mbps)
    return p.cut_bytes[cut] / (mbps * BYTES_PER_S) if mbps > 0 else inf


def finish(
    tables: Tables,
    constraints: Constraints,
    objective: Objective,
    chosen: list[tuple[Option, int, int]],
    value: float,
    bound: float,
    optimal: bool,
    method: str,
    probes: int,
) -> Plan:
    """Name the hosts, choose the widths on the links, and compute every figure of the plan from its stages."""
    p = tables.pipeline
    free = [list(c.hosts) for c in p.classes]
    pinned = (constraints.first, constraints.last)
    if chosen:
        for (option, _, _), host in ((chosen[0], pinned[0]), (chosen[-1], pinned[1])):
            if host is not None and host in free[option.k]:
                free[option.k].remove(host)
    computes = [float(tables.compute[o.k, i, j]) / o.devices for o, i, j in chosen]
    widths = sorted(constraints.link_bits)
    least = [_sends(tables, constraints, chosen, x, widths[0]) for x in range(len(chosen))]
    enter_s = data_s(p, chosen[0][0].k, 0, constraints.data_mbps) if chosen else 0.0
    bottleneck = max([*computes, *least, enter_s], default=0.0)
    stages, sends = [], []
    for x, (option, i, j) in enumerate(chosen):
        bits = max(b for b in widths if b == widths[0] or _sends(tables, constraints, chosen, x, b) <= bottleneck)
        sends.append(_sends(tables, constraints, chosen, x, bits))
        hosts = []
        for n in range(option.devices):
            host = pinned[0] if x == 0 and n == 0 else pinned[1] if x == len(chosen) - 1 and n == 0 else None
            hosts.append(host if host is not None and host in p.classes[option.k].hosts else free[option.k].pop(0))
        device = p.classes[option.k]
        stages.append(
            Stage(
                host=hosts[0],
                type=device.type,
                layers=(i + 1, j),
                compute_s=computes[x],
                send_s=sends[x],
                send_bits=bits,
                mem_mib=float(tables.need_bytes[i, j]) / MIB,
                mem_limit_mib=device.mem_mib,
                utilisation=computes[x] / bottleneck if bottleneck else 0.0,
                replicas=hosts[1:],
            )
        )
    singles = [float(tables.compute[o.k, i, j]) for o, i, j in chosen]
    waits = [_sends(tables, constraints, chosen, x, stage.send_bits, True) for x, stage in enumerate(stages)]
    latency = sum(singles) + sum(waits) + enter_s
    return Plan(
        model=p.model,
        objective=objective,
        method=method,
        batch_size=p.batch_size,
        bottleneck_s=bottleneck,
        latency_s=latency,
        throughput_items_s=p.batch_size / bottleneck if bottleneck else 0.0,
        value=value,
        bound_s=bound,
        optimal=optimal,
        binding=_binding(stages, bottleneck, enter_s),
        stages=stages,
        energy_j_per_item=_energy_j(p, chosen, computes, bottleneck),
        money_per_item=_money(p, chosen, bottleneck),
        probes=probes,
    )


def _energy_j(
    p: Pipeline, chosen: list[tuple[Option, int, int]], computes: list[float], bottleneck_s: float
) -> float | None:
    """Joules per item: what devices draw while busy and while they wait for the slowest; None if watts are unknown."""
    if not any(c.watts_busy or c.watts_idle for c in p.classes):
        return None
    drawn = 0.0
    for (option, _, _), busy_s in zip(chosen, computes, strict=True):
        c = p.classes[option.k]
        drawn += option.devices * (busy_s * (c.watts_busy - c.watts_idle) + bottleneck_s * c.watts_idle)
    return drawn / p.batch_size


def _money(p: Pipeline, chosen: list[tuple[Option, int, int]], bottleneck_s: float) -> float | None:
    """What an item costs at the devices' hourly prices; None if no prices are known."""
    if not any(c.price_per_hour for c in p.classes):
        return None
    per_hour = sum(option.devices * p.classes[option.k].price_per_hour for option, _, _ in chosen)
    return per_hour / 3600 * bottleneck_s / p.batch_size


def _sends(
    tables: Tables,
    constraints: Constraints,
    chosen: list[tuple[Option, int, int]],
    x: int,
    bits: int,
    alone: bool = False,
) -> float:
    """Seconds to send what a stage gives: the pace of its link, or what one microbatch waits for it."""
    p = tables.pipeline
    option, _, j = chosen[x]
    if x == len(chosen) - 1:
        return data_s(p, option.k, p.layers, constraints.data_mbps)
    following = chosen[x + 1][0]
    latency = p.link_s[option.k][following.k] if p.link_s else 0.0
    full = float(tables.transfers[option.k, following.k, j]) - latency
    return full * bits / 32 / (1 if alone else min(option.devices, following.devices)) + latency


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


def why_not(tables: Tables, constraints: Constraints) -> list[str]:
    """Reasons why no plan exists, the most telling first."""
    p = tables.pipeline
    if not p.classes:
        return ["no device has a profile for this model, batch size and dtype", *p.warnings]
    reasons = []
    for layer in range(1, p.layers + 1):
        if not tables.fits[:, layer - 1, layer].any():
            need = float(tables.need_bytes[layer - 1, layer]) / MIB
            largest = max(c.mem_mib for c in p.classes)
            reasons.append(
                f"layer {layer} fits nowhere: it needs {need:.1f} MiB with its buffers, the largest has {largest:.1f}"
            )
    total = sum(p.mem_mib)
    have = sum(c.mem_mib * len(c.hosts) for c in p.classes)
    if total > have:
        reasons.append(
            f"memory is short by {total - have:.1f} MiB: the layers need {total:.1f}, all devices have {have:.1f}"
        )
    dead = sorted({c.name for c in p.classes if c.bw_mbps <= 0})
    if dead and p.link_mbps is None:
        reasons.append(f"no link can be used to or from {', '.join(dead)}: their bandwidth is 0")
    if constraints != Constraints():
        reasons.append("the constraints leave no plan; without them there may be one")
    return reasons or ["no chain of the available devices can hold all layers in order"]
