"""What can be had from `dovetail` and its levels by name, and that it is imported only then."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("dovetail", *(f"dovetail.{level}" for level in ("cluster", "dispatch", "host", "pipeline", "workflow")))


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_can_be_had(name: str) -> None:
    if name == "dovetail.dispatch":
        pytest.importorskip("torch")
    package = import_module(name)
    assert len(package.__all__) == len(set(package.__all__)) > 0
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert set(package.__all__) - {"__version__"} <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_imports_next_to_nothing(name: str) -> None:
    program = f"import sys, {name}; print(*sorted(m for m in sys.modules if m.startswith('dovetail.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"dovetail.core", "dovetail.core.lazy", "dovetail.version", name}


def test_a_public_name_is_not_the_module_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "with_a_door"
    package.mkdir()
    text = "from dovetail.core.lazy import exports\n__getattr__, __dir__ = exports(__name__, {'plan': 'plan'})\n"
    (package / "__init__.py").write_text(text)
    (package / "plan.py").write_text("def plan():\n    return 'planned'\n")
    (package / "hardware.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("with_a_door.plan")
    hardware = import_module("with_a_door.hardware")
    found = import_module("with_a_door")
    assert found.plan() == "planned"
    assert found.hardware is hardware
