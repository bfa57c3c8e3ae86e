"""What can be had from `dovetail` and its levels by name, and that it is imported only then."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

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
    assert set(done.stdout.split()) <= {"dovetail.core", "dovetail.core.lazy", name}
