"""A help page does not wait for what only the command itself needs. Times are measured in bench/startup.py."""

from __future__ import annotations

import subprocess
import sys

from bench.startup import commands, imports

HEAVY = {"numpy", "torch", "highspy", "ray", "matplotlib", "docker"}


def test_help_at_any_depth_imports_nothing_large() -> None:
    pages = commands()
    assert len(pages) > 60
    assert ["cluster", "sweep", "static"] in pages
    seen = imports(pages)
    assert any(seen.values())  # so it would be noticed
    found = {title: HEAVY & set(loaded) for title, loaded in seen.items()}
    assert {title: loaded for title, loaded in found.items() if loaded} == {}


def test_short_commands_import_no_numbers() -> None:
    for words in (["cluster", "policies"], ["host", "list"]):
        program = "import sys; from dovetail.cli import main; main(); print('numpy' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"
