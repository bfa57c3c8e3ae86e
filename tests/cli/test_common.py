"""Output as table or JSON, progress, and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from dovetail.cli.common import atomic_write, print_json, print_table, progress
from dovetail.core.errors import InputError
from tests.waiting import until


class Row(msgspec.Struct):
    name: str
    makespan_s: float


def test_json_of_structs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [Row("fcfs", 1.5)]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"rows": [{"name": "fcfs", "makespan_s": 1.5}]}
    assert shown.startswith('{\n  "rows"')


def test_a_piped_table_is_plain_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[bold]x[/bold] :smile: " * 40
    print_table(["name", "why"], [["a", long.strip()]], title="Runs")
    title, _, _, line = capsys.readouterr().out.splitlines()
    assert title == "Runs"
    assert line.split(maxsplit=1) == ["a", long.strip()]


def test_a_terminal_gets_its_width_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setenv("COLUMNS", "80")
    print_table(["why"], [["x" * 100]])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("x") == 100


def test_numbers_are_aligned_right_and_words_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["n", "word", "mixed"], [[1, "a", 1], [None, "abc", "x"], [100, "b", True]])
    assert capsys.readouterr().out.splitlines()[2:] == ["   1   a      1", "   -   abc    x", " 100   b      yes"]


def test_progress_can_be_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("simulating", total=2, lines_s=None) as done:
        done(1)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("simulating", total=2) as done:
        done(1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "simulating" in shown.err
    assert "50%" in shown.err


@pytest.mark.parametrize("content", ["grün", "grün".encode()])
def test_a_write_makes_folders_and_leaves_nothing_else(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "a" / "b.txt"
    atomic_write(path, "old")
    atomic_write(path, content)
    assert path.read_text(encoding="utf-8") == "grün"
    assert list(path.parent.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", "")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    atomic_write(Path(os.devnull), "gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["folder", "file/below", "x" * 300])
def test_what_cannot_be_written_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="cannot be written"):
        atomic_write(tmp_path / name, "new")
    assert (tmp_path / "file").read_text() == "kept"
    assert {p.name for p in tmp_path.iterdir()} == {"folder", "file"}


def test_without_a_terminal_progress_is_told_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    told = ""

    def seen() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return "running: 3 of 5 done\n" in told

    with progress("running", 5, lines_s=0.01) as done:
        done(3)
        until(seen)
        done(4)
        until(lambda: seen() and "running: 4 of 5 done\n" in told)
    assert len(set(told.splitlines())) == len(told.splitlines()), "what has not changed is told once"


def test_many_rows_are_printed_at_once_also_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.table", None)  # which takes milliseconds for each
    print_table(["n", "why"], [[n, "x" * 300] for n in range(1000)])
    assert capsys.readouterr().out.splitlines()[-1] == f" 999   {'x' * 300}"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_cell_cannot_command_the_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "dumb")
    print_table(["name"], [["a\x1b]0;title\x07b\u202ec"]])
    assert capsys.readouterr().out.splitlines()[-1] == r" a\x1b]0;title\x07b\u202ec"


@pytest.mark.parametrize("repeated", [1, 2])
@pytest.mark.parametrize("term", ["xterm", "dumb"])  # a dumb one has a width, too
@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_no_number_is_broken_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, term: str, repeated: int
) -> None:
    """A row is a few lines where its columns find no room; headings are broken before that."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    names = ["program", "first_run_s", "waiting_s", "mean_turnaround_s", "resizes", "status"]
    rows = [["a", 0.123456, 12345.6, 273.765, 5, "completed"], ["b", 1.0, 0.5, 318.744, 12, "given up"]]
    print_table(names * repeated, [row * repeated for row in rows])
    told = capsys.readouterr().out
    for word in ("0.123456", "12345.6", "273.765", "318.744", "12", "completed", "given"):
        assert re.search(rf"(^|\s){re.escape(word)}(\s|$)", re.sub(r"\x1b\[[\d;]*m", "", told), re.MULTILINE), word
    assert all(len(line) <= columns for line in re.sub(r"\x1b\[[\d;]*m", "", told).splitlines())
