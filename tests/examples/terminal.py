"""The blocks of a page, and a terminal that runs them as a user would type them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from dovetail import cli

ROOT = Path(__file__).parents[2]
_SERVICES = (["workflow", "serve"], ["cluster", "serve"], ["pipeline", "link-test", "serve"])
_READY = re.compile(r"token is in|[Ll]istening")


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str

    @property
    def runs(self) -> bool:
        return self.language in ("bash", "python")


def blocks(path: Path) -> list[Block]:
    """The fenced blocks, also those in lists, without their indent. A fence that is not closed, or not read, fails."""
    text = path.read_text()
    found = re.finditer(r"^( *)(```+|~~~+) *(\w*)[^\n]*\n(.*?)^\1\2 *$", text, re.DOTALL | re.MULTILINE)
    read = [
        Block(path.name, text[: match.start()].count("\n") + 2, match[3], textwrap.dedent(match[4])) for match in found
    ]
    assert len(re.findall(r"^\s*(?:>\s*)*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(read), path
    return read


def typed(text: str) -> list[str]:
    """The lines of a block as a shell takes them: continued ones and here-documents whole, without comments."""
    found: list[str] = []
    rest = text.replace("\\\n", " ").splitlines()
    while rest:
        line = rest.pop(0)
        if end := re.search(r"<<'(\w+)'", line):
            until = rest.index(end[1]) + 1
            line, rest = "\n".join([line, *rest[:until]]), rest[until:]
        if line.strip() and not line.startswith("#"):
            found.append(line)
    return found


def words_of(line: str) -> list[list[str]]:
    """The commands of a line, each in words; a redirection stays in its words as > and a name."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word == ";":
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


class Terminal:
    """A folder and what is typed there. `dovetail` runs in this process, a service beside it, all else in bash."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        self._services: list[subprocess.Popen[str]] = []
        self.said: list[str] = []
        self.codes: Mapping[str, int] = {}  # of lines with these words, where it is not 0
        self.left_open: set[str] = set()  # those words that were typed
        shutil.copytree(ROOT / "examples", folder / "examples")
        own = folder / ".own"
        (own / "bin").mkdir(parents=True)
        for name, words in (("python", ""), ("dovetail", " -m dovetail")):
            (own / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
            (own / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}")
        for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(variable, str(own))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        monkeypatch.chdir(folder)

    def state(self, level: str) -> Path:
        return self.folder / ".own" / "dovetail" / level

    def type(self, text: str) -> None:
        self._monkeypatch.chdir(self.folder)
        lines = typed(text)
        if not any(line.startswith("dovetail") for line in lines):
            lines = ["\n".join(lines)]
        for line in lines:
            if set_to := re.match(r"export (\w+)=(\S+)", line):
                self._monkeypatch.setenv(set_to[1], set_to[2])
                continue
            commands = [] if "\n" in line else words_of(line)
            if commands and all(command[0] in ("dovetail", "cd") for command in commands):
                for command in commands:
                    self._run(command)
            else:
                subprocess.run(["bash", "-ec", line], check=True, stdout=subprocess.DEVNULL)

    def _run(self, command: list[str]) -> None:
        if command[0] == "cd":
            self._monkeypatch.chdir(command[1])
            return
        words = [name for word in command[1:] for name in (_matches(word) or [word])]
        into = None
        if ">" in words:
            into = Path(words[words.index(">") + 1])
            words = words[: words.index(">")]
        if words[:2] in _SERVICES or words[:3] in _SERVICES:
            self._serve(words)
            return
        self._capsys.readouterr()
        code = cli.main(words)
        out, err = self._capsys.readouterr()
        expected = next((said for part, said in self.codes.items() if part in shlex.join(words)), 0)
        assert code == expected, f"{shlex.join(words)}: exit code {code}\n{out}{err}"
        self.left_open.update(part for part in self.codes if part in shlex.join(words))
        self.said.append(out)
        if into is not None:
            into.write_text(out)

    def _serve(self, words: list[str]) -> None:
        command = [sys.executable, "-m", "dovetail", *words]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._services.append(service)
        assert service.stdout is not None
        heard = ""
        while not _READY.search(heard):
            heard += (line := service.stdout.readline())
            assert line, f"{shlex.join(words)} ended with code {service.wait()}\n{heard}"

    def url(self, level: str) -> str:
        return (self.state(level) / "url").read_text().strip()

    def close(self) -> None:
        if self.state("host").exists():
            cli.main(["host", "down", "--cancel"])
        while self._services:
            service = self._services.pop()
            service.send_signal(signal.SIGINT)
            try:
                service.wait(5)
            except subprocess.TimeoutExpired:  # it lets open work end, unless it is told twice
                service.send_signal(signal.SIGINT)
            service.communicate()


def _matches(word: str) -> list[str]:
    return sorted(str(path) for path in Path().glob(word)) if "*" in word and not word.startswith("/") else []
