"""The page of a sweep: means and their confidence, lines, crosses, and nothing that a name could break."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from dovetail.cluster.sweeps.groups import difference, groups
from dovetail.report.svg.bands import Axis, Line, Point, band_chart
from dovetail.report.sweep_page import sweep_page
from tests.report_pages import roomy

EVIL = "</svg><script>alert(1)</script>"


def row(policy: str, load: float, seed: int, jct_s: float | None, status: str = "done", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cluster": "8:8:8",
        "policy": policy,
        "profiling_percentage": 1.0,
        "num_reference_models": None,
        "jobs_per_hour": load,
        "num_total_jobs": None,
        "seed": seed,
        "status": status,
        "reason": "" if status == "done" else "it grew",
    }
    if jct_s is not None:
        keys = ("avg_jct_s", "p95_jct_s", "makespan_s", "rho_mean")
        found |= dict.fromkeys(keys, jct_s) | {
            "utilization": 0.5,
            "jain": 0.9,
            "total_cost": 8.0,
            "completed": 4,
            "envy": 0.1,
        }
        found |= {"slo_violations": 0, "slo_jobs": 0, "jct_quantiles_s": [jct_s / 2, jct_s, jct_s * 2]}
    return found | more


def test_runs_that_differ_in_their_seed_are_one_point() -> None:
    rows = [row("fifo", 1.0, 0, 3600.0), row("fifo", 1.0, 1, 7200.0), row("fifo", 2.0, 0, 3600.0)]
    first, second = groups(rows)
    assert (first.seeds, second.seeds) == ([0, 1], [0])
    assert first.means["avg_jct_s"].value == 5400.0
    assert first.means["cost_per_job"].value == 2.0
    assert first.quantiles_s == [2700.0, 5400.0, 10800.0]


def test_a_point_whose_seeds_did_not_all_end_has_no_mean() -> None:
    """The mean over the seeds that ended would flatter the policy."""
    rows = [row("fifo", 1.0, 0, 3600.0), row("fifo", 1.0, 1, None, "unstable")]
    [found] = groups(rows)
    assert found.status == "unstable"
    assert found.means == {}
    assert found.quantiles_s == []


def test_lines_are_told_apart_by_what_was_profiled() -> None:
    rows = [row("packed", 1.0, 0, 1.0), row("packed", 1.0, 0, 1.0, profiling_percentage=0.5, num_reference_models=16)]
    assert [g.line for g in groups(rows)] == [
        "packed, 100 % profiled, all references",
        "packed, 50 % profiled, 16 references",
    ]


def test_the_page_says_what_it_shows() -> None:
    rows = [row(policy, load, seed, 3600.0 * load) for policy in ("fifo", "las") for load in (1, 2) for seed in (0, 1)]
    page = sweep_page(groups(rows), "A sweep")
    assert roomy(page).count("<svg") == 2 + 7 + 2, "two names, seven figures, and completion times at two loads"
    assert "8 runs · 2 lines · seeds 0, 1 · 2 loads · clusters 8:8:8" in page
    assert "Not done" not in page


def test_what_is_not_done_is_a_cross_and_a_reason() -> None:
    rows = [row("fifo", 1.0, 0, 3600.0), row("fifo", 2.0, 0, None, "unstable"), row("las", 2.0, 0, 60.0, "unstable")]
    page = sweep_page(groups(rows), "A sweep")
    assert roomy(page).count("l6,6m0,-6l-6,6") == 7, "a cross in each figure"
    assert roomy(page).count("fill:var(--card);stroke") == 7, "a hollow point in each figure"
    assert "2 of 3 points unstable: see the table" in page
    assert "<h2>Not done</h2>" in page


def test_a_figure_that_runs_do_not_have_is_a_gap_and_not_zero() -> None:
    rows = [row("fifo", load, 0, 3600.0, envy=None if load == 2.0 else 0.25) for load in (1.0, 2.0, 3.0)]
    assert [("envy" in group.means) for group in groups(rows)] == [True, False, True]
    page = roomy(sweep_page(groups(rows), "t"))
    told = re.findall(r"fifo: ([0-9.]+) \(envious pairs, %\) at ([0-9]) jobs", page)
    assert told == [("25", "1"), ("25", "3")]
    envy = page[page.index("<h2>Envious pairs") :]
    lines = re.findall(r'<polyline class="line" points="([^"]*)"', envy[: envy.index("</svg>")])
    assert [len(line.split()) for line in lines] == [1, 1]
    nobody = sweep_page(groups([row("fifo", 1.0, 0, 3600.0, envy=None)]), "t")
    assert "Envious pairs" not in nobody


def test_a_cluster_on_which_nothing_ran_has_only_a_table() -> None:
    page = sweep_page(groups([row("fifo", 1.0, 0, None, "failed")]), "A sweep")
    assert page.count("<svg") == 1
    assert "failed" in page


def test_names_cannot_break_the_page() -> None:
    rows = [row(EVIL, 1.0, 0, 3600.0, cluster=EVIL), row(EVIL, 2.0, 0, None, "failed", cluster=EVIL, reason=EVIL)]
    page = sweep_page(groups(rows), EVIL)
    assert "<script" not in page
    assert "http" not in re.sub(r'content="[^"]*"|http-equiv', "", page)


def test_charts_are_well_formed_and_keep_within_their_frame() -> None:
    lines = [
        Line("a", 0, [Point(1.0, 1.0, 500.0, told="x"), Point(2.0, 900.0, 1e6, told="y")], [(3.0, "unstable")]),
        Line("b", 1, [Point(1.0, 3.0, 1.0)]),
    ]
    for y in (Axis("hours", steep=True), Axis("hours"), Axis("%", 100.0)):
        drawn = ElementTree.fromstring(band_chart(Axis("load"), y, lines, "what"))
        _, _, width, height = map(float, drawn.attrib["viewBox"].split())
        for element in drawn.iter():
            for pair in element.attrib.get("points", "").split():
                at_x, at_y = map(float, pair.split(","))
                assert 0 <= at_x <= width
                assert 0 <= at_y <= height


def test_a_larger_value_is_drawn_higher() -> None:
    for steep in (True, False):
        line = Line("a", 0, [Point(1.0, 1.0, told="low"), Point(2.0, 50.0, told="high")])
        drawn = ElementTree.fromstring(band_chart(Axis("load"), Axis("hours", steep=steep), [line], "what"))
        low, high = (float(circle.attrib["cy"]) for circle in drawn.iter("circle"))
        assert high < low


def test_nothing_to_draw_is_said() -> None:
    assert "No run has a result" in band_chart(Axis("load"), Axis("hours"), [], "what")


def test_sweeps_with_seeds_in_common_are_compared_seed_by_seed() -> None:
    """Seeds differ a lot, but the second is 10 s slower in each: the difference has no spread."""
    times = {0: 100.0, 1: 5000.0, 2: 900.0}
    (one,) = groups([row("fifo", 1.0, seed, time_s) for seed, time_s in times.items()])
    (two,) = groups([row("fifo", 1.0, seed, times.get(seed, 7.0) + 10.0) for seed in (1, 2, 3)])
    apart = difference(one, two, "avg_jct_s")
    assert apart is not None
    assert (apart.pairs, apart.difference, apart.plus_minus, apart.smaller_in) == (2, 10.0, 0.0, 0)
    assert not apart.sure  # it is by their ratios, which are unlike
    assert difference(one, groups([row("fifo", 1.0, 7, 1.0)])[0], "avg_jct_s") is None
