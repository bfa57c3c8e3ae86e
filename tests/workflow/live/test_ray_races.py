"""Workers on a cluster that only pretends to be one: what Ray tells at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

import msgspec
import pytest

from dovetail.core.service.ray_messages import LaunchProcess, ProcessEnded
from dovetail.core.service.ray_processes import RayChange
from dovetail.core.service.ray_start import RayNode
from dovetail.core.service.ray_store import ObjectKeeper
from dovetail.workflow.live.engines import ray
from dovetail.workflow.live.engines.ray import RayWorkers
from dovetail.workflow.live.engines.ray_worker import ActorErrand, ActorGreeting
from dovetail.workflow.live.protocol import Answer, Reference, Report, WorkerLost, WorkerReady
from dovetail.workflow.live.wire import encode
from tests.waiting import until


class FakeRay:
    """Launches nothing: the test is the process that was to be launched."""

    bind, gcs = "127.0.0.1", "gcs"
    head_trouble: str | None = None
    nodes = (RayNode("1", "a", "127.0.0.1", {"dovetail_gpu": 1.0}),)
    launched: list[LaunchProcess]

    def __init__(self, address: str | None, tell: Callable[[RayChange], None], resources: Any) -> None:
        self.tell, self.launched = tell, []
        self.abandoned: list[tuple[str, tuple[str, ...]]] = []

    def launch(self, order: LaunchProcess) -> None:
        self.launched.append(order)

    def kill(self, name: str) -> None:
        pass

    def abandon(self, owner: str, known: tuple[str, ...]) -> None:
        self.abandoned.append((owner, known))

    def drop(self, keys: tuple[str, ...]) -> None:
        pass

    def close(self) -> None:
        pass

    def call(self) -> Connection[Any, Any]:
        """As the process that was launched last."""
        errand = msgspec.msgpack.decode(self.launched[-1].argument, type=ActorErrand)
        connection = Client((errand.host, errand.port), authkey=errand.secret)
        connection.send_bytes(msgspec.msgpack.encode(ActorGreeting(errand.name, 1, ())))
        connection.send_bytes(encode(WorkerReady(0)))
        return connection


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    made: list[FakeRay] = []

    def make(*given: Any) -> FakeRay:
        made.append(FakeRay(*given))
        return made[-1]

    monkeypatch.setattr(ray, "RayProcesses", make)
    monkeypatch.setattr(ray, "_FIRST_PAUSE_S", 0.001)
    engine = RayWorkers()
    reports: list[Report] = []
    cluster = made[0]

    def report(report: Report) -> None:
        reports.append(report)
        if isinstance(report, WorkerLost):
            cluster.tell(ProcessEnded(cluster.launched[-1].name, "it was killed"))
            with engine._changed:  # the keeper may be as fast as that
                due, engine._due = engine._due, []
                for _, i in due:
                    engine._launch(i)

    cluster.reports, cluster.engine = reports, engine  # type: ignore[attr-defined]
    engine.start({}, report)
    yield cluster
    engine.close()


def test_an_end_that_is_told_twice_is_one_end(cluster: FakeRay) -> None:
    """Ray says that a process has ended while its loss is being reported: it is started anew once, and is let in."""
    reports: list[Report] = cluster.reports  # type: ignore[attr-defined]
    for n in range(1, 4):
        until(lambda n=n: len(cluster.launched) == n)  # type: ignore[misc]
        connection = cluster.call()
        until(lambda n=n: reports.count(WorkerReady(0)) == n)  # type: ignore[misc]
        connection.close()
        until(lambda n=n: sum(isinstance(report, WorkerLost) for report in reports) == n)  # type: ignore[misc]
    until(lambda: len(cluster.launched) == 4)


@pytest.mark.parametrize("told", [False, True])
def test_a_node_that_ends_without_its_head_is_lost_for_that(cluster: FakeRay, told: bool) -> None:
    """Its processes end before Ray's driver here does, and Ray may say so."""
    reports: list[Report] = cluster.reports  # type: ignore[attr-defined]
    until(lambda: cluster.launched)
    connection = cluster.call()
    until(lambda: WorkerReady(0) in reports)
    cluster.head_trouble = "Ray's head does not answer"
    if told:
        cluster.tell(ProcessEnded(cluster.launched[0].name, "its actor died"))
    else:
        connection.close()
    until(lambda: any(isinstance(report, WorkerLost) for report in reports))
    connection.close()
    lost = next(report for report in reports if isinstance(report, WorkerLost))
    ended = "its actor died" if told else "its connection was closed"
    assert lost.why == f"{ended}; Ray's head does not answer"


def test_what_a_worker_did_not_live_to_tell_of_is_not_kept(cluster: FakeRay) -> None:
    """It kept three values, told of two, and one of these was dropped."""
    reports: list[Report] = cluster.reports  # type: ignore[attr-defined]
    until(lambda: len(cluster.launched) == 1)
    name = cluster.launched[0].name
    keeper = ObjectKeeper()
    for key in ("a", "b", "c"):
        keeper.keep(f"{name}/{key}", [key])
    keeper.keep("another/a", ["a"])
    connection = cluster.call()
    for call in ("a", "b"):
        connection.send_bytes(encode(Answer(call, {"image": Reference(f"{name}/{call}", 10)})))
    until(lambda: sum(isinstance(report, Answer) for report in reports) == 2)
    cluster.engine.drop([Reference(f"{name}/b", 10)])  # type: ignore[attr-defined]
    connection.close()
    until(lambda: cluster.abandoned)
    assert cluster.abandoned == [(name, (f"{name}/a",))]
    keeper.drop([f"{name}/b"])
    keeper.abandon(*cluster.abandoned[0])
    keeper.keep(f"{name}/late", ["late"])  # its last call came after its end
    assert [key for key in (f"{name}/{n}" for n in ("a", "b", "c", "late")) if keeper.find(key)] == [f"{name}/a"]
    assert keeper.find("another/a") == ["a"]
