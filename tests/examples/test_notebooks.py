"""The notebooks run as they are, and show what they were kept with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_every_level_has_one() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cluster", "dispatch", "host", "pipeline", "workflow"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_its_picture(path: Path) -> None:
    command = [sys.executable, "-m", "tools.notebooks", "--check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"(\d+) pictures", done.stdout)[0]) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_speaks_of_no_machine(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"] if line.strip()]
    assert 3 <= len(lines) <= 30
    assert cells[0]["cell_type"] == "markdown"
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text())
