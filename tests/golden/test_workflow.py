"""What the older scheduler computed, to the last bit: `--compat gswarm --policy baseline` on its own input files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.workflow import load, run
from dovetail.workflow.check import check_journal

CASES = [(name, gpus, mode) for name in ("simple", "complex") for gpus in (2, 4, 8) for mode in ("offline", "online")]
EXACT = ("makespan_s", "switches", "switch_time_s", "avg_request_s", "p99_request_s")
SIZES = {"simple": 500, "complex": 1000}
# How many requests the older scheduler finished; what it silently dropped is rejected with a reason.
COMPLETED = {
    ("simple", 2): 257,
    ("simple", 4): 500,
    ("simple", 8): 500,
    ("complex", 2): 321,
    ("complex", 4): 321,
    ("complex", 8): 651,
}


def expected(golden: Path, name: str, gpus: int, mode: str) -> dict[str, Any]:
    rows = json.loads((golden / "workflow" / "expected.json").read_text())["baseline_compat"]
    [row] = [row for row in rows if (row["set"], row["gpus"], row["mode"]) == (name, gpus, mode)]
    found: dict[str, Any] = row
    return found


def files(golden: Path, name: str) -> tuple[Path, Path]:
    return golden / "workflow" / f"{name}_config.json", golden / "workflow" / f"{name}_requests.yaml"


def test_every_golden_row_is_held(golden: Path) -> None:
    rows = json.loads((golden / "workflow" / "expected.json").read_text())["baseline_compat"]
    assert sorted((row["set"], row["gpus"], row["mode"]) for row in rows) == sorted(CASES)


@pytest.mark.parametrize(("name", "gpus", "mode"), CASES)
def test_baseline_gives_the_older_numbers_as_doubles(
    golden: Path, tmp_path: Path, name: str, gpus: int, mode: Any
) -> None:
    row = expected(golden, name, gpus, mode)
    problem = load(*files(golden, name), gpus=str(gpus), mode=mode, compat="gswarm")
    figures = run(problem, "baseline", journal=tmp_path / "journal.jsonl").metrics
    assert {key: figures[key] for key in EXACT} == {key: row[key] for key in EXACT}
    completed = COMPLETED[name, gpus]
    assert (figures["completed"], figures["rejected"]) == (completed, SIZES[name] - completed)
    assert figures["bound_makespan_s"] <= figures["makespan_s"]
    if completed == SIZES[name]:  # otherwise the golden bound counts nodes of requests that never complete
        assert figures["bound_makespan_s"] >= row["bound_makespan_s"] - 0.005
    report = check_journal(tmp_path / "journal.jsonl", *files(golden, name))
    assert report.faults == []


@pytest.mark.parametrize(("name", "gpus", "mode", "code"), [("simple", 8, "online", 0), ("complex", 4, "offline", 3)])
def test_the_command_prints_them(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, gpus: int, mode: str, code: int
) -> None:
    row = expected(golden, name, gpus, mode)
    config, requests = map(str, files(golden, name))
    words = ["--gpus", str(gpus), "--mode", mode, "--config", config, "--requests", requests, "--out", str(tmp_path)]
    words += ["--simulate", "false", "--policy", "baseline", "--compat", "gswarm", "--format", "json"]
    assert main(["workflow", "run", *words]) == code
    figures = json.loads(capsys.readouterr().out)
    assert {key: figures[key] for key in EXACT} == {key: row[key] for key in EXACT}
    assert row.keys() - {"set"} <= figures.keys()
    assert sorted(os.listdir(tmp_path)) == [
        "baseline_execution_log.json",
        "baseline_journal.jsonl",
        "baseline_scheduler.log",
    ]


def test_without_compat_the_broken_edge_is_refused(golden: Path, tmp_path: Path) -> None:
    """349 nodes of the complex set wait for a name that is not a node: nobody may find out only from the figures."""
    config, requests = map(str, files(golden, "complex"))
    words = ["--gpus", "8", "--config", config, "--requests", requests, "--out", str(tmp_path)]
    assert main(["workflow", "run", *words]) == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_rejecting_the_broken_workflow_runs_the_rest(golden: Path, mode: Any) -> None:
    problem = load(*files(golden, "complex"), gpus="8", mode=mode, on_error="reject")
    figures = run(problem).figures
    assert (figures.completed, figures.rejected) == (651, 349)


@pytest.mark.parametrize(("name", "gpus", "mode"), [case for case in CASES if case[1] > 2])
def test_the_default_policy_waits_far_less_than_baseline_for_little_makespan(
    golden: Path, name: str, gpus: int, mode: Any
) -> None:
    problem = load(*files(golden, name), gpus=str(gpus), mode=mode, on_error="reject")
    ours, baseline = run(problem).figures, run(problem, "baseline").figures
    last = run(problem, "dovetail", options={"objective": "makespan"}).figures
    assert ours.response_s.mean < 0.75 * baseline.response_s.mean
    assert ours.makespan_s < 1.03 * baseline.makespan_s
    assert last.makespan_s < 1.025 * baseline.makespan_s
    assert last.switches <= baseline.switches
