"""Devices as actors on a Ray cluster of three nodes (on this machine): results, places, and a node that is lost."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dovetail.core.errors import InputError

torch: Any = pytest.importorskip("torch")
ray: Any = pytest.importorskip("ray")

from dovetail.dispatch import Device, Dispatcher, map  # noqa: E402
from dovetail.dispatch.live.mapping.shard_files import write_rows  # noqa: E402
from dovetail.dispatch.live.ray import devices_of_cluster, node_id  # noqa: E402
from tests.ray_cluster import add_nodes, ray_cluster  # noqa: E402
from tests.waiting import until  # noqa: E402

# Ray leaves sockets and processes of its own to the garbage collector, and speaks of its coming changes.
pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster at a time
    pytest.mark.filterwarnings("ignore:.*accelerator visible devices.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# A node that is gone is noticed after so many checks without an answer.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes, each with a resource by which a device can name it."""
    with ray_cluster(("left", "right"), **QUICK) as made:
        yield made


def devices(*nodes: str) -> list[Device]:
    return [Device(f"{node}/cpu", where="cpu", threads=1) for node in nodes]


def dispatcher(function: Any, devices: Any, **options: Any) -> Any:
    return Dispatcher(function, devices, **{"backend": "ray", "cache": False, "sizes": 3, **options})


def test_results_places_and_errors(cluster: Any) -> None:
    hooked: list[str] = []

    def scaled(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"].mul_(1)  # work may be written to
        return {"y": batch["x"] * batch["scale"], "process": torch.full((len(batch["x"]),), os.getpid())}

    def picky(x: Any) -> Any:
        if len(x) > 4:
            raise MemoryError("too many")
        if bool((x == 13).any()):
            raise ValueError("thirteen")
        return x + 1

    def init(device: Device) -> None:
        hooked.append(device.name)  # the actor's own list: this one stays empty

    x = torch.arange(40.0)
    with dispatcher(scaled, devices("left", "right"), init=init) as spread:
        found = spread.run({"x": x, "scale": torch.tensor([3.0])})
        assert torch.equal(found["y"], 3 * x)
        places = [ray.get(worker.actor.where.remote()) for worker in spread.pool.workers]
        assert [place for place, _ in places] == [node_id("left"), node_id("right")]
        assert set(found["process"].tolist()) <= {pid for _, pid in places}
        assert not hooked
        few = Dispatcher(picky, pool=spread.pool, cache=False, sizes=8, retries=0)
        assert torch.equal(few.run(x[14:]), x[14:] + 1)  # halved until it fits
        with pytest.raises(ValueError, match="thirteen"):
            few.run(x)
        module = torch.nn.Linear(1, 1)
        linear = Dispatcher(module, pool=spread.pool, cache=False, sizes=7)
        assert torch.equal(linear.run(x[:, None]), module(x[:, None]).detach())
        with torch.no_grad():
            module.weight.add_(1)
        assert torch.equal(linear.run(x[:, None]), module(x[:, None]).detach())


def test_devices_of_the_cluster(cluster: Any) -> None:
    found = devices_of_cluster()
    assert len(found) >= 3
    assert all(device.name.endswith("/cpu") for device in found)
    with dispatcher(torch.sqrt, found[:1]) as one:
        assert torch.equal(one.run(torch.arange(9.0)), torch.arange(9.0).sqrt())


def test_unknown_node(cluster: Any) -> None:
    with dispatcher(torch.sqrt, devices("nowhere")) as lost:
        failures = lost.attempt(torch.arange(9.0)).failures
        assert isinstance(failures[0].error, InputError)
        assert "no Ray node has the address, name, id or resource 'nowhere'" in str(failures[0].error)


def test_ranges_of_a_node_that_is_lost_move(cluster: Any, tmp_path: Path) -> None:
    """A chunk on the node that will be lost goes on for ever, and says so first."""
    (node,) = add_nodes(cluster, {"resources": {"doomed": 1}})
    doomed, begun = node_id("doomed"), tmp_path / "begun"

    def stuck(x: Any) -> Any:
        import time

        while ray.get_runtime_context().get_node_id() == doomed:
            begun.touch()
            time.sleep(0.1)
        return x + 1

    x = torch.arange(30.0)
    with dispatcher(stuck, devices("doomed", "right"), backup=False) as spread:
        while not begun.exists():  # the other one may be ready earlier, and do all
            future = spread.submit(x)
            while not begun.exists() and not future.done():
                time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        assert torch.equal(future.result(timeout=900), x + 1)
        assert any("DeviceLostError: doomed/cpu" in row.state for row in spread.report.rows)
        assert torch.equal(spread.run(x), x + 1)  # the node is still gone


def shards_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".npy"}


def test_shards_of_a_node_that_is_lost_are_done_by_others(cluster: Any, tmp_path: Path) -> None:
    """Only what it was at is done again, and all files are those of this machine alone."""
    (node,) = add_nodes(cluster, {"resources": {"doomed": 1}})
    doomed, begun, calls = node_id("doomed"), tmp_path / "begun", tmp_path / "calls"
    calls.mkdir()
    for i in range(3):
        write_rows(tmp_path / "in" / f"{i}.npy", torch.arange(40.0).reshape(20, 2) + 100 * i)

    def stuck(x: Any) -> Any:
        (calls / f"{int(x[0, 0])}.{uuid4().hex}").touch()
        here = ray.get_runtime_context().get_node_id()
        if here == doomed:
            begun.touch()
        until(lambda: here != doomed and begun.exists())
        return x + 1

    with dispatcher(stuck, devices("doomed", "right"), sizes=10) as spread:
        done: list[Any] = []
        run = threading.Thread(target=lambda: done.append(spread.map(tmp_path / "in", tmp_path / "out", items=10)))
        run.start()
        until(begun.exists)
        cluster.remove_node(node, allow_graceful=False)
        run.join()
        assert (done[0].shards, done[0].items) == (6, 60)
        again = spread.map(tmp_path / "in", tmp_path / "out", items=10)
        assert (again.shards_before, again.devices) == (6, {})
    with Dispatcher(lambda x: x + 1, cache=False) as here:
        here.map(tmp_path / "in", tmp_path / "here", items=10)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "here")
    times = Counter(int(path.name.partition(".")[0]) for path in calls.iterdir())
    assert sorted(times) == [0, 20, 100, 120, 200, 220]
    assert sorted(times.values()) == [1, 1, 1, 1, 1, 2]


def test_shards_that_fail_are_skipped_on_a_cluster_too(cluster: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.npy", torch.arange(40.0))

    def picky(x: Any) -> Any:
        if x[0] == 0:
            raise ValueError("poison")
        return x + 1

    with (
        dispatcher(picky, devices("left", "right"), on_error="skip", retries=0) as spread,
        pytest.raises(RuntimeError, match="ValueError: poison"),
    ):
        spread.map(tmp_path / "in", tmp_path / "out", items=10)
    assert sorted(shards_of(tmp_path / "out")) == ["000001.npy", "000002.npy", "000003.npy"]


def test_a_map_with_the_ray_engine(cluster: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "a.npy", torch.arange(40.0))
    report = map(torch.sqrt, tmp_path / "in", tmp_path / "out", items=7, engine="ray", devices="cpu")
    assert (report.shards, report.items, sum(report.devices.values())) == (6, 40, 6)
    assert len(report.devices) >= 3
    with pytest.raises(InputError, match=r"devices cuda:0: no node of the Ray cluster has one; found cpu"):
        map(torch.sqrt, tmp_path / "in", tmp_path / "none", engine="ray", devices="cuda:0")
    with pytest.raises(InputError, match="several nodes need one that can be read at any place; found an iterable"):
        map(torch.sqrt, iter([torch.ones(3)]), tmp_path / "pieces", engine="ray")
