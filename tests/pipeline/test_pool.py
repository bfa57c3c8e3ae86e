"""A plan holds the problem it was made for, and the problem can be planned again after a change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.pipeline.explain import what_if
from dovetail.pipeline.inputs.files import load
from dovetail.pipeline.inputs.pool import by_host, slowed, with_hosts, without
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.plan import Constraints, InfeasibleError, Objective, Plan, read_plan
from dovetail.pipeline.planner import again, plan
from dovetail.pipeline.policies.auction import auction
from dovetail.pipeline.policies.base import plan as plan_any
from dovetail.pipeline.policies.proportional import by_memory
from dovetail.testing.pipeline import random_pipeline
from dovetail.testing.pipeline.answers import loaded
from dovetail.testing.pipeline.cases import random_case
from dovetail.testing.pipeline.oracle import Oracle


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 500),
    objective=st.sampled_from(["throughput", "latency", "batch", "devices", "energy", "money"]),
    replicas=st.integers(1, 2),
    cuts=st.none() | st.frozensets(st.integers(1, 5)),
)
def test_a_plan_that_was_written_plans_again_to_itself(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    objective: Objective,
    replicas: int,
    cuts: frozenset[int] | None,
) -> None:
    constraints = Constraints(allowed_cuts=cuts, replicas=replicas, link_bits=(32, 8), max_stages=4)
    made = plan(random_pipeline(seed, links=seed % 2 == 0), objective, constraints, microbatches=3, slack=0.2)
    if not isinstance(made, Plan):
        return
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(made)))
    read = read_plan(file)
    assert read == made
    assert again(read) == made


def test_every_method_keeps_the_problem() -> None:
    pipeline = random_pipeline(26)
    for method in (plan, auction, by_memory):
        made = method(pipeline)
        assert isinstance(made, Plan)
        assert made.problem == pipeline
        assert made.constraints == Constraints()


def test_a_plan_of_an_older_version_says_what_it_lacks(tmp_path: Path) -> None:
    made = plan(random_pipeline(60))
    assert isinstance(made, Plan)
    made.problem = made.constraints = None
    with pytest.raises(InputError, match="does not hold the problem"):
        again(made)


def link_of(pipeline: Pipeline, one: str, two: str) -> tuple[float, float]:
    at = {host: k for k, c in enumerate(pipeline.classes) for host in c.hosts}
    assert pipeline.link_mbps is not None
    assert pipeline.link_s is not None
    return pipeline.link_mbps[at[one]][at[two]], pipeline.link_s[at[one]][at[two]]


def hosts_of(pipeline: Pipeline) -> list[str]:
    return [host for c in pipeline.classes for host in c.hosts]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 300), pick=st.randoms(use_true_random=False))
def test_links_follow_every_change(seed: int, pick: object) -> None:
    before = random_pipeline(seed, links=True)
    hosts = hosts_of(before)
    host = pick.choice(hosts)  # type: ignore[attr-defined]
    gone = without(before, {host})
    slow = slowed(before, host, 3.0)
    assert hosts_of(gone) == [h for h in hosts if h != host]
    assert sorted(hosts_of(slow)) == sorted(hosts)
    for changed in (gone, slow, by_host(before)):
        for one in hosts_of(changed):
            for two in hosts_of(changed):
                assert link_of(changed, one, two) == link_of(before, one, two)
    times = {h: c.time_s for c in before.classes for h in c.hosts}
    after = {h: c.time_s for c in slow.classes for h in c.hosts}
    assert after == times | {host: [3.0 * t for t in times[host]]}


def test_planning_again_without_a_host_frees_the_pin() -> None:
    pipeline = random_pipeline(60)
    host = hosts_of(pipeline)[0]
    made = plan(pipeline, constraints=Constraints(first=host))
    assert isinstance(made, Plan)
    assert made.stages[0].host == host
    assert again(made) == made
    after = again(made, without(pipeline, {host}))
    assert isinstance(after, Plan)
    assert all(host not in (stage.host, *stage.replicas) for stage in after.stages)
    assert [row["type"] for row in what_if(made)]


def test_planning_again_where_no_price_is_left_gives_the_fastest_plan() -> None:
    dear, unknown = (
        DeviceClass(name, name, [f"{name}0"], 100.0, 99.0, [1.0, 1.0], price_per_hour=price)
        for name, price in (("dear", 2.0), ("unknown", 0.0))
    )
    problem = Pipeline(
        model="m",
        layers=2,
        mem_mib=[1.0] * 2,
        cut_bytes=[0] * 3,
        classes=[dear, unknown],
        batch_size=1,
        dtype="torch.float32",
    )
    made = plan(problem, "money", Constraints(first="dear0"))
    assert isinstance(made, Plan)
    after = again(made, without(problem, {"dear0"}))
    assert isinstance(after, Plan)
    assert (after.objective, [stage.host for stage in after.stages]) == ("throughput", ["unknown0"])
    gone = [row["value"] for row in what_if(plan_any(problem, objective="money", last="unknown0")) if row["change"] < 0]
    assert gone == [None]


def test_a_class_without_hosts_is_left_out_with_its_links() -> None:
    before = random_pipeline(0, links=True)
    after = with_hosts(before, 0, [])
    assert len(after.classes) == len(before.classes) - 1
    assert after.link_mbps is not None
    assert len(after.link_mbps) == len(after.classes)


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(InputError, match="'nobody' is not an available host"):
        without(random_pipeline(60), ["nobody"])
    with pytest.raises(InputError, match="factor: expected a positive number, found 0"):
        slowed(random_pipeline(60), hosts_of(random_pipeline(60))[0], 0.0)


def test_what_is_left_of_a_pool_is_a_pool_of_its_own() -> None:
    """Hosts that only one which is gone told apart may take turns, as if it had never been there."""
    asked = 0
    for seed in range(30_000, 30_200):
        case = random_case(seed)
        if case.links is None or case.limits.get("replicas", 1) == 1:
            continue
        limits = {key: value for key, value in case.limits.items() if key not in ("first", "last")}
        problem = loaded(case, case.batch_sizes[0])
        for gone in problem.hosts:
            devices = {kind: [host for host in hosts if host != gone] for kind, hosts in case.devices.items()}
            left = replace(case, devices=devices, batch_sizes=case.batch_sizes[:1], limits=limits)
            best = Oracle(left).best("throughput")
            try:
                found = plan_any(without(problem, {gone}), **limits).bottleneck_s / case.batch_sizes[0]
            except InfeasibleError:
                found = None
            assert found == pytest.approx(best, rel=1e-9), (seed, gone)
            asked += 1
    assert asked > 50


def test_a_class_that_has_all_hosts_of_its_type_has_its_name() -> None:
    profile = {"batch_size": 8, "dtype": "torch.float32", "time_s": [1.0]}
    problem = load(
        {"m": {"layers": 1, "mem_MB": [1], "parameters_in": 1, "parameters_out": [1]}},
        {"t4": {"bw_Mbps": 10, "mem_MB": 9, "model_profiles": {"m": [profile]}}},
        {"t4": ["a", "b", "c"]},
        links={"a": {"b": {"bw_Mbps": 1}, "c": {"bw_Mbps": 2}}, "b": {"a": {"bw_Mbps": 1}}, "c": {"a": {"bw_Mbps": 2}}},
    )
    assert [(c.name, c.hosts) for c in problem.classes] == [("a", ["a"]), ("b", ["b"]), ("c", ["c"])]
    (only,) = without(problem, {"c"}).classes
    assert (only.name, only.hosts) == ("t4", ["a", "b"])


def test_no_two_classes_have_one_name() -> None:
    """Host `t4` is of another type than the hosts that are all of type t4."""
    profile = {"batch_size": 8, "dtype": "torch.float32", "time_s": [1.0]}
    kind = {"bw_Mbps": 10, "mem_MB": 9, "model_profiles": {"m": [profile]}}
    pairs = {("a", "b"): 1, ("t4", "y"): 2, ("t4", "z"): 3, ("y", "z"): 4}
    problem = load(
        {"m": {"layers": 1, "mem_MB": [1], "parameters_in": 1, "parameters_out": [1]}},
        {"t4": kind, "x": kind},
        {"t4": ["a", "b"], "x": ["t4", "y", "z"]},
        links={
            host: {b if a == host else a: {"bw_Mbps": mbps} for (a, b), mbps in pairs.items() if host in (a, b)}
            for host in ("a", "b", "t4", "y", "z")
        },
    )
    assert [(c.name, c.hosts) for c in problem.classes] == [
        ("a", ["a", "b"]),
        ("t4", ["t4"]),
        ("y", ["y"]),
        ("z", ["z"]),
    ]
