"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference results; without it a test is skipped, but in CI it fails."""
    folder = (ROOT / os.environ.get("DOVETAIL_GOLDEN", "../shared/golden")).resolve()
    if not folder.is_dir():
        reason = f"no golden results at {folder}; name their folder in DOVETAIL_GOLDEN"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
