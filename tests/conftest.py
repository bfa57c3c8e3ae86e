"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from dovetail.cluster.inputs.workload import Throughputs
from tests.leftovers import nothing_left

ROOT = Path(__file__).parent.parent

# A shell starts background jobs with Ctrl-C ignored, and whatever tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines announce matrix tiles (AMX) whose instructions they do not let a program use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# OpenMP's threads wait for each other by spinning, which takes the cores from whoever they wait for where several tests
# run at once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Processes that tests start by the hundred need not compile the sources each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes is the machine's business, and who only asks whether there is one need not have a small one.
_PHASES = [phase for phase in hypothesis.Phase if "DOVETAIL_UNSHRUNK" not in os.environ or phase.name != "shrink"]
_UNTIMED = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("untimed", deadline=None, phases=_PHASES, suppress_health_check=_UNTIMED)
hypothesis.settings.load_profile("untimed")

# Thousands of tests with all that they import are there to stay: to look through them for garbage takes long.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary files of the tests and of what they start are in a folder of their own."""
    tmp_path_factory.getbasetemp()  # pytest's own is elsewhere
    with (
        tempfile.TemporaryDirectory(prefix="dovetail-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(folder).chmod(0o755)  # for tests that become somebody else
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def no_leftovers(own_temporary_folder: None) -> Iterator[None]:
    """A test ends what it starts, and removes its temporary files."""
    with nothing_left():
        yield


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Ray takes SIGTERM for the rest of a process that joins a cluster, a service's command both for the rest of its
    own; the next test has them as they were. SIGINT is heard by Python to the end: a library that leaves it to the
    system has the next Ctrl-C kill the process without a word."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert _is_caught(signal.SIGINT), "the next Ctrl-C kills this process without a word"
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}
    assert not held, "the programs that this process starts would never hear them"


def _is_caught(number: signal.Signals) -> bool:
    """By the system's own account: Python is not told when a library changes it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return True
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """What a test draws without a seed of its own does not depend on which tests its process ran before."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


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
