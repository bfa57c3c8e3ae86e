"""Tests of one group run in one process: what such a group shares is there once, whatever versions are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_TESTS = """
import os, pathlib, pytest

pytestmark = pytest.mark.xdist_group("shared")

@pytest.mark.parametrize("number", range(8))
def test_here(number):
    (pathlib.Path(__file__).parent / f"{number}.process").write_text(str(os.getpid()))
"""


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_shared.py").write_text(_TESTS)
    alone = ["-p", "no:cacheprovider", "--rootdir", ".", "--basetemp", "base", "-c", os.devnull]
    words = [sys.executable, "-m", "pytest", *alone, "-n", "2", "--dist", "loadgroup", "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    places = [path.read_text() for path in tmp_path.glob("*.process")]
    assert len(places) == 8
    assert len(set(places)) == 1
