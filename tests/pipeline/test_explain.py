"""The curves against plans made one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.errors import InputError
from dovetail.core.journal import Reader
from dovetail.core.results.charts import charts_of
from dovetail.pipeline import explain as module
from dovetail.pipeline.explain import curves, what_if
from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Objective, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.policies.base import plan as plan_any
from dovetail.pipeline.simulate import simulate
from dovetail.testing.pipeline import random_pipeline
from dovetail.testing.pipeline.answers import loaded
from dovetail.testing.pipeline.cases import random_case
from dovetail.testing.pipeline.oracle import OBJECTIVES, Oracle


def test_every_point_is_the_best_plan() -> None:
    checked = slowed = 0
    for seed in range(60):
        pipeline = random_pipeline(seed, links=seed % 2 == 0)
        limits = Constraints(replicas=1 + seed % 2, data_mbps=(None, 50.0)[seed % 3 == 0], latency_cap_s=99.0)
        made = plan(pipeline, constraints=limits)
        if not isinstance(made, Plan):
            continue
        charts = {chart.title: chart for chart in curves(made)}
        free = replace(limits, latency_cap_s=None)
        for devices, pace in charts["Throughput by number of devices"].series[0].points if charts else ():
            found = plan(pipeline, constraints=replace(free, max_stages=int(devices)))
            assert isinstance(found, Plan)
            assert found.throughput_items_s == pytest.approx(pace, rel=1e-9)
            checked += 1
        if charts:
            points = dict(charts["Throughput by speed of the links"].series[0].points)
            now = plan(pipeline, constraints=free)
            assert isinstance(now, Plan)
            assert points[1.0] == pytest.approx(now.throughput_items_s)
            assert list(points.values()) == sorted(points.values())
            assert list(points) == [2.0**i for i in range(-4, 5)]
            slow = replace(
                pipeline,
                classes=[replace(c, bw_mbps=c.bw_mbps / 16) for c in pipeline.classes],
                link_mbps=pipeline.link_mbps and [[mbps / 16 for mbps in row] for row in pipeline.link_mbps],
            )
            then = plan(slow, constraints=replace(free, data_mbps=free.data_mbps and free.data_mbps / 16))
            assert isinstance(then, Plan)
            assert points[1 / 16] == pytest.approx(then.throughput_items_s)
            slowed += points[1 / 16] < points[1.0]
    assert checked > 60
    assert slowed > 5


def test_too_much_work_leaves_points_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = random_pipeline(60)
    made = plan(pipeline)
    assert isinstance(made, Plan)
    assert [len(chart.series[0].points) for chart in curves(made)][1] == 9
    monkeypatch.setattr(module, "_MOST_LOOK_UPS", 5.0 * 4 * 4 * len(pipeline.classes))
    monkeypatch.setattr(module, "_MOST_ADDITIONS", 0.0)
    (only,) = curves(made)
    assert only.log_x
    assert 3 <= len(only.series[0].points) < 9
    monkeypatch.setattr(module, "_MOST_LOOK_UPS", 0.0)
    assert curves(made) == []


def test_changes_are_looked_for_no_longer_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = plan(random_pipeline(60)), []

    def told(*words: Any, time_limit_s: float, **more: Any) -> Plan | Infeasible:
        asked.append(time_limit_s)
        return plan(*words, **more)

    assert isinstance(made, Plan)
    monkeypatch.setattr(module, "plan_exactly", told)
    assert len(what_if(made, time_limit_s=7.0)) == len(asked) > 1
    assert asked[0] == pytest.approx(7.0 / len(asked), rel=0.1)
    assert all(0 < limit_s <= 7.0 for limit_s in asked)
    with pytest.raises(InputError, match="expected a positive number of seconds"):
        what_if(made, time_limit_s=0.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_change_is_that_of_what_the_plan_is_made_for(objective: Objective) -> None:
    compared = 0
    for seed in range(50_000, 50_060):
        case = random_case(seed)
        case.batch_sizes, case.links = case.batch_sizes[:1], None
        problem = loaded(case, case.batch_sizes[0])
        try:
            made = plan_any(
                problem, objective=objective, microbatches=case.microbatches, slack=case.slack, **case.limits
            )
        except (InfeasibleError, InputError):
            continue
        for row in what_if(made):
            pinned = [case.limits.get("first"), case.limits.get("last")]
            hosts = [host for host in case.devices[row["type"]] if row["change"] > 0 or host in pinned]
            free = [host for host in case.devices[row["type"]] if host not in hosts]
            changed = [*hosts, "one more"] if row["change"] > 0 else [*hosts, *free[:-1]]
            best = Oracle(replace(case, devices=case.devices | {row["type"]: changed})).best(objective)
            if best is not None and objective == "throughput":
                best *= case.batch_sizes[0]
            assert row["value"] == pytest.approx(best, rel=1e-9), (seed, row)
            assert row["ratio"] == (row["value"] / made.value if best is not None and made.value else None)
            compared += 1
    assert compared > 40


def test_a_journal_holds_them(tmp_path: Path) -> None:
    made = plan(random_pipeline(60))
    assert isinstance(made, Plan)
    simulate(made, 3, 1, tmp_path / "run.jsonl")
    header = Reader(tmp_path / "run.jsonl").header
    assert charts_of(header.facts, "run") == curves(made) != []
    made.problem = None
    assert curves(made) == []
