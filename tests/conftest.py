"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from dovetail.cluster.inputs.workload import Throughputs

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile("untimed", deadline=None)  # how long an example takes is the machine's business
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference results; without it a test is skipped, but in CI it fails."""
    return _folder("DOVETAIL_GOLDEN", "../shared/golden", "golden results")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces, likewise."""
    return _folder("DOVETAIL_TRACES", "../shared/traces", "traces")


@pytest.fixture(scope="session")
def measured(traces: Path) -> Throughputs:
    """The throughputs that were measured for the older cluster simulator."""
    from dovetail.cluster.inputs.throughputs import read_throughputs

    return read_throughputs(traces / "gavel/simulation_throughputs.json")


def _folder(variable: str, default: str, what: str) -> Path:
    folder = (ROOT / os.environ.get(variable, default)).resolve()
    if not folder.is_dir():
        reason = f"no {what} at {folder}; name their folder in {variable}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
