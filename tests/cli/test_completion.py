"""Completion, by shells that are typed to: commands, flags, files and values, some of them found at that moment."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dovetail import cli, host

Line = Callable[[str], str]
FOLDER = Path(__file__).parents[2]
# What a key shows of the line so far stands between marks, which bash does not echo as they are.
SETUP = r"""
bind 'set enable-bracketed-paste off' 'set bell-style none' 2>/dev/null
eval "$(dovetail completion bash)"
bind -x '"\C-g": printf "\1%s\2" "$READLINE_LINE"'
printf '\1%s\2' ready
"""


# zsh reads the script as a user installs it: as a file of $fpath.
ZSH = r"""
PS1='> '; setopt no_beep; unset zle_bracketed_paste
fpath=($ZDOTDIR/functions $fpath); autoload -Uz compinit; compinit -u -D
show() { printf '\1%s\2' "$BUFFER" }
zle -N show; bindkey '^G' show; bindkey '^U' kill-whole-line
printf '\1%s\2' ready
"""
COMMANDS = {"bash": ["bash", "--noprofile", "--rcfile", "setup.sh", "-i"], "zsh": ["zsh", "-i"]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a `dovetail` on the path."""
    program = tmp_path / "bin" / "dovetail"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dovetail "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER / "src"))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "dumb")
    return tmp_path


@contextmanager
def typed_to(name: str) -> Iterator[Line]:
    """What a line has become after the tab key."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on the PATH")
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(COMMANDS[name], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)

    def shown() -> str:
        heard = b""
        while not (found := re.search(b"\1(.*?)\2", heard, re.DOTALL)):
            heard += os.read(ours, 4096)
        return found[1].decode()

    def line(words: str) -> str:
        os.write(ours, f"\x15{words}\t\x07".encode())
        return shown()

    try:
        assert shown() == "ready"
        yield line
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


@pytest.fixture
def bash(here: Path) -> Iterator[Line]:
    (here / "setup.sh").write_text(SETUP)
    with typed_to("bash") as line:
        yield line


def write_script(shell: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["completion", shell]) == 0
    path.parent.mkdir(parents=True)
    path.write_text(capsys.readouterr().out)


def test_zsh_completes_commands_flags_values_and_files(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZDOTDIR", str(here / "zsh"))
    write_script("zsh", here / "zsh" / "functions" / "_dovetail", capsys)
    (here / "zsh" / ".zshrc").write_text(ZSH)
    (here / "a_run.jsonl").touch()
    with typed_to("zsh") as zsh:
        assert zsh("dovetail doc") == "dovetail doctor "
        assert zsh("dovetail workflow comp") == "dovetail workflow compare "
        assert zsh("dovetail check --save-r") == "dovetail check --save-report "
        assert zsh("dovetail check a_") == "dovetail check a_run.jsonl "
        assert zsh("dovetail check --format j") == "dovetail check --format json "
        assert zsh("dovetail workflow run --mode=onl") == "dovetail workflow run --mode=online "
        assert zsh("dovetail workflow run --policy base") == "dovetail workflow run --policy baseline "
        assert (
            zsh("dovetail workflow compare --policy srpt base") == "dovetail workflow compare --policy srpt baseline "
        )
        assert zsh("dovetail workflow run --write log exe") == "dovetail workflow run --write log executions "


def test_fish_completes_commands_flags_values_and_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish on the PATH")
    write_script("fish", here / "fish" / "dovetail.fish", capsys)
    (here / "a_run.jsonl").touch()

    def fish(words: str) -> list[str]:
        script = f"source fish/dovetail.fish; complete -C '{words}'"
        command = ["fish", "--no-config", "-c", script]
        told = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "HOME": str(here)}
        )
        assert told.stderr == ""
        return [line.split("\t")[0] for line in told.stdout.splitlines()]

    assert fish("dovetail doc") == ["doctor"]
    assert fish("dovetail check --save-r") == ["--save-report"]
    assert fish("dovetail check a_") == ["a_run.jsonl"]
    assert fish("dovetail workflow run --policy base") == ["baseline"]
    assert fish("dovetail workflow compare --policy srpt base") == ["baseline"]
    assert fish("dovetail workflow run --write log exe") == ["executions"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_verb(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.verb in script


def test_bash_completes_commands_flags_values_and_files(bash: Line, tmp_path: Path) -> None:
    (tmp_path / "my runs").mkdir()
    (tmp_path / "my runs" / "a run.jsonl").touch()
    (tmp_path / "models.yml").write_text("encoder: {}\n")
    (tmp_path / "newton.py").write_text("def solve(x): ...\n")
    assert bash("dovetail doc") == "dovetail doctor "
    assert bash("dovetail workflow comp") == "dovetail workflow compare "
    assert bash("dovetail check --save-r") == "dovetail check --save-report "
    assert bash("dovetail report my") == r"dovetail report my\ runs/"
    assert bash(r"dovetail check my\ runs/") == r"dovetail check my\ runs/a\ run.jsonl "
    assert bash("dovetail check --format j") == "dovetail check --format json "
    assert bash("dovetail workflow run --mode=onl") == "dovetail workflow run --mode=online "
    assert bash("dovetail workflow run --policy base") == "dovetail workflow run --policy baseline "
    assert bash("dovetail workflow compare --policy srpt base") == "dovetail workflow compare --policy srpt baseline "
    assert bash("dovetail pipeline plan -m enc") == "dovetail pipeline plan -m encoder "
    assert bash("dovetail dispatch tune new") == "dovetail dispatch tune newton.py:solve "
    assert bash("dovetail host logs ") == "dovetail host logs "  # no daemon runs, and bash says nothing


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("workflow run --policy ", {"baseline", "dovetail"}),
        ("cluster sweep continuous -p fifo max_min_fairness_p", {"max_min_fairness_perf"}),
        ("cluster policy ", {"fifo"}),
        ("cluster figure times -p ", {"fifo"}),
        ("pipeline plan --method ", {"exact", "equal"}),
        ("dispatch simulate --policy ", {"guided"}),
        ("host simulate --assign ", {"strict"}),
    ],
)
def test_values_are_completed_too(capsys: pytest.CaptureFixture[str], words: str, some: set[str]) -> None:
    assert some <= names(capsys, words)


def names(capsys: pytest.CaptureFixture[str], words: str) -> set[str]:
    assert cli.main(["__complete", *words.split(" ")]) == 0
    return {
        line.split("\t")[0] for line in capsys.readouterr().out.splitlines() if line and not line.startswith("\x1f")
    }


def test_jobs_of_a_journal_are_completed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names(capsys, "host explain ") == set()
    host.simulate(host.load([{"id": name, "threads": 1, "work": 5} for name in "abc"], cores=2), journal="run.jsonl")
    assert names(capsys, "workflow explain ") == {"a", "b", "c"}
    assert names(capsys, "cluster explain --journal run.jsonl ") == {"a", "b", "c"}


def test_a_service_is_asked_where_the_command_would_look(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Service:
        def nodes(self) -> list[object]:
            return []

    def connect(*place: object) -> Service:
        asked.append(place)
        return Service()

    monkeypatch.setattr("dovetail.cluster.connect", connect)
    assert names(capsys, "cluster drain --state live ") == set()
    assert asked == [(Path("live"), None)]


def test_a_program_is_completed_by_its_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with host.up(tmp_path / "state", control_groups=False) as client:
        try:
            (number,) = client.submit("true", name="quick")
            client.wait(number)
            (later,) = client.submit("sleep", "1000", name="slow")
            assert names(capsys, f"host pause --state {tmp_path}/state ") >= {later}
        finally:
            client.down(cancel=True)
