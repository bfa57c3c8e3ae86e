"""A level from another package: its words come with its journals, its rules are found by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.core.events import Arrived, Complete, Finished, Start
from dovetail.core.journal import Header, Writer
from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraphRecord
from dovetail.core.words import Claim, Words

CHECK = """
from dovetail.core.check import check_journal as check_all
from dovetail.core.events import Start
from dovetail.core.findings import Findings, Report
from dovetail.core.journal import open_journal
from dovetail.core.metrics import recount

CODES = {"siesta": "a dish that was begun during the siesta"}


class Siesta:
    def __init__(self, faults):
        self._faults = faults

    def step(self, n, t, events):
        for event in events:
            if isinstance(event, Start) and 13.0 <= t < 15.0:
                self._faults.add("siesta", event.job, f"begun at {t}")


def check_journal(path):
    faults = Findings()
    figures = check_all(open_journal(path), faults, [Siesta(faults)])
    return Report.of(str(path), "journal", faults, [], recount(figures))
"""


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that an entry point names as the level `kitchen`."""
    package, info = tmp_path / "bistro", tmp_path / "bistro-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("WORDS = None\n")
    (package / "check.py").write_text(CHECK)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bistro\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dovetail.levels]\nkitchen = bistro\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "bistro"]:
        del sys.modules[name]


def journal(path: Path, begin_s: float) -> Path:
    words = Words(
        job="dish",
        jobs="dishes",
        task="course",
        tasks="courses",
        device="oven",
        devices="ovens",
        claims=(Claim("stars", "stars of the guide", "count"),),
    )
    graph = TaskGraphRecord("menu", (Task("roast", "heat"),))
    header = Header(level="kitchen", policy="chef", pool=Pool.parse("1", {}), graphs=(graph,), words=words)
    with Writer(path, header) as writer:
        start = Start("duck", "roast", "heat", (0,), begin_s, 2.0, "it is lunch time")
        writer.step(1, begin_s, [Arrived("duck", "menu", (2.0,)), start])
        writer.step(2, begin_s + 2.0, [Finished("duck", "roast"), Complete("duck")])
        writer.end(3, begin_s + 2.0, {"stars": 3})
    return path


def test_its_rules_are_found_by_its_name(kitchen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(journal(kitchen / "run.jsonl", 11.0))]) == 0
    assert "1 of 1 completed, 0 rejected, 1 courses run" in capsys.readouterr().out
    assert main(["check", str(journal(kitchen / "run.jsonl", 13.5))]) == 1
    out = capsys.readouterr().out
    assert "a dish that was begun during the siesta" in out
    assert "begun at 13.5" in out
    assert main(["check", str(kitchen / "run.jsonl"), "--config", str(kitchen / "run.jsonl")]) == 2
    assert "a kitchen run is not checked against --config" in capsys.readouterr().err


def test_its_words_and_claims_are_on_the_page(kitchen: Path) -> None:
    page = kitchen / "page.html"
    assert main(["report", str(journal(kitchen / "run.jsonl", 11.0)), "--out", str(page)]) == 0
    html = page.read_text()
    for expected in ("Dishes completed", "Find a dish", "stars of the guide", ">oven 0<"):
        assert expected in html, expected
