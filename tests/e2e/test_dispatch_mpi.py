"""The MPI scheduler with three real ranks: who has which device, and one batch over all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("mpi4py")
pytestmark = pytest.mark.xdist_group("ranks")  # they run once
RANKS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank found."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("no mpiexec; pip install mpich")
    out = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("dispatch_ranks.py")
    words = [mpiexec, "-n", str(RANKS), sys.executable, str(program), str(out)]
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_one_device_per_rank(ranks: list[Any]) -> None:
    found = [rank["assignment"] for rank in ranks]
    assert [each["unique"] for each in found] == ["a", "b", "c"]
    assert [each["idle"] for each in found] == ["a", "b", "c"]
    assert [each["sizes"] for each in found] == [1, 2, 3]


def test_both_rules_for_more_ranks_than_devices(ranks: list[Any]) -> None:
    found = [rank["assignment"] for rank in ranks]
    assert [each["round_robin"] for each in found] == ["a", "b", "a"]
    assert all("InputError: 3 ranks on one host share 2 devices" in each["more"] for each in found)


def test_fewer_ranks_than_devices(ranks: list[Any]) -> None:
    assert all("3 ranks on one host leave 1 of 4 devices idle" in rank["assignment"]["fewer"] for rank in ranks)


def test_a_part_of_the_ranks(ranks: list[Any]) -> None:
    """Ranks 0 and 1 are one communicator, rank 2 is another."""
    assert [rank["assignment"]["part"] for rank in ranks] == ["a", "b", "a"]


def test_a_device_that_one_rank_does_not_have_is_an_error_on_all(ranks: list[Any]) -> None:
    found = [rank["assignment"]["one has none"] for rank in ranks]
    assert "device 'cuda:7' does not exist" in found[2]
    assert all("rank 2 of 3 failed: InputError: device 'cuda:7'" in each for each in found[:2])


def test_one_batch_over_all_ranks(ranks: list[Any]) -> None:
    found = [rank["batch"] for rank in ranks]
    assert sum(each["rows"] for each in found) == 50  # each row once
    assert all(each["rows"] > 0 for each in found)
    assert all(each["equal"] for each in found)
    assert [each["root"] for each in found] == [None, None, True]
    assert all(each["total"] == sum(range(50)) for each in found)
    assert all(each["shares"] for each in found)
    assert all(each["empty"] == [0, 3] for each in found)
    assert all(each["own batch"] == 18.0 for each in found)
    assert all("2 of 3 ranks have a batch; expected all of them, or one" in each["two batches"] for each in found)


def test_ranges_of_a_rank_that_fails_move(ranks: list[Any]) -> None:
    found = [rank["failures"] for rank in ranks]
    assert all(each["moved"] for each in found)
    assert all(each["after"] for each in found)


def test_an_error_reaches_every_rank(ranks: list[Any]) -> None:
    found = [rank["failures"] for rank in ranks]
    assert all("ValueError: no" in each["all"] for each in found)
    assert "ZeroDivisionError" in found[0]["agreed"]
    assert all("rank 0 of 3 failed: ZeroDivisionError" in each["agreed"] for each in found[1:])
