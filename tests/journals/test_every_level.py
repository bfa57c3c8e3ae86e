"""What is written for one event at a time works on the journal of every level."""

from __future__ import annotations

from math import isclose
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dovetail
from dovetail.cli import main
from dovetail.core.check import check_journal
from dovetail.core.events import Arrived, Complete, Rows, Start
from dovetail.core.explain import explain, sentences
from dovetail.core.findings import Findings
from dovetail.core.journal import Ended, Reader
from dovetail.core.metrics import Metrics
from tests.journals.conftest import LEVELS

Journals = dict[str, Path]


@pytest.mark.parametrize("level", LEVELS)
def test_the_common_readers_understand_it(journals: Journals, level: str) -> None:
    reader = Reader(journals[level])
    assert not any(isinstance(event, Rows) and event.of == "started" for _, _, event in reader)
    jobs = [event.job for _, _, event in reader if isinstance(event, Arrived)]
    metrics = Metrics(reader.header.pool)
    reader.feed(metrics)
    figures = metrics.figures()
    assert figures.arrived == figures.completed == len(jobs) > 0
    assert figures.tasks == sum(isinstance(event, Start) for _, _, event in reader) > 0
    assert figures.makespan_s > 0
    assert 0 < figures.utilisation <= 1
    findings = Findings()
    assert check_journal(Reader(journals[level]), findings) == figures
    assert findings.first == []
    told = " ".join(line for story in explain(reader, jobs[0]) for line in sentences(story))
    assert f"{jobs[0]}/" in told
    assert "It finished at" in told


@pytest.mark.parametrize("level", LEVELS)
def test_the_example_of_the_documentation_works(
    journals: Journals, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert "dovetail_journal.jsonl" in example
    capsys.readouterr()
    exec(example.replace("dovetail_journal.jsonl", str(journals[level])), {})
    assert float(capsys.readouterr().out) > 0


@pytest.mark.parametrize("level", LEVELS)
def test_the_levels_checker_agrees_with_that_of_all_levels(journals: Journals, level: str) -> None:
    report = dovetail.check_journal(journals[level])
    assert report.valid, report.faults
    figures = check_journal(Reader(journals[level]), Findings())
    assert report.counted["makespan_s"] == figures.makespan_s
    for key in ("arrived", "completed", "rejected", "tasks"):
        assert report.counted[key] == getattr(figures, key), key


def test_the_fast_metrics_of_rounds_agree_with_those_of_single_events(journals: Journals) -> None:
    reader = Reader(journals["cluster"])
    metrics = Metrics(reader.header.pool)
    reader.feed(metrics)
    figures = metrics.figures()
    claimed = next(event.summary for _, _, event in reader if isinstance(event, Ended))
    assert claimed["makespan_s"] == figures.makespan_s
    assert isclose(claimed["avg_jct_s"], figures.response_s.mean)
    assert isclose(claimed["median_jct_s"], figures.response_s.median)
    assert (claimed["completed"], claimed["leases"]) == (figures.completed, figures.tasks)
    assert isclose(claimed["utilization"], figures.utilisation)


@pytest.mark.parametrize("level", LEVELS)
def test_an_interrupted_run_is_one_finding_in_the_words_of_its_level(
    journals: Journals, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = journals[level].read_text().splitlines()
    words = Reader(journals[level]).header.words
    for end in (len(lines) // 3, len(lines) // 2, len(lines) - 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_text("\n".join(lines[:end]) + "\n")
        report = dovetail.check_journal(cut)
        assert report.faults_by_code == {"end": 1}, report.faults
        events = [event for _, _, event in Reader(cut)]
        left = sum(isinstance(e, Arrived) for e in events) - sum(isinstance(e, Complete) for e in events)
        message = report.faults[0].message
        assert message.startswith(f"did not end: {left} {words.job if left == 1 else words.jobs} unfinished"), message
        assert message.endswith("`--resume` goes on") == (level == "workflow")
        capsys.readouterr()
        assert main(["check", str(cut), "--quiet"]) == 1
        assert capsys.readouterr().out == "FAIL: 1 fault\n"
        assert main(["report", str(cut), "--out", str(tmp_path / "page.html"), "--format", "json"]) == 0
        assert "below the bound" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("level", LEVELS)
def test_a_bound_that_was_beaten_is_a_finding(journals: Journals, level: str, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in journals[level].read_bytes().splitlines()]
    makespan_s = dovetail.check_journal(journals[level]).counted["makespan_s"]
    for place in (lines[0]["facts"], lines[-1]["summary"]):
        if "bound_makespan_s" in place:
            place["bound_makespan_s"] = makespan_s * 1.001
    planted = tmp_path / "planted.jsonl"
    planted.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    found = dovetail.check_journal(planted).faults
    assert f"at least {makespan_s * 1.001}" in " ".join(f.message for f in found if f.code == "bound")
    if level == "workflow":  # which counts its bounds itself, and does not take the run's word
        assert [(f.code, f.where) for f in found] == [("bound", "makespan_s"), ("summary", "bound_makespan_s")]


def test_jobs_that_share_a_device_are_no_overlap_but_a_third_one_is(tmp_path: Path) -> None:
    journal = tmp_path / "packed.jsonl"
    words = ["-p", "max_min_fairness_packed", "--jobs", "5", "-c", "1:1:1", "--journal", str(journal)]
    assert main(["cluster", "simulate", *words]) == 0
    shared = [e for _, _, e in Reader(journal) if isinstance(e, Start) and e.batch]
    assert len({start.kind for start in shared}) > 1
    findings = Findings()
    check_journal(Reader(journal), findings)
    assert findings.first == []
    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in journal.read_bytes().splitlines()]
    columns = next(c for line in lines if (c := line.get("columns")) and line["of"] == "started" and len(c["id"]) > 2)
    pair = next(i for i, other in enumerate(columns["beside"]) if other >= 0)
    alone = next(i for i, other in enumerate(columns["beside"]) if other < 0)
    columns["devices"][alone] = columns["devices"][pair]
    journal.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    findings = Findings()
    check_journal(Reader(journal), findings)
    assert "overlap" in findings.counts
