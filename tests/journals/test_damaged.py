"""Damaged journals: a fault with its place, or an error with file and line, and never an accident of ours."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import pytest

from dovetail.cli import main
from dovetail.core.check import check_journal
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.core.explain import explain, sentences
from dovetail.core.findings import Findings
from dovetail.core.journal import Reader
from dovetail.core.metrics import Metrics
from dovetail.report import perfetto
from dovetail.report.data.collect import collect
from dovetail.report.html import page
from dovetail.report.static import draw
from dovetail.testing.damage import damaged
from tests.journals.conftest import LEVELS

Journals = dict[str, Path]


def _check(path: Path) -> None:
    check_journal(Reader(path), Findings(), exact=False)


def _measure(path: Path) -> None:
    reader = Reader(path)
    metrics = Metrics(reader.header.pool)
    reader.feed(metrics)
    metrics.figures()


def _explain(path: Path) -> None:
    for job in [event.job for _, _, event in Reader(path) if isinstance(event, Arrived)][:2]:
        for story in explain(Reader(path), job):
            sentences(story)


def _page(path: Path) -> None:
    page([collect(path)])


def _trace(path: Path) -> None:
    perfetto.write(path, io.BytesIO())


@pytest.mark.parametrize("level", [*LEVELS, "live", "loose"])
def test_a_damaged_journal_is_read_or_refused(journals: Journals, level: str, tmp_path: Path) -> None:
    whole, path = journals[level].read_bytes(), tmp_path / "damaged.jsonl"
    read = refused = 0
    for seed in range(60):
        path.write_bytes(damaged(whole, Random(f"{level} {seed}"), places=1 + seed % 3))
        for look in (_check, _measure, _explain, _page, _trace):
            try:
                look(path)
                read += 1
            except InputError:
                refused += 1
    assert read > 30
    assert refused > 30


@pytest.mark.parametrize("level", ["live", "loose"])
def test_the_commands_say_what_is_wrong(
    journals: Journals, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, path = journals[level].read_bytes(), tmp_path / "damaged.jsonl"
    seen = set()
    for seed in range(40):
        path.write_bytes(damaged(whole, Random(f"{level} {seed}"), places=1 + seed % 3))
        capsys.readouterr()
        code = main(["check", str(path)])
        out, err = capsys.readouterr()
        seen.add(code)
        assert "internal error" not in err
        assert "PASS" in out or "FAIL" in out or "damaged.jsonl" in err
        assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) in (0, 2)
        assert "internal error" not in capsys.readouterr().err
    assert seen == {0, 1, 2}


def test_pictures_of_damaged_journals(journals: Journals, tmp_path: Path) -> None:
    whole, path = journals["live"].read_bytes(), tmp_path / "damaged.jsonl"
    drawn = 0
    for seed in range(30):
        path.write_bytes(damaged(whole, Random(f"picture {seed}"), places=1 + seed % 3))
        try:
            story = collect(path)
        except InputError:
            continue
        assert draw([story], "svg")
        drawn += 1
    assert drawn > 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"id":1,', '"id":5,', "not numbered from 0"),
        ('"id":1,', '"id":0,', "not numbered from 0"),
        ('"id":1,"type":"gpu"', '"id":1,"type":"tpu"', "no device type 'tpu'"),
        ('"error_s":0.05', '"error_s":-1.0', "error of the clock"),
        ('"kind":"x"', '"kind":"x","width":-1', "negative width"),
        ('[["a","b"]]', '[["a","b"],["b","a"]]', "cycle"),
    ],
)
def test_a_header_that_nothing_can_be_read_with_is_refused(
    journals: Journals, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "damaged.jsonl"
    text = journals["live"].read_text()
    assert old in text.splitlines()[0]
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"damaged\.jsonl:1: not a usable header: .*{message}"):
        Reader(path)
