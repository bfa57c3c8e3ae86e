"""Entities, deadlines, prices and moves: what a journal claims of them, counted again from its leases, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail import check_journal, cluster, write_report
from dovetail.cluster.inputs.setup import Outage
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies import make
from dovetail.cluster.rounding.details import OverTime
from dovetail.cluster.rules import RoundRules
from dovetail.cluster.simulate import run
from dovetail.core.events import Rows
from dovetail.core.journal import Ended, Reader
from dovetail.report.data.collect import collect
from dovetail.report.data.units import unit_of
from dovetail.report.payload import payload
from dovetail.testing.cluster.fuzz import policies_for, random_case
from tests.cluster.conftest import Make, Table


def _read(path: Path) -> tuple[dict[str, Any], list[Rows], list[float]]:
    rows, times, summary = [], [], {}
    for _, t, events in Reader(path).rows():
        for event in events:
            if isinstance(event, Ended):
                summary = event.summary
            elif isinstance(event, Rows):
                rows.append(event)
                times.append(t)
    return summary, rows, times


@pytest.mark.parametrize("seed", [2, 5, 9, 13, 29])
def test_claims_are_what_leases_come_to(seed: int, tmp_path: Path) -> None:
    case, path = random_case(seed), tmp_path / "run.jsonl"
    names = list(case.setup.entities)
    for policy in policies_for(case)[seed % 2 :: 8]:
        run(case.setup, make(policy), replace(case.rules), name=policy, journal=path)
        summary, rows, _ = _read(path)
        entity: dict[int, int] = {}
        place: dict[int, Any] = {}
        width: dict[int, float] = {}
        hours = dict.fromkeys(names, 0.0)
        to_other = within = 0
        for each in rows:
            columns = each.columns
            if each.of == "arrived" and "entity" in columns:
                entity |= dict(zip(columns["id"], columns["entity"], strict=True))
            elif each.of == "started":
                for i, job in enumerate(columns["id"]):
                    now = (columns["on"][i], tuple(columns["devices"][i]))
                    shared = "beside" in columns and columns["beside"][i] >= 0
                    width[job] = len(now[1]) * (0.5 if shared else 1.0)
                    before = place.get(job, now)
                    to_other += before[0] != now[0]
                    within += before[0] == now[0] and before != now
                    place[job] = now
            elif each.of == "stopped" and names:
                for job, begun, over in zip(columns["id"], columns["from_s"], columns["to_s"], strict=True):
                    hours[names[entity[job]]] += (over - begun) * width[job] / 3600
        assert summary.get("moves_to_other_types", 0) == to_other
        assert summary.get("moves_within_types", 0) == within
        if names:
            assert summary["accelerator_hours_by_entity"] == pytest.approx(hours)
            assert sum(summary.get("late_by_entity", {}).values()) == summary["slo_violations"]
        assert sum(summary["cost_by_type"].values()) == pytest.approx(summary["total_cost"])


def test_a_forged_claim_is_found(make_setup: Make, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    jobs = [Job(id=i, model="A", steps=4000, entity=f"e{i % 2}", due_s=1500.0 * (i + 1)) for i in range(3)]
    setup = make_setup(jobs, counts=(1, 1), outages=[Outage(at_s=500.0, until_s=700.0, devices=(0,))])
    setup.entities = {"e0": 1.0, "e1": 1.0}
    shares = {0: [0.5, 0.5], 1: [0.3, 0.3], 2: [0.2, 0.2]}
    run(setup, Table(shares), RoundRules(), name="table", journal=path)
    summary, _, _ = _read(path)
    assert check_journal(path).valid
    assert [chart["title"] for chart in summary["charts"]] == [
        "Finish-time fairness",
        "Accelerators by entity",
        "Deadlines",
        "Moves",
    ]
    lines = path.read_text().splitlines()
    end = json.loads(lines[-1])
    text = json.dumps(end).replace('"moves_s": ', '"moves_s": 1')
    assert text != json.dumps(end)
    path.write_text("\n".join([*lines[:-1], text]) + "\n")
    assert {fault.code for fault in check_journal(path).faults} == {"summary"}


def test_a_page_draws_them(tmp_path: Path) -> None:
    prices = [{"time_s": 0, "type": "v100", "price": 1.0}, {"time_s": 9_000, "type": "v100", "price": 2.0}]
    jobs = cluster.load(cluster="2:0:2", jobs=12, entities=2, deadlines=True, prices=prices)
    found = cluster.simulate(jobs, "max_min_fairness_water_filling_perf", journal=tmp_path / "run.jsonl")
    summary, _, _ = _read(tmp_path / "run.jsonl")
    price = next(chart for chart in summary["charts"] if chart["title"] == "Prices")
    points = price["series"][0]["points"]
    assert points[:3] == [[0, 1], [2.5, 1], [2.5, 2]]
    assert points[-1][0] == pytest.approx(found.figures.makespan_s / 3600)  # to the end of the run
    write_report([tmp_path / "run.jsonl"], tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    for title in ("Accelerators by entity", "Deadlines", "Prices", "Moves"):
        assert f"{title}</h2>" in page
    for figure in ("deadlines missed, entity-0", "accelerator-hours, entity-1", "moves to another type", "cost, k80"):
        assert figure in page


def test_pictures_begin_when_the_first_job_comes(tmp_path: Path) -> None:
    """Arrivals in seconds since 1970, as clusters log them, look as those that begin at 0 s do."""
    since = 4_700_000 * 360.0
    stories = []
    for begins_s in (0.0, since):
        path, trace = tmp_path / f"{begins_s:.0f}.jsonl", tmp_path / "jobs.csv"
        rows = [f"{begins_s + 3600 * i},LM (batch size 10),{9000 + 900 * i},{i % 2},90000\n" for i in range(12)]
        trace.write_text("arrival_s,model,duration_s,entity,due_s\n" + "".join(rows))
        prices = [{"time_s": begins_s + 9_000 * i, "type": "v100", "price": 1 + i} for i in range(2)]
        jobs = cluster.load(trace=trace, cluster="2:0:2", entities={"0": 1, "1": 2}, prices=prices)
        cluster.simulate(jobs, "max_min_fairness_perf", journal=path)
        assert check_journal(path).valid
        stories.append(collect(path))
    early, late = stories
    assert early.bound_at_s is not None
    assert late.bound_at_s == pytest.approx(since + early.bound_at_s)
    assert late.from_s == since
    assert late.to_s == pytest.approx(since + early.to_s)
    assert [len(means) for means in late.strip.means] == [len(means) for means in early.strip.means]
    assert np.allclose(late.strip.means, early.strip.means, atol=1e-3)
    assert [chart.title for chart in late.charts] == [chart.title for chart in early.charts]
    for one, other in zip(early.charts, late.charts, strict=True):
        unit = unit_of(one.x)
        later = [since / unit.seconds if unit else 0.0, 0.0]
        for line, same in zip(one.series, other.series, strict=True):
            assert np.allclose(np.array(line.points) + later, same.points, rtol=0, atol=0.01), one.title
    spans = [(run["from"], run["to"]) for run in payload(stories, {}).data["runs"]]
    assert spans == [(each.from_s, each.to_s) for each in stories]


def test_parts_of_time_double() -> None:
    amounts = OverTime(1)
    for at_s in (30.0, 100_000.0, 1_000_000.0):
        amounts.count(0, at_s, 1)
    amounts.spread(0, 500_000.0, 600_000.0, 0.5)
    assert amounts.values.sum() == pytest.approx(3 + 50_000)
    assert amounts.part_s * 256 >= 1_000_000
    assert np.isclose(amounts.sums(0)[-1][1], 3 + 50_000)
