"""Plans run over a Ray cluster of three nodes (on this machine): placement, results, and a stage that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import check_journal
from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.pipeline.live import HostSettings, Patience, RunOptions, run_plan
from dovetail.pipeline.live.ray_engine import RayEngine
from tests.ray_cluster import ray_cluster
from tests.waiting import until

torch = pytest.importorskip("torch")
ray: Any = pytest.importorskip("ray")

# Ray leaves sockets and processes of its own to the garbage collector, and speaks of its coming changes.
pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster at a time
    pytest.mark.filterwarnings("ignore:.*accelerator visible devices.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Nobody is taken for dead because the machine is busy: a killed process is known by its connection.
OPTIONS = RunOptions(heartbeat_s=0.1, patience=Patience(slow_factor=0, heartbeat_limit_s=60.0))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes; the second and third have a resource by which a host can name them."""
    with ray_cluster(("b", "edge")) as made:
        yield made


def test_hosts_go_to_their_nodes(cluster: Any, small: Any, tmp_path: Path) -> None:
    engine = RayEngine()
    nodes = {name: node["NodeID"] for node in ray.nodes() for name in node["Resources"]}
    plan = small.plan("a", "b", "c", seconds=0.01, transfer_s=0.001)
    placed: dict[str, str] = {}

    def deliver(number: int, _: Any) -> None:
        if number == 0:
            placed.update({host: ray.get(actor.where.remote())[0] for host, actor in engine.actors.items()})

    outcome = run_plan(
        plan,
        small.spec,
        on={"all": "cpu"},
        microbatches=20,
        engine=engine,
        deliver=deliver,
        hosts={"c": HostSettings(node="edge")},
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=OPTIONS,
    )
    assert all(torch.equal(x, y) for x, y in zip(outcome.outputs, small.expected(20), strict=True))
    assert placed["b"] == nodes["b"]  # a resource is called like the host
    assert placed["c"] == nodes["edge"]  # as its settings say
    assert placed["a"] not in (nodes["b"], nodes["edge"])  # to the node that has nothing else
    assert check_journal(tmp_path / "run.jsonl").valid


def test_killed_actor_loses_nothing(cluster: Any, small: Any, tmp_path: Path) -> None:
    engine = RayEngine()
    plan = small.plan("a", "b", "c", seconds=0.01, transfer_s=0.004)
    killed: list[int] = []

    def deliver(number: int, _: Any) -> None:
        if number == 10:
            _, pid = ray.get(engine.actors[plan.stages[1].host].where.remote())
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    outcome = run_plan(
        plan,
        small.spec,
        on={"all": "cpu"},
        microbatches=60,
        engine=engine,
        deliver=deliver,
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=msgspec.structs.replace(OPTIONS, shape_links=True),
    )
    assert killed
    assert outcome.plans == 2
    assert all(torch.equal(x, y) for x, y in zip(outcome.outputs, small.expected(60), strict=True))
    assert check_journal(tmp_path / "run.jsonl").valid


def test_a_stopped_actor_is_replaced(cluster: Any, small: Any, tmp_path: Path) -> None:
    """While it loads only its node can tell that it is stopped, and only its node can end it."""
    stopped: list[int] = []

    class Stopping(RayEngine):
        def stirring(self) -> list[str]:
            found = super().stirring()
            if "b" in found and not stopped:  # its node has told of it
                stopped.append(self._pids["b"])
                os.kill(stopped[0], signal.SIGSTOP)
            return found

    outcome = run_plan(
        small.plan("a", "b", "c", seconds=0.01, transfer_s=0.0001),
        small.spec,
        on={"all": "cpu"},
        microbatches=1,
        engine=Stopping(),
        keep_outputs=True,
        journal=tmp_path / "run.jsonl",
        options=msgspec.structs.replace(OPTIONS, patience=Patience(slow_factor=0)),
    )
    assert outcome.changes[0].why == "b: it was stopped for 5 s"
    assert all(torch.equal(x, y) for x, y in zip(outcome.outputs, small.expected(1), strict=True))
    assert check_journal(tmp_path / "run.jsonl").valid
    until(lambda: not Path(f"/proc/{stopped[0]}").exists())


def test_unknown_node_is_named(cluster: Any, small: Any) -> None:
    plan = small.plan("a", "b")
    with pytest.raises(InputError, match="no Ray node has the address, name, id or resource 'nowhere'"):
        run_plan(plan, small.spec, microbatches=1, engine=RayEngine(), hosts={"a": HostSettings(node="nowhere")})


def test_command_on_a_cluster(cluster: Any, small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(small.plan("a", "b", seconds=0.01)))
    words = [
        "pipeline",
        "run",
        str(path),
        *small.words(),
        "--on",
        "all=cpu",
        "--engine",
        "ray",
        "--address",
        cluster.address,
    ]
    assert main([*words, "--microbatches", "5", "--slow-factor", "0", "--format", "json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["completed"] == 5
