"""Plans in virtual time: the formula, order, buffers, and a journal that the checker passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.core.check import Faults, check_journal
from dovetail.core.events import Complete, Start
from dovetail.core.journal import Reader
from dovetail.pipeline.brute import random_pipeline
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan
from dovetail.pipeline.simulation import Route, read_plan, record, run


def plans(count: int) -> list[Plan]:
    found = [plan(random_pipeline(seed, links=seed % 2 == 0)) for seed in range(count)]
    return [p for p in found if isinstance(p, Plan)]


def test_the_formula_holds() -> None:
    """Latency plus the bottleneck for every further microbatch, whatever the buffers."""
    for one in plans(120):
        for microbatches in (1, 2, 7):
            for buffers in (1, 3):
                outcome = run(one, microbatches, buffers)
                assert outcome.makespan_s == pytest.approx(outcome.predicted_s, rel=1e-9, abs=1e-12)


def test_order_is_kept_and_buffers_are_bounded(tmp_path: Path) -> None:
    one = max(plans(60), key=lambda p: len(p.stages))
    route = Route.of(one)
    journal = tmp_path / "run.jsonl"
    record(one, 9, 1, journal)
    faults = Faults()
    check_journal(Reader(journal), faults)
    assert faults.counts == {}
    starts: dict[str, list[str]] = {}
    finished: list[str] = []
    for _, _, event in Reader(journal):
        if isinstance(event, Start):
            starts.setdefault(event.part, []).append(event.work)
        elif isinstance(event, Complete):
            finished.append(event.work)
    expected = [f"microbatch {n}" for n in range(1, 10)]
    assert all(order == expected for order in starts.values())
    assert list(starts) == route.names
    assert finished == expected


def test_the_command_reads_a_printed_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden / "pipeline/seed")
    assert main(["pipeline", "plan", "--format", "json", "--what-if"]) == 0
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    assert len(read_plan(file).stages) == 8
    words = ["pipeline", "simulate", str(file), "--microbatches", "8", "--journal", str(tmp_path / "run.jsonl")]
    assert main([*words, "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["makespan_s"] == pytest.approx(figures["predicted_s"])
    assert main(["report", str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "run.html")]) == 0
    assert (tmp_path / "run.html").stat().st_size > 10_000
    file.write_text("{}")
    assert main(words) == 2
    assert "missing key" in capsys.readouterr().err
    file.write_text('{"feasible": false, "reasons": []}')
    assert main(words) == 2
    assert "holds no plan" in capsys.readouterr().err
