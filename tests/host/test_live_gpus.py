"""GPUs of a daemon, by a stand-in for the management library: who sees which, through a kill too, and what is told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core import cgroups
from dovetail.core.errors import InputError, MissingExtraError
from dovetail.host import connect, up
from dovetail.host.check import check_journal
from dovetail.host.gpus import GpuDevice
from dovetail.host.live.executors import ProgramLaunch
from dovetail.host.live.executors.docker import DockerExecutor
from dovetail.host.live.gpus import find_gpus
from dovetail.host.live.setup import RequestedSettings, set_up
from dovetail.host.live.specs import Spec, environment
from tests.host.live import Daemon, until

FAKE = Path(__file__).parent / "fake_nvml"
GPUS: list[dict[str, Any]] = [{"name": "NVIDIA A100-SXM4", "mib": 1000, "use": 40}, {"name": "NVIDIA L4", "mib": 400}]
PATHS = f"{FAKE}:{os.environ.get('PYTHONPATH', '')}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that says which GPUs this machine has."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_GPUS", str(tmp_path / "gpus.json"))
    (tmp_path / "gpus.json").write_text(json.dumps(GPUS))
    yield tmp_path / "gpus.json"
    __import__("sys").modules.pop("pynvml", None)


def test_the_gpus_of_a_machine(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a100, l4 = GpuDevice("NVIDIA A100-SXM4", 1000, 0), GpuDevice("NVIDIA L4", 400, 1)
    assert find_gpus() == (a100, l4)
    assert find_gpus([1]) == (l4,)
    for wrong in ([2], [0, 0]):
        with pytest.raises(InputError, match=r"gpus: found .*, expected some of \[0, 1\], each once"):
            find_gpus(wrong)
    monkeypatch.delenv("FAKE_GPUS")
    assert find_gpus() == ()
    with pytest.raises(InputError, match="the driver does not answer: Driver Not Loaded"):
        find_gpus([0])
    monkeypatch.setattr("importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert find_gpus() == ()
    with pytest.raises(MissingExtraError, match=r"dovetail\[gpu\]"):
        find_gpus([0])


def test_a_gpu_is_named_once(machine: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gpus: found \[0, 0\], expected some of \[0, 1\], each once"):
        find_gpus([0, 0])
    with pytest.raises(InputError, match="gpus 0;1: expected numbers of GPUs, as 0,1, or none"):
        up(tmp_path / "state", gpus="0;1")


def test_who_asks_for_none_sees_none_unless_it_says_so() -> None:
    def seen(spec: Spec, gpus: list[int] | None) -> str | None:
        return environment(spec, "1", 1, 1, "", gpus).get("CUDA_VISIBLE_DEVICES")

    mine = {"CUDA_VISIBLE_DEVICES": "7"}
    assert seen(Spec(gpus=2, env=mine), [0, 3]) == "0,3"
    assert (seen(Spec(), []), seen(Spec(env=mine), []), seen(Spec(), None)) == ("", "7", None)
    assert seen(Spec(gpus=1, image="train"), [0]) is None


def test_a_machine_that_has_open_programs_keeps_its_gpus(machine: Path, tmp_path: Path) -> None:
    first, store = set_up(tmp_path / "state", RequestedSettings())
    store.close()
    assert first.gpus == (0, 1)
    machine.write_text("[]")
    for wish, gpus in ((RequestedSettings(), (0, 1)), (RequestedSettings(options={}), ())):
        setup, store = set_up(tmp_path / "state", wish)
        store.close()
        assert setup.gpus == gpus


def test_a_container_is_given_its_gpus(tmp_path: Path) -> None:
    class Types:
        @staticmethod
        def DeviceRequest(**words: Any) -> dict[str, Any]:  # noqa: N802  the SDK's name
            return words

    asked: dict[str, Any] = {}
    engine = SimpleNamespace(containers=SimpleNamespace(create=lambda image, command, **words: asked.update(words)))
    executor = DockerExecutor.__new__(DockerExecutor)
    executor._docker, executor._errors = SimpleNamespace(types=Types), SimpleNamespace(ImageNotFound=KeyError)
    executor._engine, executor._owner, executor._making = engine, "me", __import__("threading").Lock()
    launch = ProgramLaunch(
        run="1-1",
        command=(),
        cpus=(0,),
        folder=str(tmp_path),
        log=str(tmp_path / "log"),
        cwd="",
        image="train",
        gpus=(0, 2),
        cpu_quota=1.5,
        io_weight=200,
    )
    executor._create(launch)
    assert asked["device_requests"] == [{"device_ids": ["0", "2"], "capabilities": [["gpu"]]}]
    assert asked["cpu_quota"] == 1.5 * asked["cpu_period"]
    assert asked["blkio_weight"] == cgroups.engine_weight(200)


def test_a_weight_that_an_engine_would_leave_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    executor = DockerExecutor.__new__(DockerExecutor)
    assert executor.lacks(["io_weight", "cpu_quota"]) == ""  # of version 2
    (tmp_path / "blkio").mkdir()
    assert executor.lacks(["io_weight"]).startswith("io_weight: an engine leaves it out where the kernel has no")
    assert executor.lacks(["cpu_quota"]) == ""


def test_programs_have_their_gpus_through_a_kill(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 1000")
    with Daemon(tmp_path / "state", options={"assign": "strict"}) as daemon:
        daemon.up(PYTHONPATH=PATHS)
        with pytest.raises(InputError, match="gpus: needs 3 GPUs, the machine has 2"):
            daemon.submit(*words, gpus=3)
        told = [f"execution,0,a,1,0,0,,1,,{name}\n" for name in ("a100", "l4")]
        for line, seen in zip(told, "01", strict=True):
            (tmp_path / "requests.txt").write_text(line)
            with connect(daemon.folder) as client:
                (row,) = client.run(tmp_path / "requests.txt", command=["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])[
                    "per_program"
                ]
            assert daemon.log(row["id"]) == f"{seen}\n"
        with pytest.raises(InputError, match=r"cpu_quota: found nan, expected cores"), connect(daemon.folder) as client:
            client.submit("true", cpu_quota=float("nan"))
        without = daemon.submit("sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES")[0]
        until(lambda: daemon.states()[without] == "completed")
        (first,) = daemon.submit(*words, gpus=1, gpu_type="a100")
        until(lambda: daemon.log(first) == "sees 0\n")
        (second,) = daemon.submit(*words, gpus=1, gpu_mem_mib=300, gpu_type="a100")
        until(lambda: daemon.row(second)["why"] == "needs 1 GPU of type a100 with 300 MiB, none free")
        daemon.kill()
        machine.write_text(json.dumps([GPUS[0] | {"processes": {p.pid: 7 for p in daemon.processes(first)}}, GPUS[1]]))
        daemon.up(PYTHONPATH=PATHS)
        until(lambda: daemon.row(first)["gpu_memory_mib"] >= 7)
        assert (daemon.row(first)["gpus"], daemon.row(second)["gpus"]) == ([0], [])
        assert main(["host", "list", "--state", str(daemon.folder)]) == 0
        shown = capsys.readouterr().out
        assert "GPU 0 NVIDIA A100-SXM4: 40 % in use, " in shown
        assert f" of 1000 MiB; programs {first}\n" in shown
        assert "GPU 1 NVIDIA L4: 0 of 400 MiB; no program" in shown
        daemon.ask("cancel", first)
        until(lambda: daemon.log(second) == "sees 0\n")
        daemon.cancel_all()
        daemon.ask_once("journal", path=str(tmp_path / "run.jsonl"))
        assert check_journal(tmp_path / "run.jsonl").faults_by_code == {}
