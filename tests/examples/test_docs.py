"""The commands in the blocks of docs/: each is one that is understood, with flags that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dovetail import cli

ROOT = Path(__file__).parents[2]
_END = {">", "|", "&", "&&", ";", "2>&1"}  # what follows is the shell's


def commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    found: list[list[str]] = []
    for line in (line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()):
        if not line.removeprefix("$ ").startswith("dovetail ") or "..." in line or "…" in line:
            continue
        words: list[str] | None = None
        for word in shlex.split(line, comments=True):
            if words is not None and word not in _END:
                words.append(word.removesuffix(";"))
            if word in _END or word.endswith(";"):
                words = None
            elif words is None and word == "dovetail":
                found.append(words := [])
    return found


COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for words in commands(page.read_text())
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_documents_is_understood(words: list[str]) -> None:
    command, *_ = cli.build_app(words).parse_args(words, print_error=False, exit_on_error=False)
    assert callable(command)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 40
