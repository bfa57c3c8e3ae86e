"""The checker of cluster journals: planted faults are found, each by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cluster.check import CODES, check_journal
from dovetail.cluster.inputs.choices import JournalMode
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.rounding.records import KEPT
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from tests.cluster.conftest import Make, Table

Lines = list[dict[str, Any]]


def _lines(make_setup: Make, tmp_path: Path, mode: JournalMode) -> Lines:
    jobs = [Job(id=i, model="AB"[i % 2], steps=900, arrival_s=40.0 * i) for i in range(6)]
    policy = Table({i: [0.4, 0.4] for i in range(6)}, {(0, 1): [0.5, 0.0]})
    run(make_setup(jobs), policy, name="table", journal=tmp_path / "run.jsonl", mode=mode)
    return [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]


@pytest.fixture
def lines(make_setup: Make, tmp_path: Path) -> Lines:
    return _lines(make_setup, tmp_path, "changes")


@pytest.fixture
def brief(make_setup: Make, tmp_path: Path) -> Lines:
    return _lines(make_setup, tmp_path, "summary")


def _codes(lines: Lines, tmp_path: Path) -> set[str]:
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return set(check_journal(path).faults_by_code)


def _first(lines: Lines, of: str) -> dict[str, Any]:
    columns: dict[str, Any] = next(line for line in lines if line.get("of") == of)["columns"]
    return columns


def test_the_run_itself_is_valid(lines: Lines, tmp_path: Path) -> None:
    assert _codes(lines, tmp_path) == set()


def _late(lines: Lines) -> None:
    lines[1]["t"] = 1e9


def _unknown(lines: Lines) -> None:
    _first(lines, "started")["id"][0] = 77


def _elsewhere(lines: Lines) -> None:
    _first(lines, "started")["devices"][0] = [99]


def _wide(lines: Lines) -> None:
    _first(lines, "started")["devices"][0] = [0, 1]


def _together(lines: Lines) -> None:
    started = [line["columns"] for line in lines if line.get("of") == "started"]
    started[1]["devices"][0] = started[0]["devices"][0]
    started[1]["on"][0] = started[0]["on"][0]


def _again(lines: Lines) -> None:
    lines.insert(3, next(line for line in lines if line.get("of") == "started"))


def _fast(lines: Lines) -> None:
    _first(lines, "stopped")["steps"][0] += 5.0


def _moved(lines: Lines) -> None:
    _first(lines, "stopped")["from_s"][0] += 5.0


def _early(lines: Lines) -> None:
    _first(lines, "arrived")["steps"][0] += 100.0


def _lost(lines: Lines) -> None:
    lines.remove(next(line for line in lines if line.get("of") == "completed"))


def _groundless(lines: Lines) -> None:
    _first(lines, "started")["why"][0] = 9


def _stayed(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["setup_s"] = [0.0] * len(columns["id"])
    columns["why"] = [KEPT] * len(columns["id"])


def _endless(lines: Lines) -> None:
    del lines[-1]


def _boast(lines: Lines) -> None:
    lines[-1]["summary"]["avg_jct_s"] *= 0.9


def _impossible(lines: Lines) -> None:
    lines[0]["facts"]["bound_makespan_s"] = 1e9


def _too_good(lines: Lines) -> None:
    lines[0]["facts"]["fastest"] = [1e-3] * 4


def _another(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["kind"] = [1] * len(columns["id"])  # kind 1 is model B, and the first job is of model A


def _widened(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["kind"] = [2] * len(columns["id"])  # model A two wide, on one device


def _revived(lines: Lines) -> None:
    completed = next(i for i, line in enumerate(lines) if line.get("of") == "completed")
    lines.insert(completed + 1, lines[completed])


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (_late, "time"),
        (_unknown, "arrival"),
        (_elsewhere, "device"),
        (_wide, "width"),
        (_together, "overlap"),
        (_again, "twice"),
        (_fast, "steps"),
        (_moved, "finish"),
        (_early, "missing"),
        (_lost, "unclosed"),
        (_groundless, "reason"),
        (_stayed, "restart"),
        (_endless, "end"),
        (_boast, "summary"),
        (_impossible, "bound"),
        (_too_good, "bound"),
        (_another, "kind"),
        (_widened, "width"),
        (_revived, "closed"),
    ],
)
def test_planted_faults_are_found(lines: Lines, tmp_path: Path, plant: Callable[[Lines], None], code: str) -> None:
    plant(lines)
    assert code in _codes(lines, tmp_path)
    assert code in CODES


def test_rows_without_a_column_are_bad_input(lines: Lines, tmp_path: Path) -> None:
    del _first(lines, "started")["devices"]
    with pytest.raises(InputError, match=r"changed\.jsonl: step 1 at 0\.0 s: rows that cannot be checked"):
        _codes(lines, tmp_path)


def test_a_summary_is_checked_as_far_as_it_goes(brief: Lines, tmp_path: Path) -> None:
    assert _codes(brief, tmp_path) == set()
    assert not any(line.get("of") == "started" for line in brief)


def _forgotten(lines: Lines) -> None:
    lines[:] = [line for line in lines if line.get("of") != "completed"]


def _sooner(lines: Lines) -> None:
    _first(lines, "completed")["at_s"][0] -= 1.0


@pytest.mark.parametrize(("spoil", "code"), [(_boast, "summary"), (_forgotten, "unclosed"), (_sooner, "finish")])
def test_a_fault_planted_in_a_summary_is_found(
    brief: Lines, tmp_path: Path, spoil: Callable[[Lines], None], code: str
) -> None:
    spoil(brief)
    assert code in _codes(brief, tmp_path)
