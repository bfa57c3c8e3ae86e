"""`dovetail workflow explain`: an answer for every request that arrived, from the newest journal unless named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail import cli

CONFIG: dict[str, Any] = {
    "models": {"llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10}},
    "workflows": {"one": {"nodes": [{"id": "a", "model": "llm"}]}},
}
REQUESTS = {
    "requests": [
        {"request_id": "r1", "workflow_id": "one", "node_execution_times": {"a": 4.0}},
        {"request_id": "r2", "workflow_id": "two", "node_execution_times": {"a": 4.0}},
    ]
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with a request that could not run."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps(REQUESTS))
    monkeypatch.chdir(tmp_path)
    files = ["--config", "config.json", "--requests", "requests.json"]
    assert cli.main(["workflow", "run", "--gpus", "1", *files, "--on-error", "reject", "-q"]) == 3
    capsys.readouterr()


@pytest.mark.usefixtures("run")
def test_a_request_that_ran_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["workflow", "explain", "r1"]) == 0
    assert "It finished at 14.00 s." in capsys.readouterr().out


@pytest.mark.usefixtures("run")
def test_a_request_rejected_on_arrival_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["workflow", "explain", "r2"]) == 0
    assert "r2 arrived at 0.00 s and was rejected on arrival: " in capsys.readouterr().out
    assert cli.main(["workflow", "explain", "r2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "rejected"


def test_without_a_journal_there_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["workflow", "explain", "r1"]) == 2
    assert "no *_journal.jsonl in this folder" in capsys.readouterr().err
    assert cli.main(["workflow", "explain", "r1", "--journal", "x.jsonl"]) == 2
    assert "x.jsonl: no such file" in capsys.readouterr().err
    assert cli.main(["workflow", "explain", "r1", "--journal", "."]) == 2
    assert "expected a journal, found a folder" in capsys.readouterr().err
