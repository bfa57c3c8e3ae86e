"""A live cluster whose accelerators are those of Ray's nodes, which come and go."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import cluster
from dovetail.cluster.live.agent_link import AgentErrand
from dovetail.cluster.live.nodes import ClusterNode
from dovetail.cluster.live.serve import RayMachines
from dovetail.core.errors import InputError
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.ray_messages import LaunchProcess, ProcessEnded
from dovetail.core.service.ray_processes import RayDown
from tests.ray_nodes import ray_nodes
from tests.waiting import until

pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
CALM = {"grace": 1.0, "silence": 2.0}  # nobody fails or is lost because the machine is busy
PACED = [sys.executable, "-m", "dovetail.testing.cluster.paced", "--rates", "v100=100,k80=50", "--steps", "100000"]


def test_jobs_run_on_the_nodes_of_ray_which_come_and_go(tmp_path: Path) -> None:
    log = LogLines(io.StringIO())
    with ray_nodes() as nodes:
        nodes.add("first", dovetail__v100=1, dovetail__k80=1)
        with cluster.serve(address=nodes.address, round_s=4.0, state=tmp_path, live=CALM, log=log) as served:
            client = served.client()
            assert [node.types for node in client.nodes()] == [{"k80": 1, "v100": 1}]
            ids = [client.submit({"command": PACED, "steps": 100_000, "types": [on]}) for on in ("v100", "k80")]
            until(lambda: all(client.status(job).done > 0 for job in ids))
            nodes.add("second", dovetail__v100=1)
            until(lambda: len(client.nodes()) == 2)
            nodes.kill("first")
            until(lambda: [node.here for node in client.nodes()] == [False, True])
            before = client.status(ids[1])  # nobody else has its type, but its agent outlives what Ray has there
            until(lambda: client.status(ids[1]).done > before.done)
            wide = client.submit({"command": PACED, "steps": 100_000, "types": ["v100"]})
            until(lambda: client.status(wide).devices == (2,) or client.status(ids[0]).devices == (2,))
            ids.append(wide)
            for job in ids:
                client.cancel(job)
            assert [client.wait(job).state for job in ids] == ["cancelled"] * 3


def test_an_agent_that_ray_is_about_to_start_is_not_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class RayDouble:
        head_trouble, bind, nodes = None, "127.0.0.1", ()

        def __init__(self, address: str, tell: Callable[[Any], None], patient: bool) -> None:
            self.asked: list[LaunchProcess] = []

        def launch(self, order: LaunchProcess) -> None:
            self.asked.append(order)

    monkeypatch.setattr("dovetail.cluster.live.serve.RayProcesses", RayDouble)
    machines: Any = RayMachines("127.0.0.1:1", lambda nodes: None)
    node, errand = ClusterNode("n", (), ray_id="f3"), AgentErrand("n", "127.0.0.1", 1, b"", "/x")
    for _ in range(3):
        machines.launch(node, errand)
    (order,) = machines._ray.asked
    machines._hear(ProcessEnded(order.name, "it was killed"))
    for _ in range(2):
        machines.launch(node, errand)
    machines._hear(RayDown("its head is gone"))
    machines.launch(node, errand)
    assert [order.node for order in machines._ray.asked] == ["f3"] * 3


def test_an_address_where_nobody_listens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Ray cluster can be reached there"):
        cluster.serve(address="127.0.0.1:1", state=tmp_path)


def test_a_service_that_starts_while_ray_is_away_goes_on_with_its_agents(tmp_path: Path) -> None:
    log = LogLines(io.StringIO())
    first = cluster.serve(types={"v100": 1}, round_s=2.0, state=tmp_path, live=CALM, log=log)
    job = first.client().submit({"command": PACED, "steps": 100_000, "types": ["v100"]})
    until(lambda: first.client().status(job).done > 0)
    first.close()  # as if it were killed
    with cluster.serve(address="127.0.0.1:1", round_s=2.0, state=tmp_path, live=CALM, log=log) as served:
        client = served.client()
        assert [node.here for node in client.nodes()] == [True]
        before = client.status(job)
        until(lambda: client.status(job).done > before.done)
        assert client.cancel(job).id == job
        assert client.wait(job).state == "cancelled"
