"""`dovetail report` as a command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclopts import App

from dovetail import cli
from dovetail.cli.report import report
from dovetail.core.errors import InputError, MissingExtraError
from dovetail.core.journal import Clock
from dovetail.report import html, show
from dovetail.report.data.collect import collect
from dovetail.report.data.pieces import Finest

Write = Callable[..., Path]


def test_the_page_lies_beside_the_journal(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    before = path.read_bytes()
    assert report(path) == 0
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.html", "run.jsonl"]
    assert path.read_bytes() == before
    shown = capsys.readouterr().out
    assert f"page: {path.with_suffix('.html')}" in shown
    assert "50 %" in shown


def test_without_a_name_the_newest_journal_is_drawn(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report"]) == 2
    assert "no journal *.jsonl in this folder: name one" in capsys.readouterr().err
    for age, name in ((0, "new_journal.jsonl"), (9, "old_journal.jsonl")):
        path = write(name.removesuffix(".jsonl")).rename(tmp_path / name)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert cli.main(["report"]) == 0
    assert [path.name for path in tmp_path.glob("*.html")] == ["new_journal.html"]
    assert capsys.readouterr().out.startswith("journal: new_journal.jsonl\n")
    os.utime(write("newer").rename(tmp_path / "newer.jsonl"), (1e9 + 1, 1e9 + 1))  # a journal by its content
    (tmp_path / "requests.jsonl").write_text('{"request_id": "a"}\n')
    assert cli.main(["report"]) == 0
    assert capsys.readouterr().out.startswith("journal: newer.jsonl\n")
    assert cli.main(["report", "newer.jsonl"]) == 0
    assert "journal: " not in capsys.readouterr().out


def test_everything_at_once_as_json(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journals = [write("a", policy="fifo"), write("b", policy="least job/$")]
    out = tmp_path / "deep" / "er" / "pages.html"
    assert report(*journals, out=out, svg=True, perfetto=True, format="json") == 0
    told = json.loads(capsys.readouterr().out)
    names = ["pages.html", "pages.svg", "pages.fifo.svg", "pages.least_job_.svg"]
    names += ["pages.fifo.trace.json", "pages.least_job_.trace.json"]
    assert [Path(w["path"]).name for w in told["written"]] == names
    assert sorted(p.name for p in out.parent.iterdir()) == sorted(names)
    assert [run["bound_makespan_s"] for run in told["runs"]] == [6.0, 6.0]
    assert told["runs"][0]["figures"]["makespan_s"] == 9.0


def test_a_picture_alone_and_a_folder(write: Write, tmp_path: Path) -> None:
    path = write()
    report(path, out=tmp_path / "only.svg")
    assert not list(tmp_path.glob("*.html"))
    (tmp_path / "folder").mkdir()
    report(path, out=tmp_path / "folder")
    assert (tmp_path / "folder" / "run.html").is_file()


def test_only_a_page_has_its_bars_packed(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []

    def counted(self: Finest) -> None:
        packed.append(1)

    monkeypatch.setattr(Finest, "_pack", counted)
    monkeypatch.setattr(collect, "__kwdefaults__", {**(collect.__kwdefaults__ or {}), "max_bars": 2})
    path = write()
    report(path, out=tmp_path / "only.svg")
    monkeypatch.setattr(show, "_BARS", 2)
    assert "</svg>" in show.picture_of(path, "schedule")
    assert not packed
    report(path, out=tmp_path, svg=True)
    assert packed


def test_runs_with_the_same_name_and_policy_get_files_of_their_own(write: Write, tmp_path: Path) -> None:
    path = write()
    report(path, path, out=tmp_path / "x.html", perfetto=True)
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["x.fifo_1_.trace.json", "x.fifo_2_.trace.json"]


def test_runs_of_one_policy_are_told_apart_by_its_options(write: Write, tmp_path: Path) -> None:
    both = [write("000001", options={"preload": True, "rules": {"round_s": 360}}), write("000002")]
    page = html.page([collect(path) for path in both])
    assert "fifo preload=true</" in page
    assert "fifo (1)" not in page
    assert "rules=" not in page


def test_the_page_of_a_services_journal_says_what_it_is(write: Write) -> None:
    path = write("000001", options={"preload": True}, clock=Clock("monotonic"))
    page = html.page([collect(path)])
    assert "<h1>fifo, journal 000001</h1>" in page
    assert "policy <b>fifo preload=true</b>" in page
    assert "monotonic clock" in page
    assert "wrong by at most" not in page


def test_an_interrupted_journal_gives_a_page(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(summary=None)
    path.write_bytes(path.read_bytes()[:-7])
    assert report(path) == 0
    assert "This run did not end" in path.with_suffix(".html").read_text()
    assert "did not end" in capsys.readouterr().out


def test_nothing_is_written_on_bad_input(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write()
    other = tmp_path / "run.html"
    other.write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="is the same file as the input"):
        report(other)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(InputError, match=r"no journal \*.jsonl in this folder: name one"):
        report()
    with pytest.raises(InputError, match=r"ends in \.html"):
        report(path, out=tmp_path / "page.txt")
    with pytest.raises(InputError, match="found a folder"):
        report(tmp_path)
    with pytest.raises(InputError, match="not a Dovetail journal"):
        report(Path(__file__))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError):
        report(path, out=tmp_path / "new.html", png=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["empty", "run.html", "run.jsonl"]
    assert other.read_bytes() == path.read_bytes()


def test_the_command_line(write: Write, tmp_path: Path) -> None:
    app = App(name="report", result_action="return_value")
    app.default(report)
    first, second = write("a"), write("b")
    words = [str(first), "--out", str(tmp_path / "c.html"), str(second), "--from", "1", "--to", "5"]
    assert app(words, exit_on_error=False) == 0
    assert "1 s to 5 s" in (tmp_path / "c.html").read_text()


def test_a_run_with_a_node_that_needs_no_gpu_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {
        name: {"memory_gb": 8, "gpus_required": n, "load_time_seconds": n} for name, n in (("cpu", 0), ("llm", 1))
    }
    nodes = [{"id": "read", "model": "cpu"}, {"id": "answer", "model": "llm"}]
    flow = {"nodes": nodes, "edges": [{"from": "read", "to": "answer"}]}
    asked = {"request_id": "r1", "workflow_id": "chat", "node_execution_times": {"read": 2.0, "answer": 4.0}}
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"models": models, "workflows": {"chat": flow}}))
    Path("requests.json").write_text(json.dumps({"requests": [asked]}))
    files = ["--config", "config.json", "--requests", "requests.json"]
    assert cli.main(["workflow", "run", "--gpus", "1", *files, "--policy", "baseline", "-q"]) == 0
    assert cli.main(["report", "baseline_journal.jsonl", "--svg", "--perfetto"]) == 0
    trace = json.loads(Path("baseline_journal.trace.json").read_text())
    slices = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert slices == ["load llm", "llm: r1/answer"]
