"""The level's checker: faults planted into a clean journal are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.dispatch.check import check_journal
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.recording import record_simulated
from dovetail.dispatch.simulate import SimDevice, simulate

Lines = list[dict[str, Any]]
DEVICES = [
    SimDevice("fast", Curve.linear(0.004, 200_000, 1 << 20), size=4000),
    SimDevice("slow", Curve.linear(0.001, 30_000, 1 << 20), size=1000),
]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    run = simulate(DEVICES, 30_000, "fixed")
    record_simulated(path, DEVICES, 30_000, "fixed", run.rows, run.makespan_s)
    assert check_journal(path).valid
    return path


def changed(path: Path, change: Callable[[Lines], Any]) -> Path:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made = change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in (made if isinstance(made, list) else lines)))
    return path


def arrival(lines: Lines, number: int) -> dict[str, Any]:
    return [line for line in lines if line.get("k") == "arrived"][number]


def without(lines: Lines, number: int) -> Lines:
    """A journal without one chunk, whose summary has been put right."""
    work = arrival(lines, number)["job"]
    lines[-1]["summary"] = {}
    return [line for line in lines if line.get("job") != work]


def move(lines: Lines, number: int, by: int) -> None:
    facts = arrival(lines, number)["facts"]
    facts["start"], facts["stop"] = facts["start"] + by, facts["stop"] + by


def one_device(lines: Lines) -> None:
    for line in lines:
        if line.get("k") == "started":
            line["devices"] = [0]


FAULTS: list[tuple[str, str, Callable[[Lines], Any]]] = [
    ("gap", "items 0 to 4000 were not done", lambda lines: without(lines, 0)),
    ("gap", "were not done", lambda lines: without(lines, 3)),
    ("double", "were done by", lambda lines: move(lines, 2, -1)),
    ("gap", "were not done", lambda lines: move(lines, 2, -1)),
    ("double", "were done by", lambda lines: arrival(lines, 1)["facts"].update(stop=30_000)),
    ("range", "expected a range within 0 to 30000", lambda lines: move(lines, 0, -1)),
    ("range", "expected a range within 0 to 30000", lambda lines: move(lines, 0, 30_000)),
    ("range", "expected start and stop", lambda lines: arrival(lines, 0).pop("facts")),
    ("range", "expected start and stop", lambda lines: arrival(lines, 0)["facts"].update(stop="all")),
    ("result", "are called missing", lambda lines: lines[0]["facts"].update(missing=[[10, 20]])),
    ("gap", "items 30000 to 30001", lambda lines: lines[0]["facts"].update(items=30_001)),
    ("bound", "expected 30000 items over", lambda lines: lines[0]["facts"].update(bound_makespan_s=0.01)),
    ("bound", "expected at least", lambda lines: lines[0]["facts"].update(peaks=[1000.0], bound_makespan_s=30.0)),
    ("overlap", "", one_device),
    ("summary", "", lambda lines: lines[-1]["summary"].update(completed=3)),
    ("end", "did not end", lambda lines: lines[:-1]),
]


@pytest.mark.parametrize(("code", "text", "change"), FAULTS)
def test_planted_faults_are_found(journal: Path, code: str, text: str, change: Callable[[Lines], Any]) -> None:
    report = check_journal(changed(journal, change))
    assert not report.valid
    assert any(fault.code == code and text in fault.message for fault in report.faults), report.faults


def test_a_missing_range_that_is_told_is_a_note(journal: Path) -> None:
    def lose(lines: Lines) -> Lines:
        facts = arrival(lines, 0)["facts"]
        lines[0]["facts"]["missing"] = [[facts["start"], facts["stop"]]]
        lines[0]["facts"].pop("bound_makespan_s")
        return without(lines, 0)

    report = check_journal(changed(journal, lose))
    assert report.valid, report.faults
    assert "0 to 4000" in report.notes[0]


def test_a_bound_that_was_beaten_is_a_fault(journal: Path) -> None:
    def fast(lines: Lines) -> None:
        lines[0]["facts"].update(
            peaks=[1000.0],
            bound_makespan_s=30.0,
        )

    assert check_journal(changed(journal, fast)).faults_by_code == {"bound": 1}


def test_the_command_says_what_is_wrong(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(journal)]) == 0
    assert "PASS" in capsys.readouterr().out
    assert main(["check", str(changed(journal, lambda lines: without(lines, 0)))]) == 1
    assert "items that no chunk did" in capsys.readouterr().out


def test_facts_of_another_form_are_an_error_with_their_place(journal: Path) -> None:
    changed(journal, lambda lines: lines[0]["facts"].update(items="many"))
    with pytest.raises(InputError, match=r"run.jsonl:1: facts.items: expected int"):
        check_journal(journal)
