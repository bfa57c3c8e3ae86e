"""Why there is no plan: each cause is planted alone, and named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise import infeasible
from dovetail.pipeline.optimise.clock import SearchClock
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Plan, flag
from dovetail.pipeline.planner import plan
from dovetail.pipeline.policies.base import plan as plan_any
from dovetail.testing.pipeline import random_pipeline
from dovetail.testing.pipeline.answers import loaded
from dovetail.testing.pipeline.cases import random_case
from dovetail.testing.pipeline.oracle import Case, Definition, Oracle


def problem(**more: Any) -> Pipeline:
    """Four layers of 2 MiB; two hosts hold two of them each, one host holds one."""
    values: dict[str, Any] = {
        "model": "line",
        "layers": 4,
        "mem_mib": [2.0] * 4,
        "cut_bytes": [0] * 5,
        "classes": [
            DeviceClass("mid", "mid", ["m0", "m1"], 100.0, 4.5, [1.0] * 4),
            DeviceClass("tiny", "tiny", ["t0"], 100.0, 2.5, [1.0] * 4),
        ],
        "batch_size": 1,
        "dtype": "torch.float32",
    }
    return Pipeline(**(values | more))


def reasons(pipeline: Pipeline, **limits: Any) -> list[str]:
    found = plan(pipeline, constraints=Constraints(**limits))
    assert isinstance(found, Infeasible)
    return found.reasons


def test_the_link_that_takes_most_of_the_latency_is_named() -> None:
    slow = problem(
        cut_bytes=[0, 2**20, 2**20, 2**20, 0],
        classes=[DeviceClass("mid", "mid", ["m0", "m1"], 8.0, 7.5, [1.0] * 4)],
    )
    [told] = reasons(slow, latency_cap_s=3.0)
    assert told == (
        "--latency-cap-s 3 leaves no plan: the least latency possible is 5 s, of which the link from m0 to m1 takes 1 s"
    )
    [told] = reasons(problem(cut_bytes=[2**20, 0, 0, 0, 0]), latency_cap_s=3.0, data_mbps=2.0)
    assert told.endswith("of which the link from the data host to m0 takes 4 s")
    [told] = reasons(problem(cut_bytes=[0] * 5), latency_cap_s=3.0)
    assert "link" not in told  # none takes any of it


def test_a_layer_that_fits_only_together_with_others_is_no_cause() -> None:
    """Layers 2 and 3 alone would need 8 MiB with their buffers, layers 1 and 2 need 7."""
    large = problem(
        cut_bytes=[0, 2**20, 2**20, 2**20, 0],
        classes=[DeviceClass("mid", "mid", ["m0", "m1"], 100.0, 7.5, [1.0] * 4)],
    )
    assert isinstance(plan(large), Plan)
    assert [reason.split(":")[0] for reason in reasons(large, max_stages=1)] == ["--max-stages 1 leaves no plan"]


def test_one_host_at_both_ends_is_the_only_one() -> None:
    large = problem(classes=[DeviceClass("big", "big", ["b0", "b1"], 100.0, 99.0, [1.0] * 4)])
    free, held = plan(large), plan(large, constraints=Constraints(first="b0", last="b0"))
    assert isinstance(free, Plan)
    assert isinstance(held, Plan)
    assert [len(free.stages), free.bottleneck_s] == [2, 2.0]
    assert [[stage.host for stage in held.stages], held.bottleneck_s] == [["b0"], 4.0]


def test_without_a_cause_there_is_a_plan() -> None:
    assert isinstance(plan(problem()), Plan)


CAUSES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "layer": (
        {"mem_mib": [2.0, 9.0, 0.1, 0.1]},
        {},
        "layer 2 fits nowhere: it needs 9.0 MiB with its buffers, the largest has 4.5",
    ),
    "memory": (
        {"mem_mib": [4.0] * 4},
        {},
        "memory is short by 4.5 MiB: the layers need 16.0, all devices have 11.5",
    ),
    "latency": ({}, {"latency_cap_s": 3.0}, "--latency-cap-s 3 leaves no plan: the least latency possible is 4 s"),
    "stages": ({}, {"max_stages": 1}, "--max-stages 1 leaves no plan: at least 2 are needed"),
    "cuts": (
        {},
        {"allowed_cuts": frozenset({1})},
        "--cuts leaves no plan: layers 2 to 4 cannot be cut and fit nowhere: 6.0 MiB, the largest has 4.5",
    ),
    "first too small": (
        {"mem_mib": [3.0, 1.0, 2.0, 2.0]},
        {"first": "t0"},
        "--first t0 leaves no plan: layer 1 needs 3.0 MiB with its buffers, t0 has 2.5",
    ),
    "last too small": (
        {"mem_mib": [2.0, 2.0, 1.0, 3.0]},
        {"last": "t0"},
        "--last t0 leaves no plan: layer 4 needs 3.0 MiB with its buffers, t0 has 2.5",
    ),
    "one host for both ends": (
        {},
        {"first": "m0", "last": "m0"},
        "--first m0 leaves no plan: no chain that begins on m0 holds all layers",
    ),
    "dead link": (
        {"link_mbps": [[0.0, 0.0], [0.0, 0.0]], "link_s": [[0.0, 0.0], [0.0, 0.0]]},
        {},
        "the bandwidth between two mid is 0: with that link there would be a plan",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named(cause: str) -> None:
    more, limits, message = CAUSES[cause]
    found = reasons(problem(**more), **limits)
    assert found[0].startswith(message)


def test_links_that_only_together_leave_no_plan() -> None:
    """Three hosts of one layer or two each, in a chain whose both links are dead."""
    classes = [
        DeviceClass("a", "a", ["a0"], 1.0, 4.5, [1.0] * 5),
        DeviceClass("b", "b", ["b0"], 1.0, 4.5, [1.0] * 5),
        DeviceClass("c", "c", ["c0"], 1.0, 2.5, [1.0] * 5),
    ]
    dead = [[0.0] * 3 for _ in range(3)]
    pipeline = problem(
        layers=5, mem_mib=[2.0] * 5, cut_bytes=[0] * 6, classes=classes, link_mbps=dead, link_s=[[0.0] * 3] * 3
    )
    (only,) = reasons(pipeline)
    told = ", ".join(f"from {u} to {v}" for u in "abc" for v in "abc" if u != v)
    assert only == f"links cannot be used: the bandwidth is 0 {told}"


def test_a_device_without_bandwidth_cannot_serve_the_data_host() -> None:
    classes = [DeviceClass("big", "big", ["x"], 0.0, 99.0, [1.0] * 4)]
    (only,) = reasons(problem(classes=classes), data_mbps=5.0)
    assert only.startswith("--data-mbps 5 leaves no plan")


def test_every_constraint_that_alone_is_to_blame_is_named_and_no_other() -> None:
    found = reasons(problem(), max_stages=1, first="m0")
    assert [reason.split(" leaves")[0] for reason in found] == ["--max-stages 1"]
    both = reasons(problem(), max_stages=1, latency_cap_s=1.0)
    assert both == ["--latency-cap-s, --max-stages together leave no plan; without any of them there is one"]


def test_the_pinned_ends_are_different_hosts() -> None:
    """Two hosts of one class pinned to the two ends make two stages, even where one host could hold everything."""
    roomy = problem(classes=[DeviceClass("big", "big", ["x", "y"], 100.0, 99.0, [1.0] * 4)])
    found = plan(roomy, "latency", Constraints(first="x", last="y"))
    assert isinstance(found, Plan)
    assert [stage.host for stage in found.stages] == ["x", "y"]
    one = plan(roomy, "throughput", Constraints(first="y", last="y"))
    assert isinstance(one, Plan)
    assert [stage.host for stage in one.stages] == ["y"]


def test_whatever_has_no_plan_has_a_reason() -> None:
    for seed in range(150):
        limits = Constraints(max_stages=1 + seed % 3, latency_cap_s=(None, 0.5, 2.0)[seed % 3])
        pipeline = random_pipeline(seed, links=seed % 2 == 0)
        found = plan(pipeline, constraints=limits)
        if isinstance(found, Infeasible):
            assert all(found.reasons)
            assert found.reasons != [
                "no chain of the available devices can hold all layers in order"
            ] or not why_is_known(pipeline)


def why_is_known(pipeline: Pipeline) -> bool:
    """Whether the problem has a plan when nothing is asked of it; then a constraint must be to blame."""
    return isinstance(plan(pipeline), Plan)


def test_slack_is_what_is_left_below_the_bottleneck_and_the_memory_limit() -> None:
    found = plan(problem(mem_mib=[2.0, 2.0, 2.0, 1.0]))
    assert isinstance(found, Plan)
    for stage in found.stages:
        assert stage.slack_s == found.bottleneck_s - stage.compute_s >= 0
        assert stage.send_slack_s == found.bottleneck_s - stage.send_s >= 0
        assert stage.mem_slack_mib == stage.mem_limit_mib - stage.mem_mib > 0
    assert min(stage.slack_s for stage in found.stages) == 0.0


def causes(case: Case, problem: Pipeline) -> set[str]:
    """Each constraint and each dead link without which there is a plan, by looking at every plan."""
    found = set()
    for name in set(case.limits) - {"replicas", "link_bits"}:
        freed = replace(case, limits={key: value for key, value in case.limits.items() if key != name})
        if any(Definition(freed, problem.batch_size).plans()):
            found.add(flag("allowed_cuts" if name == "cuts" else name))
    for one in problem.classes:
        for other in problem.classes:
            opened = Definition(case, problem.batch_size)
            ways = [(a, b) for a in one.hosts for b in other.hosts if a != b]
            if not ways or opened.links[ways[0]][0] > 0:
                continue
            opened.links |= {way: (1e12, opened.links[way][1]) for way in ways}
            if any(opened.plans()):
                found.add(f"between two {one.name}" if one is other else f"from {one.name} to {other.name}")
    return found


ALONE = re.compile(
    r"(--[a-z-]+)(?: \S+)? leaves no plan(?! together)|the bandwidth (.+) is 0: with that link there would"
)


def test_every_cause_is_named_and_no_other() -> None:
    asked, links = 0, 0
    for seed in range(40_000, 40_300):
        case = random_case(seed)
        case.batch_sizes = case.batch_sizes[:1]
        if Oracle(case).every:
            continue
        p = loaded(case, case.batch_sizes[0])
        if not p.classes or any(case.limits.get(end, p.hosts[0]) not in p.hosts for end in ("first", "last")):
            continue
        with pytest.raises(InfeasibleError) as told:
            plan_any(p, **case.limits)
        if any("fits nowhere" in why or "memory is short" in why for why in told.value.reasons):
            continue
        found = {match[1] or match[2] for why in told.value.reasons if (match := ALONE.match(why))}
        assert found == causes(case, p), (seed, told.value.reasons)
        asked, links = asked + bool(found), links + any("there would be" in why for why in told.value.reasons)
    assert asked > 20
    assert links > 3


def test_what_leaves_no_plan_only_together_is_told() -> None:
    two = [DeviceClass(name, name, [f"{name}0"], 10.0, 5.0, [1.0] * 4) for name in "ab"]
    dead = problem(classes=two, link_mbps=[[0.0, 0.0], [0.0, 0.0]], link_s=[[0.0, 0.0], [0.0, 0.0]])
    assert reasons(dead, first="a0") == ["the bandwidth from a to b is 0: with that link there would be a plan"]
    blamed: list[tuple[str, dict[str, Any]]] = [
        ("--max-stages leaves", {"max_stages": 1}),
        ("--max-stages leaves", {"max_stages": 1, "first": "a0", "latency_cap_s": 99.0}),
        ("--latency-cap-s, --max-stages leave", {"max_stages": 1, "latency_cap_s": 1.0}),
    ]
    for flags, limits in blamed:
        (both,) = reasons(dead, **limits)
        told, _, links = both.partition(": ")
        assert told == f"{flags} no plan together with links that cannot be used"
        assert links == "the bandwidth is 0 from a to b, from b to a"


def test_a_cause_that_was_not_found_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infeasible, "_LEAST_S", 0.0)
    two = [DeviceClass(name, name, [f"{name}0"], 10.0, 5.0, [1.0] * 4) for name in "ab"]
    dead = problem(classes=two, link_mbps=[[0.0, 0.0], [0.0, 0.0]], link_s=[[0.0, 0.0], [0.0, 0.0]])
    (only,) = infeasible.why_not(Tables(dead), Constraints(max_stages=1), SearchClock(0.0))
    assert only == "no plan was found; why there is none was not found in time"
