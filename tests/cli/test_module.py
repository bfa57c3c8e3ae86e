"""The package as a command."""

from __future__ import annotations

import subprocess
import sys


def test_python_m_dovetail_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "dovetail", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing" in done.stderr
