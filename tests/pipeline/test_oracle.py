"""The planner against every plan there is, by the definition: random questions with all options combined."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from dovetail import pipeline
from dovetail.pipeline.optimise import cheapest, focus
from dovetail.pipeline.plan import Infeasible
from dovetail.pipeline.policies.sizes import best_of
from dovetail.testing.pipeline.answers import PLANTED, faults, planted
from dovetail.testing.pipeline.cases import random_case
from dovetail.testing.pipeline.oracle import OBJECTIVES, Case, Oracle, StageAt

SAMPLE = range(20_000, 20_120)  # others than `bench.pipeline_fuzz` asks
FINDERS = (2, 6, 3, 14, 32, 26, 18, 21, 30, 33, 65, 13, 48)  # of the first 70, enough for all planted faults


def test_every_answer_is_the_best_there_is() -> None:
    feasible = 0
    for seed in SAMPLE:
        case = random_case(seed)
        assert not list(faults(case)), seed
        feasible += bool(Oracle(case).every)
    assert len(SAMPLE) * 0.7 < feasible < len(SAMPLE)


def test_every_answer_is_the_best_there_is_where_prices_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cheapest, "_SMALL", -1.0)  # small pools too are searched as large ones are
    for seed in range(20_200, 20_240):
        assert not list(faults(random_case(seed))), seed


def test_every_answer_is_the_best_there_is_where_labels_begin_with_few_resources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cheapest, "_SMALL", -1.0)
    monkeypatch.setattr(focus, "_LITTLE", inf)  # none is looked at until a chain takes too much of it
    for seed in range(20_240, 20_280):
        assert not list(faults(random_case(seed))), seed


def test_hosts_at_the_ends_of_which_no_size_has_both_leave_no_plan() -> None:
    case = random_case(1_803_928)  # one is known to batch size 8 alone, the other to 4
    assert not list(faults(case))
    problems = [pipeline.load(case.models, case.device_types, case.devices, batch_size=b) for b in case.batch_sizes]
    with pytest.raises(pipeline.InfeasibleError, match="h01 has no profile of batch size 8"):
        pipeline.plan(problems, **case.limits)


def test_every_planted_fault_is_found() -> None:
    cases = [random_case(seed) for seed in FINDERS]
    for name in PLANTED:
        with planted(name):
            assert any(any(faults(case)) for case in cases), name


def simple(**changes: object) -> Case:
    """Two layers on two unlike hosts, worked out by hand."""
    profiles = {
        host: [{"batch_size": 2, "dtype": "torch.float32", "time_s": times}]
        for host, times in (("a", [1.0, 2.0]), ("b", [2.0, 1.0]))
    }
    case = Case(
        models={"m": {"layers": 2, "mem_MB": [1.0, 1.0], "parameters_in": 0, "parameters_out": [2**17, 0]}},
        device_types={
            host: {
                "bw_Mbps": 16.0,
                "mem_MB": 50.0,
                "model_profiles": {"m": profile},
                "watts_busy": 3.0,
                "watts_idle": 1.0,
                "price_per_hour": 3600.0,
            }
            for host, profile in profiles.items()
        },
        devices={"a": ["a0"], "b": ["b0"]},
        batch_sizes=[2],
    )
    return replace(case, **changes)


def test_the_oracle_knows_what_can_be_worked_out_by_hand() -> None:
    oracle = Oracle(simple())  # 2**17 floats of two items are a MiB: half a second at 2 MiB/s
    figures = oracle.definitions[2].figures([StageAt(("a0",), 1, 1, 32), StageAt(("b0",), 2, 2, 32)])
    assert figures == (2, 1.0, 2.5, 2, (1.0 * 2 + 1.0 * 2 + 1.0 * 2) / 2, 1.0 * 2 / 2)
    assert [oracle.best(objective) for objective in OBJECTIVES] == [0.5, 2.5, 9.5, 2.0, 3.0, 1.0]
    halves = Oracle(simple(limits={"link_bits": (16, 32)}))
    assert halves.best("latency") == 2.25
    assert Oracle(simple(limits={"latency_cap_s": 2.4})).best("throughput") is None
    assert Oracle(simple(limits={"max_stages": 1})).best("throughput") == 1.5
    assert Oracle(simple(links={"a0": {"b0": {"bw_Mbps": 16}}})).best("latency") == 3.0  # no way back: no link


def test_a_slack_that_is_met_but_for_rounding_is_kept() -> None:
    device = pipeline.DeviceClass("a", "a", ["a0", "a1"], 1e6, 99.0, [0.6, 0.3])
    problem = pipeline.Pipeline(
        model="m", layers=2, mem_mib=[1.0] * 2, cut_bytes=[0] * 3, classes=[device], batch_size=1, dtype="torch.float32"
    )
    assert pipeline.plan(problem, objective="devices", slack=0.5).value == 1  # 0.6 s x 1.5 against 0.6 s + 0.3 s


@pytest.mark.parametrize("busy", [0.0, 1e-6])
def test_energy_is_exact_where_waiting_draws_far_more_than_work(busy: float) -> None:
    device = pipeline.DeviceClass("a", "a", ["a0"], 10.0, 9.0, [0.1, 0.2, 0.4], watts_busy=busy, watts_idle=1e6)
    problem = pipeline.Pipeline(
        model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[device], batch_size=3, dtype="torch.float32"
    )
    for objective in ("energy", "throughput"):
        made = pipeline.plan(problem, objective=objective)
        assert made.energy_j_per_item == pytest.approx(0.7 * busy / 3, rel=1e-12, abs=0.0)


def two_sizes(one: list[float], four: list[float]) -> Case:
    entries = [
        {"batch_size": 1, "dtype": "torch.float32", "time_s": one},
        {"batch_size": 4, "dtype": "torch.float32", "time_s": four},
    ]
    return Case(
        models={"m": {"layers": 2, "mem_MB": [1.0] * 2, "parameters_in": 0, "parameters_out": [0]}},
        device_types={"a": {"bw_Mbps": 10.0, "mem_MB": 9.0, "model_profiles": {"m": entries}}},
        devices={"a": ["a0", "a1"]},
        batch_sizes=[1, 4],
        microbatches=2,
    )


def plan_of(case: Case, objective: str, **limits: object) -> pipeline.Plan:
    problems = [
        pipeline.load(case.models, case.device_types, case.devices, batch_size=size) for size in case.batch_sizes
    ]
    return pipeline.plan(problems, objective=objective, microbatches=case.microbatches, **limits)  # type: ignore[arg-type]


def test_sizes_compare_in_items_and_as_the_objective_does() -> None:
    case = two_sizes([1.0, 1.0], [3.0, 3.0])
    assert not list(faults(case))
    fast = plan_of(case, "throughput")
    assert (fast.batch_size, fast.throughput_items_s) == (4, 4 / 3)
    assert plan_of(case, "latency").batch_size == 1
    assert plan_of(case, "throughput", latency_cap_s=5.0).batch_size == 1
    batch = plan_of(case, "batch")  # eight items: two of four in 6 + 3 s, or eight of one in 2 + 7 s
    assert (batch.value, batch.batch_size, batch.microbatches) == (9.0, 4, 2)
    few = plan_of(two_sizes([1.0, 1.0], [1.0, 1.0]), "devices", slack=0.5)
    assert (few.batch_size, few.value) == (4, 2.0)  # one device has a rate of 2, half of the best there is


def test_what_is_not_proven_of_one_size_is_not_proven_of_the_best() -> None:
    case = two_sizes([1.0, 1.0], [3.0, 3.0])
    good, worse = plan_of(case, "latency"), plan_of(replace(case, batch_sizes=[4]), "latency")
    assert best_of([good, worse], "latency") is good
    open_plan = replace(worse, bound_s=1.0, optimal=False, gap=5.0)
    best = best_of([good, open_plan], "latency")
    assert best is not None
    assert (best.value, best.bound_s, best.optimal, best.gap) == (2.0, 1.0, False, 1.0)
    unknown = best_of([good, Infeasible(model="m", reasons=["no time"], proven=False)], "latency")
    assert unknown is not None
    assert (unknown.optimal, unknown.bound_s, unknown.gap) == (False, 0.0, None)
    assert best_of([good, Infeasible(model="m", reasons=["no room"])], "latency") is good
