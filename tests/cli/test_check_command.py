"""`dovetail check`: what it prints, what it writes, and how it exits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail import cli
from dovetail.core.events import Arrived, Complete, Event, Finished, Start
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.metrics import Metrics
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraphRecord
from dovetail.workflow.bounds import BoundsAccumulator
from dovetail.workflow.compat.execution_log import ExecutionLog
from dovetail.workflow.metrics import summary
from dovetail.workflow.words import WORDS

CONFIG: dict[str, Any] = {
    "models": {"llm": {"memory_gb": 8, "gpus_required": 2, "load_time_seconds": 10}},
    "workflows": {"one": {"nodes": [{"id": "a", "model": "llm"}]}},
}
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "requests": [
        {"request_id": "r1", "workflow_id": "one", "node_execution_times": {"a": 4.0}},
        {"request_id": "r2", "workflow_id": "one", "node_execution_times": {"a": 5.0}},
    ]
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small valid run: its journal, its execution log, its inputs."""
    header = Header(
        level="workflow",
        policy="by hand",
        mode="offline",
        pool=Pool.parse("2", {}),
        graphs=(TaskGraphRecord("one", (Task("a", "llm", 2),)),),
        facts={"models": {"llm": {"memory_gb": 8.0, "load_s": 10.0, "width": 2}}},
        words=WORDS,
    )
    first: list[Event] = [Arrived("r1", "one", (4.0,)), Arrived("r2", "one", (5.0,))]
    steps: list[tuple[float, list[Event]]] = [
        (0.0, [*first, Start("r1", "a", "llm", (0, 1), 0.0, 4.0, "first", 10.0)]),
        (14.0, [Finished("r1", "a"), Complete("r1"), Start("r2", "a", "llm", (0, 1), 0.0, 5.0, "warm")]),
        (19.0, [Finished("r2", "a"), Complete("r2")]),
    ]
    metrics = Metrics(header.pool)
    bounds = BoundsAccumulator(header.pool, header.build_graphs(), {"llm": 10.0})
    with Writer(tmp_path / "run.jsonl", header) as journal, ExecutionLog(header, tmp_path / "log.json") as log:
        observers: tuple[Observer, ...] = (metrics, bounds, journal, log)
        for n, (t, events) in enumerate(steps, start=1):
            for observer in observers:
                observer.step(n, t, events)
        journal.end(9, 19.0, summary(header, metrics.figures(), bounds.result()))
        log.write(metrics.figures(), bounds.result())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps(REQUESTS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def break_journal() -> None:
    """The second node takes GPU 1 while the first one holds it, and its end is claimed to be earlier."""
    lines = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    second = next(line for line in lines if line.get("k") == "started" and line["job"] == "r2")
    lines.remove(second)
    lines.insert(4, second | {"n": 1, "t": 0.0})
    lines[-1]["summary"]["makespan_s"] = 18.0
    Path("run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("log", ["run.jsonl", "log.json"])
@pytest.mark.parametrize("files", [[], ["--config", "config.json", "--requests", "requests.json"]])
def test_a_valid_run_passes(run: Path, capsys: pytest.CaptureFixture[str], log: str, files: list[str]) -> None:
    assert cli.main(["check", log, *files]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("PASS: ")
    assert f"{log}: 2 of 2 completed, 0 rejected, 2 nodes run, makespan 19.00 s" in shown.out


def test_faults_are_counted_and_shown_with_their_place(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_journal()
    assert cli.main(["check", "run.jsonl"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAIL: journal run.jsonl: ")
    shown = "\n".join(lines)
    assert "overlap" in shown
    assert "step 1 at 0 s: r2/a" in shown
    assert "takes device 0 at 0.0 s, which r1/a holds since 0.0 s" in shown
    assert "found 18.0, expected 19.0" in shown


def test_quiet_prints_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--quiet", "-q"):
        assert cli.main(["check", "run.jsonl", flag]) == 0
        assert capsys.readouterr().out == "PASS\n"
    break_journal()
    assert cli.main(["check", "run.jsonl", "-q"]) == 1
    assert capsys.readouterr().out.startswith("FAIL: ")


def test_json_of_several_logs_is_one_document(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "run.jsonl", "log.json", "--format", "json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [(report["log"], report["valid"]) for report in reports] == [("run.jsonl", True), ("log.json", True)]


def test_json_for_programs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_journal()
    assert cli.main(["check", "run.jsonl", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    assert report["faults_by_code"]["overlap"] == 1
    assert {"code", "where", "message"} == set(report["faults"][0])
    assert report["counted"]["makespan_s"] == 19.0


def test_the_default_is_the_log_of_the_baseline_or_else_the_newest(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check"]) == 0
    assert "journal run.jsonl" in capsys.readouterr().out
    Path("run.jsonl").rename("run.kept")
    assert cli.main(["check"]) == 2
    message = "error: no *_execution_log.json and no journal *.jsonl in this folder: name what to check\n"
    assert capsys.readouterr().err == message
    for age, (given, name) in enumerate(
        (
            ("run.kept", "new_journal.jsonl"),
            ("log.json", "old_execution_log.json"),
            ("log.json", "baseline_execution_log.json"),
        )
    ):
        Path(name).write_bytes(Path(given).read_bytes())
        os.utime(name, (1e9 - age, 1e9 - age))
    assert cli.main(["check"]) == 0
    assert "execution log baseline_execution_log.json" in capsys.readouterr().out
    Path("baseline_execution_log.json").unlink()
    assert cli.main(["check"]) == 0
    assert "journal new_journal.jsonl" in capsys.readouterr().out
    Path("new_journal.jsonl").unlink()
    assert cli.main(["check"]) == 0
    assert "execution log old_execution_log.json" in capsys.readouterr().out


def test_an_execution_log_knows_deadlines_and_priorities(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [dict(REQUESTS["requests"][0], deadline_seconds=5, priority=3.0), REQUESTS["requests"][1]]
    Path("requests.json").write_text(json.dumps({"requests": rows}))
    files = ["--config", "config.json", "--requests", "requests.json"]
    assert cli.main(["workflow", "run", "--gpus", "2", *files, "--policy", "baseline", "-q"]) == 0
    written = json.loads(Path("baseline_execution_log.json").read_text())["requests"]
    assert [(row.get("deadline_seconds"), row.get("priority")) for row in written] == [(5.0, 3.0), (None, None)]
    assert cli.main(["check", "baseline_execution_log.json", *files]) == 0
    rows[0]["priority"] = 2.0
    Path("requests.json").write_text(json.dumps({"requests": rows}))
    assert cli.main(["check", "baseline_execution_log.json", *files]) == 1
    assert "found weight 3.0, expected 2.0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run.jsonl", "run.json", "run", "run.log", "run_report.json"])
def test_the_report_never_overwrites_the_log(run: Path, name: str) -> None:
    Path("run.jsonl").rename(name)
    before = Path(name).read_bytes()
    assert cli.main(["check", name, "--save-report", "-q"]) == 0
    assert Path(name).read_bytes() == before
    report = json.loads(Path(f"{Path(name).stem}_report.json").read_text())
    assert (report["log"], report["valid"]) == (name, True)


@pytest.mark.parametrize("target", ["run.jsonl", "config.json", "requests.json"])
def test_the_report_does_not_follow_a_link_to_an_input(
    run: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    Path("run_report.json").symlink_to(target)
    before = Path(target).read_bytes()
    files = ["--config", "config.json", "--requests", "requests.json"]
    assert cli.main(["check", "run.jsonl", *files, "--save-report"]) == 2
    assert "is the same file as the input" in capsys.readouterr().err
    assert Path(target).read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("", "is empty; expected a journal or an execution log"),
        ("{", "neither a journal nor an execution log"),
        ("[1, 2]", "expected object, found array"),
        ('{"summary": {}}', "missing key `executions`"),
        ('{"executions": {}}', "executions: expected array, found object"),
        ('{"executions": [{}]}', "executions.0: missing key `request_id`"),
    ],
)
def test_what_cannot_be_read_is_bad_input(
    run: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        Path("odd.json").write_text(content)
    assert cli.main(["check", "odd.json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: odd.json: ")
    assert message in shown.err


def test_a_folder_a_device_or_a_missing_input_is_bad_input(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "."]) == 2
    assert cli.main(["check", os.devnull]) == 2
    assert cli.main(["check", "run.jsonl", "--config", "nowhere.json"]) == 2
    assert cli.main(["check", "run.jsonl", "--requests", "requests.json"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "is a folder" in errors[0]
    assert errors[1].startswith(f"error: {os.devnull}: is a pipe or a device")
    assert errors[2] == "error: nowhere.json: no such file"
    assert "--requests needs --config" in errors[3]


def test_a_broken_record_is_named_by_its_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("run.jsonl").read_text().splitlines()
    lines[2] = '{"n":1,"t":0.0,"k":"arrived"}'
    Path("run.jsonl").write_text("\n".join(lines) + "\n")
    assert cli.main(["check", "run.jsonl"]) == 2
    assert "run.jsonl:3: not a journal record" in capsys.readouterr().err


def test_a_torn_journal_fails(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.jsonl").write_bytes(Path("run.jsonl").read_bytes()[:-5])
    assert cli.main(["check", "run.jsonl"]) == 1
    assert "its last line is torn" in capsys.readouterr().out


def test_an_older_log_without_its_configuration_says_what_was_not_checked(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = json.loads(Path("log.json").read_text())
    keys = ("request_id", "workflow_id", "node_id", "model_name", "gpu_id", "start_time", "end_time", "switch_time")
    rows = [{key: row[key] for key in keys} for row in log["executions"]]
    Path("old.json").write_text(json.dumps({"summary": {"gpus": [0, 1], "mode": "offline"}, "executions": rows}))
    assert cli.main(["check", "old.json"]) == 0
    assert "note: without --config, all but the first GPU of a window" in capsys.readouterr().out
    rows[1]["gpu_id"] = 1  # its window now reaches beyond the pool, and overlaps
    rows[1].update(start_time=12.0, end_time=17.0)
    Path("old.json").write_text(json.dumps({"summary": {"gpus": [0, 1], "mode": "offline"}, "executions": rows}))
    assert cli.main(["check", "old.json", "-q"]) == 0
    assert cli.main(["check", "old.json", "--config", "config.json", "-q"]) == 1


def test_a_journal_of_another_level_is_held_to_the_common_rules(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("run.jsonl").read_text().replace('"level":"workflow"', '"level":"mine"', 1)
    Path("mine.jsonl").write_text(text)
    assert cli.main(["check", "mine.jsonl"]) == 0
    assert "only those of all levels were checked" in capsys.readouterr().out
    assert cli.main(["check", "mine.jsonl", "--config", "config.json"]) == 2
    Path("mine.jsonl").write_text(text.replace('"devices":[0,1]', '"devices":[0,7]'))
    assert cli.main(["check", "mine.jsonl"]) == 1


def test_several_logs_are_checked_and_one_fault_is_enough(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "run.jsonl", "log.json", "--config", "config.json", "--requests", "requests.json"]) == 0
    assert capsys.readouterr().out.count("PASS") == 2
    wrong = (run / "run.jsonl").read_text().replace('"setup_s":10.0', '"setup_s":9.0')
    (run / "wrong.jsonl").write_text(wrong)
    assert cli.main(["check", "wrong.jsonl", "run.jsonl", "-q"]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["FAIL", "PASS"]
