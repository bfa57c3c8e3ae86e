"""A recorded run of any level as Python users meet it: what can be asked of it, and what they are told if it cannot."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import polars as pl
import pytest

import dovetail
from dovetail.core.events import Arrived, Start
from dovetail.core.journal import Reader
from dovetail.core.results.run import JournalFile, Run
from tests.journals.conftest import LEVELS

Journals = dict[str, Path]


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_of_every_level_answers(journals: Journals, level: str, tmp_path: Path) -> None:
    run = dovetail.read_journal(str(journals[level]))
    assert run.header.level == level
    assert run.metrics["makespan_s"] > 0
    assert run.check().valid
    assert run.replay().difference is None
    assert run.header.policy in repr(run)
    assert run.gap is None or run.gap > -1e-6
    jobs, tasks = run.frame(), run.frame("tasks")
    events = [event for _, _, event in Reader(run.journal)]
    assert list(jobs["job"]) == [event.job for event in events if isinstance(event, Arrived)]
    assert len(tasks) == sum(isinstance(event, Start) for event in events)
    assert (tasks["ended_s"] >= tasks["started_s"]).all()
    assert set(jobs["state"]) == {"completed"}
    told = str(run.explain(jobs["job"][0])).lower()
    assert all(word.lower() in told for word in jobs["job"][0].split())
    page = run.report(tmp_path / "pages" / "run.html")
    assert page.read_text().count('class="run"') == 1
    kept = run.save(tmp_path / "kept.jsonl")
    assert kept.read_bytes() == run.journal.read_bytes()
    both = dovetail.write_report([run, kept], tmp_path / "both.html")
    assert both.read_text().count('class="run"') == 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", ["schedule", "responses"])
def test_a_picture_is_svg_that_stands_alone(journals: Journals, level: str, what: str, tmp_path: Path) -> None:
    picture = dovetail.read_journal(journals[level]).plot(what)  # type: ignore[arg-type]
    drawn = ElementTree.fromstring(picture.svg)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}rect")) > 2
    assert "var(--" not in picture.svg
    assert picture.save(tmp_path / "a.svg").read_text() == picture.svg == picture._repr_svg_()
    with pytest.raises(dovetail.InputError, match=r"a.png: expected a name that ends in .svg"):
        picture.save(tmp_path / "a.png")


def test_every_stretch_of_work_has_its_bar(journals: Journals) -> None:
    run = dovetail.read_journal(journals["workflow"])
    titles = ElementTree.fromstring(run.plot().svg).findall(".//{*}rect/{*}title")
    tasks = run.frame("tasks")
    assert sum(len(devices) > 0 for devices in tasks["devices"]) <= len(titles)
    named = {f"{job}/{task}" for job, task in zip(tasks.job, tasks.task, strict=True)}
    assert {(title.text or "").split(" (")[0] for title in titles} == named


def test_an_interrupted_run_answers_as_far_as_it_goes(journals: Journals, tmp_path: Path) -> None:
    whole = journals["workflow"].read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: len(whole) // 2])
    run = dovetail.read_journal(cut)
    assert 0 <= run.metrics["completed"] < dovetail.read_journal(journals["workflow"]).metrics["completed"]
    assert "unfinished" in set(run.frame()["state"])
    assert run.check().faults_by_code == {"end": 1}


def test_what_cannot_be_done_is_told(journals: Journals, tmp_path: Path) -> None:
    run = dovetail.read_journal(journals["workflow"])
    for wrong in (None, 7, ""):
        with pytest.raises(dovetail.InputError, match="journal: expected a path, found"):
            dovetail.read_journal(wrong)  # type: ignore[arg-type]
    with pytest.raises(dovetail.InputError, match="no such file"):
        dovetail.read_journal(tmp_path / "none.jsonl")
    with pytest.raises(dovetail.InputError, match="expected jobs or tasks"):
        run.frame("task")  # type: ignore[arg-type]
    with pytest.raises(dovetail.InputError, match="expected schedule, responses or jobs"):
        run.plot("gantt")  # type: ignore[arg-type]
    with pytest.raises(dovetail.InputError, match="is the same file as the input"):
        run.report(run.journal)
    with pytest.raises(dovetail.InputError, match="did you mean"):
        run.explain("req_0011")
    with pytest.raises(dovetail.InputError, match="at least one run"):
        dovetail.write_report([], tmp_path / "page.html")
    with pytest.raises(dovetail.InputError, match="not checked against --prices"):
        run.check(prices="prices.csv")
    unrecorded = Run(JournalFile(False), {"makespan_s": 2.0, "bound_makespan_s": 1.0})
    assert (unrecorded.gap, repr(unrecorded)) == (1.0, "<Run makespan 2 s (100.0 % above the bound)>")
    with pytest.raises(dovetail.InputError, match="was not recorded"):
        unrecorded.check()


def test_a_temporary_journal_goes_with_its_run(journals: Journals) -> None:
    file = JournalFile(None)
    assert file.path is not None
    file.path.write_bytes(journals["host"].read_bytes())
    run, folder = Run(file), file.path.parent
    del file
    gc.collect()
    assert run.check().valid
    del run
    gc.collect()
    assert not folder.exists()


def test_frames_are_of_the_library_that_is_there(journals: Journals, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dovetail.read_journal(journals["host"])
    assert isinstance(run.frame(), pd.DataFrame)
    monkeypatch.delitem(sys.modules, "pandas")
    found = run.frame()
    assert isinstance(found, pl.DataFrame)
    monkeypatch.setattr("dovetail.core.results.frames.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "polars")
    columns = run.frame()
    assert {name: list(values) for name, values in found.to_dict(as_series=False).items()} == columns
