"""A finished plan, judged from its stages alone: whatever found it, does it keep what was asked, and give what it says?

Nothing of the search is used here: neither its tables of intervals nor its costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from dovetail.core.errors import DovetailError
from dovetail.pipeline.inputs.problem import BYTES_PER_S, DTYPE_BYTES, MIB, DeviceClass, Pipeline
from dovetail.pipeline.plan import Constraints, Plan, Stage, flag

TOLERANCE = 1e-9  # relative: sums differ by rounding with the order in which they are added


class WrongPlanError(DovetailError):
    """The planner's answer does not keep what was asked, or is not what it says: a fault of the planner."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults)

    def __str__(self) -> str:
        return f"internal error: the plan that was found is wrong, and is not shown: {'; '.join(self.args[0])}"


def verified(made: Plan) -> Plan:
    """The plan, if nothing is wrong with it."""
    found = list(faults(made))
    if found:
        raise WrongPlanError(found)
    return made


class GivenFigures(NamedTuple):
    """What a plan gives, from its stages."""

    bottleneck_s: float
    latency_s: float
    devices: int
    energy_j: float
    money: float

    def value(self, objective: str, microbatches: int) -> float:
        """What an objective makes small."""
        return {
            "throughput": self.bottleneck_s,
            "latency": self.latency_s,
            "batch": self.latency_s + (microbatches - 1) * self.bottleneck_s,
            "devices": float(self.devices),
            "energy": self.energy_j,
            "money": self.money,
        }[objective]


def faults(made: Plan, own_ends: bool = False) -> Iterator[str]:
    """What is wrong with a plan, given the problem and the constraints that it holds.

    With `own_ends` the transfers of input and output are as the plan says: its method may have a data host of its own.
    """
    p, constraints = made.problem, made.constraints or Constraints()
    if p is None or not p.layers:
        return
    broken = list(_structure(p, constraints, made.stages))
    if broken:
        yield from broken
        return
    ends_s = (made.enter_s, made.stages[-1].send_s) if own_ends else _ends_s(p, constraints, made.stages)
    given = figures(p, made.stages, ends_s)
    yield from _limits(p, constraints, made.stages, given)
    told = {
        "bottleneck_s": (made.bottleneck_s, given.bottleneck_s),
        "latency_s": (made.latency_s, given.latency_s),
        "throughput_items_s": (made.throughput_items_s * given.bottleneck_s, p.batch_size if given.bottleneck_s else 0),
        "value": (made.value, given.value(made.objective, made.microbatches)),
    }
    if made.energy_j_per_item is not None:
        told["energy_j_per_item"] = (made.energy_j_per_item, given.energy_j)
    if made.money_per_item is not None:
        told["money_per_item"] = (made.money_per_item, given.money)
    yield from (
        f"its {key} is {a:.12g}, but its stages give {b:.12g}" for key, (a, b) in told.items() if not same(a, b)
    )
    if made.bound_s > made.value and not same(made.bound_s, made.value):
        yield f"its value {made.value:.12g} is below the bound {made.bound_s:.12g}, which is said to be proven"
    if made.optimal and not same(made.bound_s, made.value):
        yield f"it is said to be optimal, but its value {made.value:.12g} is above the bound {made.bound_s:.12g}"


def same(a: float, b: float) -> bool:
    """Whether two figures are equal but for rounding."""
    return a == b or abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + 1e-15


def _structure(p: Pipeline, constraints: Constraints, stages: list[Stage]) -> Iterator[str]:
    """All layers in order, on hosts that there are, each once, with memory for them."""
    held = {host: c for c in p.classes for host in c.hosts}
    used: set[str] = set()
    before = 0
    for stage in stages:
        first, last = stage.layers
        if first != before + 1 or last < first:
            yield f"layers {first} to {last} do not go on from layer {before}"
        before = last
        for host in stage.hosts:
            if host not in held:
                yield f"{host} is not an available host"
            elif host in used:
                yield f"{host} is used twice"
            elif held[host] is not held.get(stage.host):
                yield f"{host} and {stage.host} take turns at a stage, but are not alike"
            used.add(host)
        if len(stage.hosts) > constraints.replicas:
            yield f"{len(stage.hosts)} devices take turns on {stage.host}: {flag('replicas')} is {constraints.replicas}"
        if stage.send_bits not in constraints.link_bits and stage is not stages[-1]:
            yield f"{stage.host} sends {stage.send_bits} bits wide: expected one of {list(constraints.link_bits)}"
    if before != p.layers:
        yield f"its stages end with layer {before} of {p.layers}"


def _limits(p: Pipeline, constraints: Constraints, stages: list[Stage], given: GivenFigures) -> Iterator[str]:
    """Memory, links that there are, and each constraint."""
    for stage in stages:
        c, need = _class(p, stage.host), memory_bytes(p, stage)
        if not c.mem_mib * MIB > need:
            yield f"{stage.host} has no room for {need / MIB:.1f} MiB of layers {stage.layers[0]} to {stage.layers[1]}"
    if given.bottleneck_s == inf:
        yield "it sends over a link without bandwidth"
    cap_s, floor, most = constraints.latency_cap_s, constraints.throughput_floor_items_s, constraints.max_stages
    if cap_s is not None and given.latency_s > cap_s * (1 + TOLERANCE):
        yield f"its latency is {given.latency_s:.6g} s: {flag('latency_cap_s')} is {cap_s:g}"
    if floor is not None and given.bottleneck_s * floor > p.batch_size * (1 + TOLERANCE):
        found = p.batch_size / given.bottleneck_s
        yield f"its throughput is {found:.6g} items/s: {flag('throughput_floor_items_s')} is {floor:g}"
    if most is not None and given.devices > most:
        yield f"it uses {given.devices} devices: {flag('max_stages')} is {most}"
    for name, stage in (("first", stages[0]), ("last", stages[-1])):
        host = getattr(constraints, name)
        if host is not None and host not in stage.hosts:
            yield f"its {name} stage is on {' + '.join(stage.hosts)}: {flag(name)} is {host}"
    for stage in stages[:-1]:
        if constraints.allowed_cuts is not None and stage.layers[1] not in constraints.allowed_cuts:
            yield f"it cuts after layer {stage.layers[1]}: {flag('allowed_cuts')} does not allow that"


def _ends_s(p: Pipeline, constraints: Constraints, stages: list[Stage]) -> tuple[float, float]:
    """The transfers from and to the data host, if there is one."""
    if constraints.data_mbps is None:
        return 0.0, 0.0
    enter, leave = (min(constraints.data_mbps, _class(p, stage.host).bw_mbps) for stage in (stages[0], stages[-1]))
    come, go = p.cut_bytes[0], p.cut_bytes[-1]
    return come / (enter * BYTES_PER_S) if enter > 0 else inf, go / (leave * BYTES_PER_S) if leave > 0 else inf


def figures(p: Pipeline, stages: list[Stage], ends_s: tuple[float, float] = (0.0, 0.0)) -> GivenFigures:
    """Pace, latency and what is spent, by a plain loop over stages and links."""
    paces, waits = list(ends_s), list(ends_s)
    busy_s = []
    price = 0.0
    for stage in stages:
        c, count = _class(p, stage.host), len(stage.hosts)
        run_s = sum(c.time_s[stage.layers[0] - 1 : stage.layers[1]]) + c.stage_s
        waits.append(run_s)
        paces.append(run_s / count)
        busy_s.append((c, count, run_s / count))
        price += count * c.price_per_hour / 3600
    for here, there in pairwise(stages):
        send_s = _send_s(p, here, there)
        waits.append(send_s)
        paces.append(send_s / min(len(here.hosts), len(there.hosts)))
    pace_s, devices = max(paces), sum(len(stage.hosts) for stage in stages)
    if pace_s == inf:
        return GivenFigures(inf, inf, devices, inf, inf)
    drawn_j = sum(n * (own_s * c.watts_busy + (pace_s - own_s) * c.watts_idle) for c, n, own_s in busy_s)
    return GivenFigures(pace_s, sum(waits), devices, drawn_j / p.batch_size, pace_s * price / p.batch_size)


def memory_bytes(p: Pipeline, stage: Stage) -> float:
    """Weights, one copy of what comes and goes, and buffers; the first stage receives into none."""
    first, last = stage.layers
    come, go = p.cut_bytes[first - 1], p.cut_bytes[last]
    received = p.buffers_in * come if first > 1 else 0
    weights = sum(p.mem_mib[first - 1 : last])
    for group in p.tied:
        holders = [layer for layer in group.layers if first <= layer <= last]
        weights -= group.mib * (len(holders) - 1) if holders else 0
    return weights * MIB + received + p.buffers_out * go + come + go


def _send_s(p: Pipeline, here: Stage, there: Stage) -> float:
    """Seconds of one microbatch on a link; 32 bits are values as they are."""
    a, b = (next(k for k, c in enumerate(p.classes) if stage.host in c.hosts) for stage in (here, there))
    mbps = min(p.classes[a].bw_mbps, p.classes[b].bw_mbps) if p.link_mbps is None else p.link_mbps[a][b]
    if not mbps > 0:
        return inf
    share = 1.0 if here.send_bits >= 32 else min(1.0, here.send_bits / (8 * DTYPE_BYTES[p.dtype]))
    return p.cut_bytes[here.layers[1]] * share / (mbps * BYTES_PER_S) + (p.link_s[a][b] if p.link_s else 0.0)


def _class(p: Pipeline, host: str) -> DeviceClass:
    return next(c for c in p.classes if host in c.hosts)
