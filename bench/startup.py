"""What it costs to start: CPU seconds and imports of every command's `--help` at any depth, and of two short commands.

    python -m bench.startup                  all of them, the least of three runs each
    python -m bench.startup --imports        only which large packages each help page imports

The limits are the project's own: 0.25 CPU s for a help page, 0.3 CPU s for `cluster policies` and `host list`, and
0.35 CPU s for what `cluster simulate` takes beside its simulation, once modules are compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from bench import show

LARGE = ("numpy", "torch", "highspy", "ray", "matplotlib", "docker", "msgspec", "yaml")
SHORT = (["cluster", "policies"], ["host", "list"])
_PROGRAM = "import sys; from dovetail.cli import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imports", action="store_true", help="only which large packages each help page imports")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="commands under these verbs; default: all")
    arguments = parser.parse_args()
    pages = [words for words in commands() if not arguments.only or words[:1] in [[verb] for verb in arguments.only]]
    found: dict[str, Any] = {"pages": len(pages), "imports": imports(pages)}
    if not arguments.imports:
        pages_s = {_title([*words, "--help"]): cpu_s([*words, "--help"], arguments.repeats) for words in pages}
        found["help_cpu_s"] = pages_s
        found["slowest_help_cpu_s"] = max(pages_s.values())
        found["short_cpu_s"] = {_title(words): cpu_s(words, arguments.repeats) for words in SHORT}
        found["beside_simulation_cpu_s"] = beside_simulation_cpu_s(arguments.repeats)
    show(found)


def commands() -> list[list[str]]:
    """Every command and group of commands, as the words that lead to it. Imports all of them."""
    from dovetail.cli import build_app

    def below(app: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name in app:
            if not name.startswith("-"):
                yield from below(app[name], [*words, name])

    return list(below(build_app(), []))


_FORKS = """
import json, os, sys
from dovetail.cli import main
large, pages = json.load(sys.stdin)
for words in pages:
    child = os.fork()
    if not child:
        sys.stdout = open(os.devnull, "w")
        code = main([*words, "--help"])
        loaded = [name for name in large if name in sys.modules]
        os.write(1, json.dumps([code, loaded]).encode() + b"\\n")
        os._exit(0)
    os.waitpid(child, 0)
"""


def imports(pages: list[list[str]]) -> dict[str, list[str]]:
    """The large packages that each help page imports."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], input=json.dumps([LARGE, pages]), stdout=subprocess.PIPE, text=True, check=True
    )
    found = {}
    for words, line in zip(pages, done.stdout.splitlines(), strict=True):
        code, found[_title(words)] = json.loads(line)
        assert code == 0, words
    return found


def cpu_s(words: list[str], repeats: int) -> float:
    """The least CPU seconds of several runs, interpreter start included; outside any folder that has state."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            program = [sys.executable, "-c", _PROGRAM, *words]
            environment = os.environ | {"XDG_STATE_HOME": folder}
            quiet = subprocess.DEVNULL
            child = subprocess.Popen(program, env=environment, cwd=folder, stdout=quiet, stderr=quiet)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            seconds.append(used.ru_utime + used.ru_stime)
    return round(min(seconds), 3)


def beside_simulation_cpu_s(repeats: int) -> float:
    """The least CPU seconds of `dovetail cluster simulate`, 40 jobs on 24 accelerators, beside its simulation's."""
    seconds: list[float] = []
    for _ in range(repeats + 1):  # the first may compile modules
        program = [sys.executable, "-c", _PROGRAM, "cluster", "simulate", "--format", "json"]
        child = subprocess.Popen(program, env=_compiling(), stdout=subprocess.PIPE)
        assert child.stdout is not None
        simulated = json.loads(child.stdout.read())["cpu_s"]
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds.append(used.ru_utime + used.ru_stime - simulated)
    return round(min(seconds), 3)


def _compiling() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _title(words: list[str]) -> str:
    return " ".join(["dovetail", *words])


if __name__ == "__main__":
    main()
