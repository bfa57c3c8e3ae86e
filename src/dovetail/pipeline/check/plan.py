"""The plan in a header, recounted: from the problem that it holds what its stages take, and from those its figures.

Nothing of the search is used. That no better plan exists is not proven again: `bound_s` is held to `value`, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isclose
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.problem import BYTES_PER_S, MIB, Pipeline
from dovetail.pipeline.optimise.costs import width_share
from dovetail.pipeline.optimise.tables import data_s
from dovetail.pipeline.optimise.verify import TOLERANCE, faults, memory_bytes
from dovetail.pipeline.plan import Constraints, GenerationFigures, Plan, Stage, read_plan

_Fault = tuple[str, str]  # where, and what was found instead of what
OWN = "exact"  # methods with this word first are the planner's, and have no data host but that of the constraints


def same(found: float | None, expected: float | None, scale: float = 0.0) -> bool:
    """Equal but for rounding, of numbers of any size; `scale` is of what a difference was taken.

    >>> same(2e-9, 1e-9), same(1.0, 1.0 + 1e-12), same(0.0, 1e-12, scale=1.0), same(None, 1.0)
    (False, True, True, False)
    """
    if found is None or expected is None:
        return found is expected
    return isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * abs(scale))


def plan_faults(plan: Plan) -> list[_Fault]:
    """What is wrong with a plan: the first kind of fault that makes the others meaningless, or all of them."""
    try:
        read_plan(msgspec.to_builtins(plan))
    except InputError as error:
        return [("plan", str(error))]
    if plan.problem is not None and (broken := list(_unknown_hosts(plan.problem, plan.stages))):
        return broken
    found = list(_own_figures(plan))
    if plan.generation is not None:
        found += _generation(plan, plan.generation)
    if plan.problem is not None:
        found += _stages(plan, plan.problem)
        # What it takes to generate is above the pace of a decode step, which is what the problem speaks of.
        judged = replace(plan, objective="throughput", value=plan.bottleneck_s, bound_s=0.0, optimal=False)
        told = faults(plan if plan.generation is None else judged, own_ends=not plan.method.startswith(OWN))
        found += [("plan", fault) for fault in told]
    return found


def _unknown_hosts(p: Pipeline, stages: list[Stage]) -> Iterator[_Fault]:
    """Hosts of which nothing is known to count with."""
    known = set(p.hosts)
    for i, stage in enumerate(stages):
        for host in stage.hosts:
            if host not in known:
                yield f"plan.stages.{i}", f"found {host!r}, expected a host of the problem"


def _differ(where: str, holder: Any, expected: Mapping[str, float | None], scale: float = 0.0) -> Iterator[_Fault]:
    for name, value in expected.items():
        if not same(found := getattr(holder, name), value, scale):
            yield f"{where}.{name}", f"found {found}, expected {value}"


def _own_figures(plan: Plan) -> Iterator[_Fault]:
    """What the times of its stages give."""
    stages, texts = plan.stages, {"the transfer of the input": plan.enter_s}
    followers = [*stages[1:], None]
    paces_s, latency_s = [plan.enter_s], plan.enter_s
    for stage, following in zip(stages, followers, strict=True):
        count = len(stage.hosts)
        latency_s += stage.compute_s * count + stage.send_s * (min(count, len(following.hosts)) if following else 1)
        paces_s += [stage.compute_s, stage.send_s]
        first, last = stage.layers
        texts[f"compute on {stage.host} (layers {first} to {last})"] = stage.compute_s
        to = following.host if following else "the data host"
        texts[f"the link from {stage.host} to {to} (after layer {last})"] = stage.send_s
    bottleneck_s = max(paces_s)
    pace = plan.batch_size / bottleneck_s if bottleneck_s else 0.0
    yield from _differ("plan", plan, {"bottleneck_s": bottleneck_s, "latency_s": latency_s, "throughput_items_s": pace})
    if plan.binding and not same(texts.get(plan.binding), bottleneck_s):
        yield "plan.binding", f"found {plan.binding!r}, which does not take {bottleneck_s} s"
    for i, stage in enumerate(stages):
        where = f"plan.stages.{i}"
        uses = stage.compute_s / bottleneck_s if bottleneck_s else 0.0
        yield from _differ(where, stage, {"utilisation": uses})
        slacks = {"slack_s": bottleneck_s - stage.compute_s, "send_slack_s": bottleneck_s - stage.send_s}
        yield from _differ(where, stage, slacks, bottleneck_s)
        yield from _differ(where, stage, {"mem_slack_mib": stage.mem_limit_mib - stage.mem_mib}, stage.mem_limit_mib)
    yield from _proof(plan, latency_s, bottleneck_s)


def _proof(plan: Plan, latency_s: float, bottleneck_s: float) -> Iterator[_Fault]:
    """The value of the objective, and what is said to be proven of it."""
    figures = plan.generation
    values: dict[str, float | None] = {
        "throughput": bottleneck_s,
        "latency": latency_s,
        "batch": latency_s + (plan.microbatches - 1) * bottleneck_s,
        "devices": float(len(plan.hosts)),
        "energy": plan.energy_j_per_item,
        "money": plan.money_per_item,
        "tokens": None if figures is None else figures.step_s,
        "ttft": None if figures is None else figures.ttft_s,
    }
    yield from _differ("plan", plan, {"value": values[plan.objective]})
    if plan.bound_s > plan.value and not same(plan.bound_s, plan.value):
        yield "plan.bound_s", f"found {plan.bound_s}, expected at most the value {plan.value}"
    if plan.optimal and not same(plan.bound_s, plan.value):
        yield "plan.optimal", f"the value {plan.value} is above the bound {plan.bound_s}"
    gap = 0.0 if plan.optimal else plan.value / plan.bound_s - 1 if plan.bound_s > 0 else inf
    # It may be larger: a pace that was not proven widens it. It may be unknown, where no bound is.
    if plan.gap is None and plan.optimal:
        yield "plan.gap", "found none, expected 0"
    if plan.gap is not None and plan.gap < gap and not same(plan.gap, gap, 1.0):
        yield "plan.gap", f"found {plan.gap}, expected {gap} or more"


def _generation(plan: Plan, made: GenerationFigures) -> Iterator[_Fault]:
    step_s = max(plan.latency_s, made.groups * plan.bottleneck_s)
    pace = made.concurrency / made.step_s if made.step_s else 0.0
    yield from _differ("plan.generation", made, {"step_s": step_s, "tokens_s": pace})
    if made.ttft_s < sum(made.prefill_s) * (1 - TOLERANCE):
        yield "plan.generation.ttft_s", f"found {made.ttft_s}, expected at least the stages' {sum(made.prefill_s)}"
    for name in ("prefill_s", "kv_mib", "widths"):
        if len(getattr(made, name)) != len(plan.stages):
            yield f"plan.generation.{name}", f"found {len(getattr(made, name))}, expected one for each stage"
    for i, (stage, width) in enumerate(zip(plan.stages, made.widths, strict=False)):
        if len(stage.host.split(" + ")) != width:
            yield f"plan.generation.widths.{i}", f"found {width}, expected as many as in {stage.host!r}"
    for i, (stage, kept) in enumerate(zip(plan.stages, made.kv_mib, strict=False)):
        if not 0 <= kept <= stage.mem_mib * max(made.widths, default=1):
            yield f"plan.generation.kv_mib.{i}", f"found {kept}, expected what fits in the stage's memory"


def _stages(plan: Plan, p: Pipeline) -> Iterator[_Fault]:
    """What each stage takes and needs, by the problem."""
    constraints = plan.constraints or Constraints()
    k_of = {host: k for k, c in enumerate(p.classes) for host in c.hosts}
    told: dict[str, float | None] = {}
    for name in ("model", "batch_size"):
        if getattr(plan, name) != getattr(p, name):
            yield f"plan.{name}", f"found {getattr(plan, name)!r}, expected {getattr(p, name)!r}"
    for name, known in (
        ("energy_j_per_item", any(c.watts_busy or c.watts_idle for c in p.classes)),
        ("money_per_item", any(c.price_per_hour for c in p.classes)),
    ):
        if not known and getattr(plan, name) is not None:
            yield f"plan.{name}", "found a figure, expected none: the problem does not say what devices take"
    if own := plan.method.startswith(OWN):
        told["enter_s"] = data_s(p, k_of[plan.stages[0].host], 0, constraints.data_mbps)
    yield from _differ("plan", plan, told)
    for i, (stage, following) in enumerate(zip(plan.stages, [*plan.stages[1:], None], strict=True)):
        where, k, (first, last) = f"plan.stages.{i}", k_of[stage.host], stage.layers
        device, count = p.classes[k], len(stage.hosts)
        if stage.type != device.type:
            yield f"{where}.type", f"found {stage.type!r}, expected {device.type!r}"
        expected: dict[str, float | None] = {
            "compute_s": (sum(device.time_s[first - 1 : last]) + device.stage_s) / count,
            "mem_mib": memory_bytes(p, stage) / MIB,
            "mem_limit_mib": device.mem_mib,
        }
        if following is not None:
            expected["send_s"] = _link_s(p, k, k_of[following.host], stage) / min(count, len(following.hosts))
        elif own:
            expected["send_s"] = data_s(p, k, p.layers, constraints.data_mbps)
        yield from _differ(where, stage, expected)


def _link_s(p: Pipeline, a: int, b: int, stage: Stage) -> float:
    mbps = min(p.classes[a].bw_mbps, p.classes[b].bw_mbps) if p.link_mbps is None else p.link_mbps[a][b]
    if not mbps > 0:
        return inf
    sent = p.cut_bytes[stage.layers[1]] * width_share(p.dtype, stage.send_bits)
    return sent / (mbps * BYTES_PER_S) + (p.link_s[a][b] if p.link_s else 0.0)
