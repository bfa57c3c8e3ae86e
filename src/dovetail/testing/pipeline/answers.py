"""What is wrong with the planner's answers to a question, by the oracle; and a planner with planted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from dovetail import pipeline
from dovetail.core.errors import DovetailError, InputError
from dovetail.pipeline.plan import Constraints, Objective, Plan
from dovetail.pipeline.planner import plan as plan_exactly
from dovetail.testing.pipeline.oracle import OBJECTIVES, BrokenError, Case, Oracle

_LONG_S = 600.0  # more than any machine needs for a small question


def faults(case: Case) -> Iterator[str]:
    """What is wrong with the planner's answers to a case: every objective, and the front of its first batch size."""
    oracle = Oracle(case)
    problems = [loaded(case, size) for size in case.batch_sizes]
    for objective in OBJECTIVES:
        yield from (f"{objective}: {fault}" for fault in _objective_faults(case, oracle, problems, objective))
    alone = Oracle(replace(case, batch_sizes=case.batch_sizes[:1]))
    yield from (f"front: {fault}" for fault in _front_faults(alone, problems[0]))


def loaded(case: Case, batch_size: int) -> pipeline.Pipeline:
    """What the planner is asked about, for one of its batch sizes."""
    return pipeline.load(
        case.models,
        case.device_types,
        case.devices,
        batch_size=batch_size,
        dtype=case.dtype,
        buffers_in=case.buffers_in,
        buffers_out=case.buffers_out,
        links=case.links,
    )


def _objective_faults(
    case: Case, oracle: Oracle, problems: list[pipeline.Pipeline], objective: Objective
) -> Iterator[str]:
    best = oracle.best(objective)
    try:
        made = pipeline.plan(
            problems,
            objective=objective,
            microbatches=case.microbatches,
            slack=case.slack,
            time_limit_s=_LONG_S,
            **case.limits,
        )
    except pipeline.InfeasibleError as error:
        if best is not None:
            yield f"no plan was found ({error}), but {best} is possible"
        return
    except InputError as error:
        if not _refused(case, oracle, objective):
            yield f"refused: {error}"
        return
    except (DovetailError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"{type(error).__name__}: {error}"
        return
    if best is None:
        yield "a plan was found where there is none"
        return
    yield from _plan_faults(oracle, made)
    if not made.optimal:
        yield f"not proven: {made.value}, bound {made.bound_s}"
    try:
        figures = oracle.figures(made)
    except BrokenError:
        return
    if objective == "devices" and not oracle.within_slack(figures):
        yield f"the plan's bottleneck {figures.bottleneck_s} is not within the slack"
    given, told = oracle.value(objective, figures), made.value / (made.batch_size if objective == "throughput" else 1)
    if not _same(given, best):
        yield f"{given} was found, {best} is possible"
    if not _same(told, given):
        yield f"the plan says {told} of itself and is {given}"


def _plan_faults(oracle: Oracle, made: Plan) -> Iterator[str]:
    """What a plan breaks, and where it says something else of itself than the definition does."""
    try:
        true = oracle.figures(made)
    except BrokenError as error:
        yield f"the plan breaks what was asked: {error}"
        return
    told = {
        "bottleneck_s": (made.bottleneck_s, true.bottleneck_s),
        "latency_s": (made.latency_s, true.latency_s),
        "energy_j_per_item": (made.energy_j_per_item or 0.0, true.energy_j),
        "money_per_item": (made.money_per_item or 0.0, true.money),
    }
    yield from (f"the plan's {key} is {a}, by definition {b}" for key, (a, b) in told.items() if not _same(a, b))


def _refused(case: Case, oracle: Oracle, objective: Objective) -> bool:
    """Questions that are wrong: pins to hosts that no size has, spending where nothing is known of it."""
    known = {host for definition in oracle.definitions.values() for host in definition.hosts}
    if any(key in case.limits and case.limits[key] not in known for key in ("first", "last")):
        return True
    return not any(definition.is_known(objective) for definition in oracle.definitions.values())


def _front_faults(oracle: Oracle, problem: pipeline.Pipeline) -> Iterator[str]:
    try:
        shown = pipeline.front(problem, points=None, time_limit_s=_LONG_S, **oracle.case.limits)
    except pipeline.InfeasibleError:
        if oracle.every:
            yield "no plan was found"
        return
    except InputError as error:
        if not _refused(oracle.case, oracle, "throughput"):
            yield f"refused: {error}"
        return
    except (DovetailError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"{type(error).__name__}: {error}"
        return
    if not shown.complete:
        yield "is not complete"
    for made in shown.points:
        yield from _plan_faults(oracle, made)
    yield from oracle.front_faults(shown.points)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b)) + 1e-15


def _forgets(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda asked: asked.update(constraints=replace(asked["constraints"], **{name: getattr(Constraints(), name)}))


def _takes(name: str, change: Callable[[pipeline.Pipeline], Any]) -> Callable[[dict[str, Any]], None]:
    def mistake(asked: dict[str, Any]) -> None:
        asked["pipeline"] = replace(asked["pipeline"], **{name: change(asked["pipeline"])})

    return mistake


def _devices(**changes: Callable[[pipeline.DeviceClass], Any]) -> Callable[[dict[str, Any]], None]:
    return _takes("classes", lambda p: [replace(c, **{name: to(c) for name, to in changes.items()}) for c in p.classes])


# Ways in which a planner can be wrong about what it is asked: each changes the question that it gets.
PLANTED: dict[str, Callable[[dict[str, Any]], None]] = {
    **{f"{name} forgotten": _forgets(name) for name in Constraints.__struct_fields__},
    "memory a tenth too large": _devices(mem_mib=lambda c: 1.1 * c.mem_mib),
    "a layer without memory": _takes("mem_mib", lambda p: [0.0, *p.mem_mib[1:]]),
    "receive buffers forgotten": _takes("buffers_in", lambda p: 0),
    "send buffers forgotten": _takes("buffers_out", lambda p: 0),
    "links without latency": _takes("link_s", lambda p: p.link_s and [[0.0] * len(row) for row in p.link_s]),
    "link tables forgotten": _takes("link_mbps", lambda p: None),
    "links the other way": _takes(
        "link_mbps", lambda p: p.link_mbps and [list(x) for x in zip(*p.link_mbps, strict=True)]
    ),
    "widths of 32-bit values": _takes("dtype", lambda p: "torch.float32"),
    "idle devices for nothing": _devices(watts_idle=lambda c: 0.0),
    "all prices alike": _devices(price_per_hour=lambda c: 1.0),
    "a class is short of a host": _devices(hosts=lambda c: c.hosts[:-1] or c.hosts),
    "what stages take besides forgotten": _devices(stage_s=lambda c: 0.0),
    "times rounded": _devices(time_s=lambda c: [round(t, 1) for t in c.time_s]),
    "no slack": lambda asked: asked.update(slack=0.0),
    "one microbatch too many": lambda asked: asked.update(microbatches=asked["microbatches"] + 1),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """A planner with one of these faults."""

    def faulty(p: pipeline.Pipeline, objective: Objective, constraints: Constraints, **options: Any) -> Any:
        asked = {"pipeline": p, "constraints": constraints, **options}
        PLANTED[name](asked)
        return plan_exactly(asked.pop("pipeline"), objective, asked.pop("constraints"), **asked)

    with patch("dovetail.pipeline.policies.sizes.plan", faulty):
        yield
