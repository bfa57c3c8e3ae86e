"""The plan of the house: who may import whom, which rooms a level has, and one name for one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dovetail"
LEVELS = ("cluster", "dispatch", "host", "pipeline", "workflow")
# What every level is made of, as far as it needs it; beside that, each has a few rooms of its own.
ROOMS = {
    *("__init__.py", "inputs", "policies", "optimise", "scheduler.py", "planner.py", "rounds.py", "simulate.py"),
    *("live", "check", "check.py", "metrics.py", "explain.py", "bounds.py", "export.py", "words.py", "compat"),
}
OWN_ROOMS = {
    "cluster": "checkpoint.py goodput header.py narrate.py rounding rules.py study.py sweeps virtual_time.py",
    "dispatch": "chunk.py derivatives map.py measure.py recording.py replay.py",
    "host": "admission.py agent.py check_state.py cores.py curves.py experiment.py gpus.py options.py program.py "
    "waiting.py",
    "pipeline": "hardware.py language models pareto.py plan.py profile route.py",
    "workflow": "capacity.py choices.py facts.py gpus plan_over_time.py problem.py study.py tenants",
}
# Base classes of policies, in policies/base.py of each level, or view.py beside it: what a policy is, what it sees.
IN_EVERY_LEVEL = {"Policy", "View"}


def test_imports_keep_the_layers() -> None:
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def cycles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Every cycle, each cut where it was found so that the next one shows."""
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]
            yield " -> ".join(cycle)
            graph[cycle[0]].discard(cycle[1])
        else:
            return


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Also where the contract between rooms has an exception."""
    graph = grimp.build_graph("dovetail", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert list(cycles(imported)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_can_be_taken_in_at_a_glance(level: str) -> None:
    entries = {path.name for path in (SOURCE / level).iterdir() if path.name != "__pycache__"}
    assert entries - ROOMS <= set(OWN_ROOMS[level].split())
    assert len(entries) <= 23


@pytest.mark.parametrize("floor", ["core", "report"])
def test_what_all_levels_share_can_be_taken_in_at_a_glance(floor: str) -> None:
    assert len([path for path in (SOURCE / floor).iterdir() if path.name != "__pycache__"]) <= 21


def classes() -> dict[str, list[str]]:
    """The public classes at the top of modules, by name, with the files that define them."""
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


def test_a_class_name_means_one_thing() -> None:
    twice = {name: files for name, files in classes().items() if len(files) > 1}
    for name in IN_EVERY_LEVEL & twice.keys():
        assert all(file.endswith(("policies/base.py", "policies/view.py")) for file in twice.pop(name))
    assert twice == {}
