"""hosts.yml, shares of the processor, speeds of links, and arrays in files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")


from dovetail.core.cgroups import CpuShare  # noqa: E402
from dovetail.core.errors import InputError  # noqa: E402
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline  # noqa: E402
from dovetail.pipeline.live.arrays import read_inputs, write_outputs  # noqa: E402
from dovetail.pipeline.live.hosts import HostSettings, read_hosts  # noqa: E402
from dovetail.pipeline.live.jobs import link_speed  # noqa: E402
from dovetail.pipeline.plan import Constraints, Plan  # noqa: E402
from dovetail.pipeline.planner import plan  # noqa: E402
from dovetail.pipeline.route import DATA_HOST  # noqa: E402
from tests.waiting import until  # noqa: E402


def _read(tmp_path: Path, text: str, local: bool = True) -> dict[str, HostSettings]:
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    return read_hosts(path, {"mb-0", "mb-1"}, local)


def test_settings_are_read(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    text = f"mb-0: {{cores: [{core}], threads: 2, share: 0.5}}\nmb-1: {{device: 'cuda:1', node: 10.0.0.7}}\n"
    assert _read(tmp_path, text, local=False) == {
        "mb-0": HostSettings(cores=(core,), threads=2, share=0.5),
        "mb-1": HostSettings(device="cuda:1", node="10.0.0.7"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mb-2: {}\n", r"hosts.yml:1: mb-2: is not a host of the plan; did you mean 'mb-\d'"),
        ("mb-0:\n  core: [0]\n", r"hosts.yml:2: mb-0.core: unknown key 'core'; did you mean 'cores'"),
        ("mb-0:\n  cores: [9999]\n", r"hosts.yml:2: mb-0.cores: found \[9999\], expected some of \["),
        ("mb-0:\n  device: gpu\n", r"hosts.yml:2: mb-0.device: expected cpu, cuda or cuda:N, found 'gpu'"),
        (
            "mb-0:\n  device: cuda:99\n",
            r"hosts.yml:2: mb-0.device: device 'cuda:99': this machine has \d+ CUDA devices",
        ),
        ("mb-0:\n  threads: 0\n", r"hosts.yml:2: mb-0.threads: expected at least 1, found 0"),
        ("mb-0:\n  share: 0\n", r"hosts.yml:2: mb-0.share: expected cores from 0.05, found 0"),
        ("mb-0:\n  share: half\n", r"hosts.yml:2: mb-0.share: expected float"),
    ],
)
def test_mistakes_are_located(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _read(tmp_path, text)


def test_a_share_limits_a_process() -> None:
    """A process that always computes gets about the time it is allowed, or the reason why it cannot be limited."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        try:
            share = CpuShare(process.pid, 0.2)
        except InputError as error:
            pytest.skip(str(error))
        ticks = os.sysconf("SC_CLK_TCK")

        def used_s() -> float:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / ticks

        before_s, start_s = used_s(), time.monotonic()
        until(lambda: used_s() - before_s > 0.2)
        assert used_s() - before_s <= 0.3 * (time.monotonic() - start_s)
    finally:
        process.kill()
        process.wait()
    share.release()
    assert not share.group.exists()


def test_a_new_share_removes_what_killed_runs_left() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        try:
            share = CpuShare(alive.pid, 0.5)
        except InputError as error:
            pytest.skip(str(error))
        left = share.group.with_name(f"dovetail-{gone.pid}")
        left.mkdir()
        again = CpuShare(alive.pid, 0.2)  # also over the group that is there
        assert not left.exists()
        assert again.group == share.group
        again.release()
        assert not share.group.exists()
    finally:
        alive.kill()
        alive.wait()


@pytest.mark.parametrize("cores", [0.0, -1.0, float("nan"), 1e9])
def test_a_share_that_makes_no_sense(cores: float) -> None:
    with pytest.raises(InputError, match=r"share: expected cores from 0\.05, found"):
        CpuShare(os.getpid(), cores)


def _plan(**more: Any) -> Plan:
    classes = [
        DeviceClass(name=host, type="t", hosts=[host], bw_mbps=bw, mem_mib=100.0, time_s=[1.0] * 4)
        for host, bw in (("a", 8.0), ("b", 16.0))
    ]
    problem = Pipeline(
        model="m",
        layers=4,
        mem_mib=[1.0] * 4,
        cut_bytes=[8] * 5,
        classes=classes,
        batch_size=1,
        dtype="torch.float32",
        **more,
    )
    found = plan(problem, "throughput", Constraints(data_mbps=80.0))
    assert isinstance(found, Plan)
    return found


def test_a_link_is_as_fast_as_the_plan_says() -> None:
    assert link_speed(_plan(), "a", "b") == (2**20, 0.0)  # the slower end, 8 Mbit/s
    assert link_speed(_plan(), DATA_HOST, "b") == (2 * 2**20, 0.0)
    table = _plan(link_mbps=[[0.0, 24.0], [32.0, 0.0]], link_s=[[0.0, 0.1], [0.2, 0.0]])
    assert link_speed(table, "a", "b") == (3 * 2**20, 0.1)
    assert link_speed(table, "b", "a") == (4 * 2**20, 0.2)


def test_arrays_become_microbatches_and_come_back(tmp_path: Path) -> None:
    ids, images = np.arange(10).reshape(5, 2), np.random.default_rng(1).normal(size=(5, 3))
    np.savez(tmp_path / "in.npz", ids=ids, images=images)
    found = read_inputs(tmp_path / "in.npz", 2, "torch.bfloat16")
    assert len(found) == 3
    assert [part.dtype for part in found[0]] == [torch.int64, torch.bfloat16]
    assert found[2][0].tolist() == [[8, 9]]
    write_outputs(tmp_path / "out.npz", list(found))
    back = np.load(tmp_path / "out.npz")
    assert np.array_equal(back["arr_0"], ids)
    assert np.allclose(back["arr_1"], images, atol=0.02)


@pytest.mark.parametrize("content", [b"", b"not numbers", b"\x93NUMPY"])
def test_a_file_that_holds_no_arrays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"in\.npy: expected a \.npy or \.npz file"):
        read_inputs(tmp_path / "in.npy", 2, "torch.float32")


def test_arrays_of_unlike_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.zeros((3, 1)), b=np.zeros((4, 1)))
    with pytest.raises(InputError, match=r"one row per item, found \[3, 4\]"):
        read_inputs(tmp_path / "in.npz", 2, "torch.float32")
