"""`dovetail replay`: recorded decisions are made again, the first that differs is shown, what is missing is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.workflow import load, run

ROOT = Path(__file__).parents[2]
CONFIG, REQUESTS = (ROOT / "examples" / name for name in ("system_config.yaml", "workflow_requests.yaml"))
Lines = list[dict[str, Any]]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    run(load(CONFIG, REQUESTS, gpus=4), journal=tmp_path / "journal.jsonl")
    return tmp_path / "journal.jsonl"


def change(path: Path, edit: Callable[[Lines], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def started(lines: Lines) -> dict[str, Any]:
    return [line for line in lines if line.get("k") == "started"][3]


def test_all_steps_of_a_run_agree(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(journal)]) == 0
    last = json.loads(journal.read_text().splitlines()[-1])["n"]
    expected = f"PASS: {journal}: workflow run, policy dovetail: {last - 1} steps were decided as they are recorded\n"
    assert capsys.readouterr().out == expected


def test_the_first_decision_that_differs_is_shown(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(journal, lambda lines: started(lines).update(why="because"))
    assert main(["replay", str(journal)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL: ")
    decided, recorded = (line.split(maxsplit=1) for line in out.splitlines()[-2:])
    assert (decided[0], recorded[0]) == ("decided", "recorded")
    one, two = json.loads(decided[1]), json.loads(recorded[1])
    assert two.pop("why") == "because" != one.pop("why")
    assert one == two


def test_a_decision_that_is_not_recorded_is_shown(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(journal, lambda lines: lines.remove(started(lines)))
    assert main(["replay", str(journal), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert '"k":"started"' in found["difference"]["decided"]
    assert found["difference"]["step"] == found["steps"] + 1


def test_what_cannot_have_happened_is_a_difference(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(journal, lambda lines: next(x for x in lines if x.get("k") == "finished").update(job="nobody"))
    assert main(["replay", str(journal)]) == 1
    assert "KeyError" in capsys.readouterr().out


def test_an_interrupted_run_agrees_as_far_as_it_goes(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole[: whole.index(b'{"n":9,')] + b'{"n":9,"t"')
    assert main(["replay", str(journal)]) == 0
    assert "8 steps were decided" in capsys.readouterr().out


def test_an_interrupted_run_may_lack_a_part_of_its_last_step(journal: Path) -> None:
    lines = journal.read_text().splitlines(keepends=True)
    for length in range(1, len(lines), 7):
        journal.write_text("".join(lines[:length]))
        assert main(["replay", str(journal)]) == 0, lines[length - 1]


def test_an_interrupted_run_has_nothing_else_in_its_last_step(journal: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    length = lines.index(started(lines)) + 1
    change(journal, lambda lines: lines.__delitem__(slice(length, None)))
    change(journal, lambda lines: lines[-1].update(why="because"))
    assert main(["replay", str(journal)]) == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("level", "kitchen", "level 'kitchen' is not installed"),
        ("policy", "dovetale", "no workflow policy is called 'dovetale'; did you mean 'dovetail'?"),
        ("options", {"objectives": 3}, "policy dovetail has no option 'objectives'; did you mean 'objective'?"),
    ],
)
def test_what_is_not_installed_is_named(
    journal: Path, capsys: pytest.CaptureFixture[str], key: str, value: Any, message: str
) -> None:
    change(journal, lambda lines: lines[0].update({key: value}))
    assert main(["replay", str(journal)]) == 2
    assert message in capsys.readouterr().err
