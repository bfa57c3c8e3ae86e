"""The plan of the house: who may import whom, which rooms a level has, and one name for one thing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dovetail"
LEVELS = ("cluster", "dispatch", "host", "pipeline", "workflow")
# How far the move into the rooms has come: numbers that only fall, until these two lines go.
CYCLES, DOUBLES = 13, 52
ENTRIES = {"cluster": 21, "dispatch": 44, "host": 27, "pipeline": 37, "workflow": 26}


@cache
def imports() -> dict[str, frozenset[str]]:
    """What every module of the package imports of it, wherever in its file it does."""
    graph = grimp.build_graph("dovetail", cache_dir=None)
    return {module: frozenset(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


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


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"b"}, "e": {"a"}}
    found = [set(cycle.split(" -> ")) for cycle in cycles(graph)]
    assert len(found) == 2
    assert {"a", "b", "c"} in found
    assert {"b", "d"} in found


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = list(cycles({module: set(imported) for module, imported in imports().items()}))
    assert len(found) <= CYCLES, found


def test_product_code_imports_nothing_made_for_tests() -> None:
    made_for_tests = "dovetail.testing"
    guilty = [
        f"{module} imports {other}"
        for module, imported in imports().items()
        for other in imported
        if other.startswith(made_for_tests) and not module.startswith(made_for_tests)
    ]
    assert guilty == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_can_be_taken_in_at_a_glance(level: str) -> None:
    entries = [path.name for path in (SOURCE / level).iterdir() if path.name != "__pycache__"]
    assert len(entries) <= max(22, ENTRIES[level]), sorted(entries)


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
    assert len(twice) <= DOUBLES, twice
