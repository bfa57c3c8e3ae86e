"""A finished plan judged from its stages: each way of being wrong is told, and nothing wrong is ever shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail import pipeline
from dovetail.core.errors import InputError
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.optimise.finish import finish
from dovetail.pipeline.optimise.verify import WrongPlanError, faults, verified
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan


def problem() -> Pipeline:
    fast = DeviceClass("fast", "fast", ["f0", "f1", "f2"], 1000.0, 3.5, [1.0] * 6, 20.0, 5.0, 2.0)
    slow = DeviceClass("slow", "slow", ["s0"], 0.5, 100.0, [2.0] * 6, 9.0, 1.0, 1.0)
    return Pipeline(
        model="m",
        layers=6,
        mem_mib=[1.0] * 6,
        cut_bytes=[1024] * 7,
        classes=[fast, slow],
        batch_size=2,
        dtype="torch.float32",
    )


def good(**limits: Any) -> Plan:
    made = plan(problem(), constraints=Constraints(**limits))
    assert isinstance(made, Plan)
    return made


def stage(x: int, **changes: Any) -> Callable[[Plan], Plan]:
    return lambda made: replace(
        made, stages=[replace(s, **changes) if i == x else s for i, s in enumerate(made.stages)]
    )


def asked(**limits: Any) -> Callable[[Plan], Plan]:
    return lambda made: replace(made, constraints=Constraints(**limits))


def known(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda made: replace(made, problem=replace(problem(), **changes))


WRONG = [
    (stage(1, host="f0"), "f0 is used twice"),
    (stage(1, host="f9"), "f9 is not an available host"),
    (stage(0, layers=(1, 3)), "do not go on from layer 3"),
    (stage(2, layers=(5, 5)), "its stages end with layer 5 of 6"),
    (stage(1, replicas=["s0"]), "s0 and f1 take turns at a stage, but are not alike"),
    (stage(1, replicas=["f2"]), "2 devices take turns on f1: --replicas is 1"),
    (stage(1, send_bits=8), "f1 sends 8 bits wide: expected one of [32]"),
    (known(mem_mib=[1.0, 3.0, 1.0, 1.0, 1.0, 1.0]), "f0 has no room for 4.0 MiB of layers 1 to 2"),
    (known(link_mbps=[[0.0, 0.0], [0.0, 0.0]], link_s=[[0.0] * 2] * 2), "a link without bandwidth"),
    (known(cut_bytes=[1024, 1024, 2048, 1024, 1024, 1024, 1024]), "but its stages give"),
    (asked(latency_cap_s=5.0), "its latency is 6.00002 s: --latency-cap-s is 5"),
    (asked(throughput_floor_items_s=1.5), "its throughput is 1 items/s: --throughput-floor-items-s is 1.5"),
    (asked(max_stages=2), "it uses 3 devices: --max-stages is 2"),
    (asked(first="f2"), "its first stage is on f0: --first is f2"),
    (asked(last="s0"), "its last stage is on f2: --last is s0"),
    (asked(allowed_cuts=frozenset({2, 3})), "it cuts after layer 4: --cuts does not allow that"),
    (asked(data_mbps=0.01), "its latency_s is 6.000015625, but its stages give 7.562515625"),
    (lambda made: replace(made, bottleneck_s=1.9), "its bottleneck_s is 1.9, but its stages give 2"),
    (lambda made: replace(made, latency_s=7.0), "its latency_s is 7"),
    (lambda made: replace(made, throughput_items_s=3.0), "its throughput_items_s"),
    (lambda made: replace(made, energy_j_per_item=3.0), "its energy_j_per_item is 3"),
    (lambda made: replace(made, money_per_item=3.0), "its money_per_item is 3"),
    (lambda made: replace(made, objective="latency"), "its value is 2, but its stages give 6.0"),
    (lambda made: replace(made, bound_s=2.5), "is below the bound 2.5, which is said to be proven"),
    (lambda made: replace(made, bound_s=1.5), "it is said to be optimal, but its value 2 is above the bound 1.5"),
]


def test_what_the_planner_makes_is_sound() -> None:
    assert verified(good()).bottleneck_s == 2.0
    assert not list(faults(good(data_mbps=1.0, replicas=2, link_bits=(8, 16, 32))))


@pytest.mark.parametrize(("damage", "told"), WRONG, ids=[told for _, told in WRONG])
def test_each_way_of_being_wrong_is_told(damage: Callable[[Plan], Plan], told: str) -> None:
    with pytest.raises(WrongPlanError, match="internal error: the plan that was found is wrong") as caught:
        verified(damage(good()))
    assert told in str(caught.value)
    assert caught.value.exit_code == 1


def test_sums_in_another_order_are_no_fault() -> None:
    made = good()
    assert verified(replace(made, latency_s=made.latency_s * (1 + 1e-12)))
    tight = replace(made, constraints=Constraints(latency_cap_s=made.latency_s * (1 - 1e-12)))
    assert verified(tight)


def test_a_wrong_answer_of_the_search_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.pipeline.planner.finish", lambda *given: replace(finish(*given), latency_s=0.1))
    with pytest.raises(WrongPlanError, match=r"its latency_s is 0\.1"):
        pipeline.plan(problem())


def own(pipeline: Pipeline) -> list[tuple[str, int, int]]:
    return [("f0", 1, 3), ("s0", 4, 6)]


def test_a_users_function_is_held_to_the_constraints() -> None:
    made = pipeline.plan(problem(), method=own, max_stages=2, latency_cap_s=10.0)
    assert (made.method, made.hosts, made.constraints) == (
        "own",
        ["f0", "s0"],
        Constraints(max_stages=2, latency_cap_s=10.0),
    )
    for limits, told in (
        ({"max_stages": 1}, "it uses 2 devices: --max-stages is 1"),
        ({"latency_cap_s": 8.0}, "its latency is 9.01562 s: --latency-cap-s is 8"),
        ({"first": "s0"}, "its first stage is on f0: --first is s0"),
        ({"cuts": (2,)}, "it cuts after layer 3: --cuts does not allow that"),
    ):
        with pytest.raises(InputError) as caught:
            pipeline.plan(problem(), method=own, **limits)
        assert str(caught.value) == f"method own: the plan that it gives is none: {told}"


def test_a_plan_of_a_users_function_must_be_what_it_says() -> None:
    assert pipeline.plan(problem(), method=lambda p: good()).bottleneck_s == 2.0
    with pytest.raises(InputError, match=r"its bottleneck_s is 0\.1, but its stages give 2"):
        pipeline.plan(problem(), method=lambda p: replace(good(), bottleneck_s=0.1))
    with pytest.raises(InputError, match="f0 is used twice"):
        pipeline.plan(problem(), method=lambda p: stage(1, host="f0")(good()))
