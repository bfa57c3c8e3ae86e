"""The commands of a level use what anybody can: the public names of their level, and nothing beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import dovetail.cli

LEVELS = ("workflow", "pipeline", "cluster", "host", "dispatch")
HERE = Path(dovetail.cli.__file__).parent


def used_of(level: str, path: Path) -> Iterator[str]:
    """What a module uses of a level: public names as they are, others with the place that they are taken from."""
    package = f"dovetail.{level}"
    nodes = list(ast.walk(ast.parse(path.read_text())))
    whole = set()  # what the level as a whole is called
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == package:
                yield from (alias.name for alias in node.names)
            elif node.module.startswith(f"{package}."):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif node.module == "dovetail":
                whole |= {alias.asname or alias.name for alias in node.names if alias.name == level}
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if f"{alias.name}.".startswith(f"{package}."))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            yield node.attr


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_s_commands_use_its_public_names_alone(level: str) -> None:
    public = set(import_module(f"dovetail.{level}").__all__)
    modules = sorted((HERE / level).glob("*.py"))
    used = {path.name: set(used_of(level, path)) for path in modules}
    assert len(set().union(*used.values())) > 2
    assert {name: sorted(found - public) for name, found in used.items() if found - public} == {}


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_s_commands_use_no_other_level(level: str) -> None:
    for path in (HERE / level).glob("*.py"):
        assert {other: set(used_of(other, path)) for other in LEVELS if other != level} == {
            other: set() for other in LEVELS if other != level
        }, path.name


def test_what_is_taken_from_within_a_level_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from dovetail.host import load\n"
        "def f():\n"
        "    from dovetail.host.live.client import Client\n"
        "    import dovetail.host.words\n"
        "    import dovetail.hosts\n"
        "    from dovetail.hostess import x\n"
        "    from dovetail import host as level, __version__\n"
        "    level.simulate(__version__.x)\n"
    )
    found = ["load", "dovetail.host.live.client.Client", "dovetail.host.words", "simulate"]
    assert list(used_of("host", tmp_path / "a.py")) == found
