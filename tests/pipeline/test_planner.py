"""The planner against every plan there is, on small random problems."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from msgspec.structs import replace

from dovetail.pipeline.explain import what_if
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise.furthest import Prober, least_bottleneck
from dovetail.pipeline.optimise.ordered import best_in_order
from dovetail.pipeline.optimise.tables import Tables
from dovetail.pipeline.plan import Constraints, Infeasible, Objective, Plan
from dovetail.pipeline.planner import plan
from dovetail.testing.pipeline import PlanFigures, evaluate, every_plan, random_pipeline

CASES = 300
MOST_PLANS = 4000


def solutions(pipeline: Pipeline, constraints: Constraints) -> list[PlanFigures] | None:
    """PlanFigures of all plans that can run; None where there are too many to look at."""
    tables = Tables(pipeline)
    found = []
    for count, parts in enumerate(every_plan(tables, constraints.replicas)):
        if count > MOST_PLANS:
            return None
        figures = evaluate(tables, parts, constraints.data_mbps)
        if figures.bottleneck_s < inf:
            found.append(figures)
    return found


def best(objective: Objective, all_plans: list[PlanFigures]) -> float:
    least = min(f.bottleneck_s for f in all_plans)
    return {
        "throughput": lambda: least,
        "latency": lambda: min(f.latency_s for f in all_plans),
        "batch": lambda: min(f.latency_s + 7 * f.bottleneck_s for f in all_plans),
        "devices": lambda: float(min(f.devices for f in all_plans if f.bottleneck_s <= least * 1.1)),
        "energy": lambda: min(f.energy_j for f in all_plans),
        "money": lambda: min(f.money for f in all_plans),
    }[objective]()


@pytest.mark.parametrize("objective", ["throughput", "latency", "batch", "devices", "energy", "money"])
def test_no_plan_is_better(objective: Objective) -> None:
    infeasible = checked = 0
    for seed in range(CASES):
        pipeline = random_pipeline(seed, links=seed % 3 == 0)
        constraints = Constraints(replicas=1 + (seed % 5 == 0), data_mbps=(None, None, 100.0, 1.0)[seed % 4])
        all_plans = solutions(pipeline, constraints)
        if all_plans is None:
            continue
        checked += 1
        found = plan(pipeline, objective, constraints, microbatches=8, slack=0.1)
        if not all_plans:
            infeasible += 1
            assert isinstance(found, Infeasible)
            assert found.reasons
            continue
        assert isinstance(found, Plan), seed
        assert found.value == pytest.approx(best(objective, all_plans), rel=1e-9), seed
        assert found.optimal
        spent = {"energy": found.energy_j_per_item, "money": found.money_per_item}.get(objective, found.value)
        assert spent == pytest.approx(found.value, rel=1e-9), seed
        assert_sound(pipeline, found)
    assert checked > CASES * 0.9
    assert 10 < infeasible < checked / 2


def test_replicas_share_links_as_they_share_work() -> None:
    """Many layers' worth of bytes over links with latencies: the bottleneck is often a link between replicas."""
    shared = 0
    for seed in range(120):
        pipeline = random_pipeline(seed, links=True)
        pipeline.cut_bytes = [8 * size for size in pipeline.cut_bytes]
        pipeline.buffers_in = pipeline.buffers_out = 0
        pipeline.classes = [replace(c, mem_mib=400.0 / pipeline.layers) for c in pipeline.classes]
        constraints = Constraints(replicas=2)
        every = solutions(pipeline, constraints)
        found = plan(pipeline, constraints=constraints)
        if every:
            assert isinstance(found, Plan)
            assert found.bottleneck_s == pytest.approx(best("throughput", every), rel=1e-9), seed
            assert found.bottleneck_s == pytest.approx(max(max(s.compute_s, s.send_s) for s in found.stages))
            pairs = pairwise(found.stages)
            shared += any(a.send_s == found.bottleneck_s and a.replicas and b.replicas for a, b in pairs)
    assert shared


def assert_sound(pipeline: Pipeline, found: Plan) -> None:
    """Layers in order and whole, each host at most once, memory kept, nothing above the bottleneck."""
    at, hosts = 0, [host for stage in found.stages for host in (stage.host, *stage.replicas)]
    assert len(set(hosts)) == len(hosts)
    for stage in found.stages:
        assert stage.layers[0] == at + 1 <= stage.layers[1]
        at = stage.layers[1]
        assert stage.mem_mib < stage.mem_limit_mib
        assert max(stage.compute_s, stage.send_s) <= found.bottleneck_s
    assert at == pipeline.layers
    assert found.binding


def test_the_fast_search_agrees_with_the_general_one_to_the_last_bit() -> None:
    for seed in range(CASES):
        pipeline = random_pipeline(seed)
        tables = Tables(pipeline)
        general = plan(pipeline, constraints=Constraints(max_stages=99))
        value = least_bottleneck(tables, Prober(tables))[0] if len(tables.candidates) else None
        assert value == (general.bottleneck_s if isinstance(general, Plan) else None), seed


def test_long_models_take_the_same_way_with_wider_numbers() -> None:
    device = DeviceClass("a", "a", ["a0", "a1", "a2"], 1000.0, 1e6, [1.0] * 300)
    other = DeviceClass("b", "b", ["b0"], 1000.0, 1e6, [2.0] * 300)
    found = plan(line(300, [device, other]))
    assert isinstance(found, Plan)
    assert found.bottleneck_s == 86.0  # 86 layers on each a, 42 on b
    assert_sound(line(300, [device, other]), found)


def line(layers: int, classes: list[DeviceClass], **more: object) -> Pipeline:
    values: dict[str, object] = {
        "model": "line",
        "layers": layers,
        "mem_mib": [1.0] * layers,
        "cut_bytes": [1024] * (layers + 1),
        "classes": classes,
        "batch_size": 1,
        "dtype": "torch.float32",
    }
    return Pipeline(**(values | more))  # type: ignore[arg-type]


def simple() -> Pipeline:
    fast = DeviceClass("fast", "fast", ["f0", "f1"], 1000.0, 100.0, [1.0] * 6)
    slow = DeviceClass("slow", "slow", ["s0"], 1000.0, 100.0, [2.0] * 6)
    return line(6, [fast, slow])


def test_constraints_are_kept() -> None:
    pipeline = simple()
    first = plan(pipeline, constraints=Constraints(first="s0"))
    assert isinstance(first, Plan)
    assert (first.stages[0].host, first.bottleneck_s) == ("s0", 3.0)
    last = plan(pipeline, constraints=Constraints(last="f1"))
    assert isinstance(last, Plan)
    assert last.stages[-1].host == "f1"
    two = plan(pipeline, constraints=Constraints(max_stages=1))
    assert isinstance(two, Plan)
    assert [stage.layers for stage in two.stages] == [(1, 6)]
    cut = plan(pipeline, constraints=Constraints(allowed_cuts=frozenset({2})))
    assert isinstance(cut, Plan)
    assert {stage.layers for stage in cut.stages} <= {(1, 2), (3, 6), (1, 6)}
    capped = plan(pipeline, constraints=Constraints(latency_cap_s=6.001))
    assert isinstance(capped, Plan)
    assert capped.latency_s <= 6.001
    assert isinstance(plan(pipeline, constraints=Constraints(latency_cap_s=5.0)), Infeasible)


def test_a_narrower_link_is_used_only_where_it_helps() -> None:
    pipeline = line(2, [DeviceClass("a", "a", ["a0", "a1"], 8.0, 100.0, [1.0, 1.0])], cut_bytes=[0, 4 << 20, 0])
    wide = plan(pipeline)
    narrow = plan(pipeline, constraints=Constraints(link_bits=(32, 16, 8, 4)))
    assert isinstance(wide, Plan)
    assert isinstance(narrow, Plan)
    assert wide.bottleneck_s == 2.0  # 4 MiB over 1 MiB/s would take 4 s: better on one device
    assert narrow.bottleneck_s == 1.0
    assert narrow.stages[0].send_bits == 8
    assert narrow.stages[0].send_s == 1.0


def test_infeasible_says_why() -> None:
    small = DeviceClass("small", "small", ["x"], 1000.0, 0.5, [1.0] * 2)
    found = plan(line(2, [small]))
    assert isinstance(found, Infeasible)
    assert found.reasons[0].startswith("layer 1 fits nowhere: it needs 1.0 MiB with its buffers, the largest has 0.5")
    assert "memory is short by 1.5 MiB" in " ".join(found.reasons)
    assert why([0.0], 2, mem_mib=4.0) == ["the bandwidth between two c0 is 0: with that link there would be a plan"]


def why(bandwidths: list[float], layers: int, mem_mib: float) -> list[str]:
    classes = [
        DeviceClass(f"c{k}", f"c{k}", [f"h{k}", f"g{k}"], bw, mem_mib, [1.0] * layers)
        for k, bw in enumerate(bandwidths)
    ]
    found = plan(line(layers, classes, mem_mib=[3.0] * layers))
    assert isinstance(found, Infeasible)
    return found.reasons


def test_without_watts_and_prices_nothing_is_said_of_energy_and_money() -> None:
    found = plan(simple())
    assert isinstance(found, Plan)
    assert (found.energy_j_per_item, found.money_per_item) == (None, None)


def test_what_one_device_more_or_fewer_changes() -> None:
    now = plan(simple())
    assert isinstance(now, Plan)
    rows = {(row["type"], row["change"]): row["bottleneck_s"] for row in what_if(now)}
    assert rows == {("fast", 1): 2.0, ("fast", -1): 4.0, ("slow", 1): 2.0, ("slow", -1): 3.0}


def test_no_order_of_devices_beats_the_best_plan() -> None:
    for seed in range(60):
        pipeline = random_pipeline(seed)
        tables = Tables(pipeline)
        order = [k for k, count in enumerate(tables.counts) for _ in range(count)]
        fixed = best_in_order(tables, order)
        optimum = plan(pipeline)
        if fixed is None:
            continue
        assert isinstance(optimum, Plan)
        assert optimum.bottleneck_s <= fixed[0]
