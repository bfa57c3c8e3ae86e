"""What lasting processes are given."""

from __future__ import annotations

import os

import pytest

from dovetail.core.service.environment import lasting_environment


def test_a_path_to_modules_is_the_same_in_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}/opt/deps")
    assert lasting_environment() == os.environ | {"PYTHONPATH": f"{os.getcwd()}/src{os.pathsep}/opt/deps"}
    monkeypatch.delenv("PYTHONPATH")
    assert lasting_environment() == os.environ
