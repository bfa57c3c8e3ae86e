"""The README's commands: all of them are understood, and those that need neither extras nor services run in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dovetail import cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = [block.replace("\\\n", " ") for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)]
RUN = {
    *("examples copy", "workflow run", "check", "report", "workflow explain", "workflow plan"),
    *("pipeline plan", "pipeline simulate", "cluster simulate", "cluster explain", "dispatch simulate"),
}


def commands(block: str) -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [line[1:] for line in lines if line and line[0] == "dovetail"]


@pytest.mark.parametrize("words", [words for block in BLOCKS for words in commands(block)], ids=" ".join)
def test_every_command_is_understood(words: list[str]) -> None:
    words = words[: words.index(">")] if ">" in words else words
    command, *_ = cli.build_app(words).parse_args(words, print_error=False, exit_on_error=False)
    assert callable(command)


def test_what_needs_nothing_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = 0
    for block in BLOCKS:
        monkeypatch.chdir(tmp_path)
        if folder := re.match(r"cd (\S+)", block):
            monkeypatch.chdir(tmp_path / folder[1])
        for words in commands(block):
            if not {" ".join(words[:2]), words[0]} & RUN or "--png" in words:
                continue
            into = Path(words[words.index(">") + 1]) if ">" in words else None
            assert cli.main(words if into is None else words[: words.index(">")]) == 0, words
            out = capsys.readouterr().out
            if into is not None:
                into.write_text(out)
            done += 1
    assert done == 12
