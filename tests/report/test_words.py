"""A level's own words: a pipeline has stages and links, and no set-ups."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail import cli
from dovetail.core.journal import Reader
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.route import Route
from dovetail.pipeline.simulate import simulate
from dovetail.report import perfetto
from dovetail.report.data.collect import collect
from dovetail.report.html import page
from dovetail.report.static import draw
from dovetail.testing.pipeline import random_pipeline


@pytest.fixture
def made() -> Plan:
    every = [plan(random_pipeline(seed), constraints=Constraints(replicas=2)) for seed in range(40)]
    return max((p for p in every if isinstance(p, Plan)), key=lambda p: len(p.stages))


def shown(html: str) -> str:
    """What stands on the page, without the raw facts at its end."""
    return html.split("</style>", 1)[1].split("<script", 1)[0].split("Everything else", 1)[0]


def test_stages_links_and_microbatches(tmp_path: Path, made: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "run.jsonl"
    simulate(made, 6, 1, journal)
    cli.main(["check", str(journal)])
    assert " passes run, " in capsys.readouterr().out
    story = collect(journal)
    html = page([story])
    for device in Route.planned(made).devices:
        assert f'<td class="whole">{device}</td>' in html
    for expected in (
        "Microbatches completed",
        "Stages and links",
        "Throughput by number of devices",
        "Find a microbatch",
    ):
        assert expected in html
    for absent in ("set-up", "switch", "request", "GPU"):
        assert absent not in shown(html)
    both = page([story, story])
    assert "set-up" not in shown(both)
    text = "\n".join(ElementTree.fromstring(draw([story], "svg")).itertext())
    assert next(iter(Route.planned(made).devices)) in text
    trace = tmp_path / "trace.json"
    with trace.open("wb") as file:
        perfetto.write(Reader(journal), file)
    assert f'"{next(iter(Route.planned(made).devices))} (' in trace.read_text()
