"""Workers on the nodes of a real Ray cluster: what is commanded is reported, and whatever dies is missed."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import pytest

from dovetail.core.errors import InputError
from dovetail.core.service.ray_start import RayNode
from dovetail.workflow.live.engines.ray import RayWorkers
from dovetail.workflow.live.engines.ray_gpus import gpus_of
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    BackEndError,
    CallFailed,
    Loaded,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    WorkerLost,
    WorkerReady,
    WorkersJoined,
)
from tests.ray_nodes import RayNodes, ray_nodes
from tests.waiting import PATIENCE_S, until

pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
R = TypeVar("R")
HERE = Path(__file__).parent
MODELS: dict[str, dict[str, Any]] = {
    "words": {"emulated": {"token_mean": 5, "tokens_per_second": 1000}},
    "slow": {"emulated": {"call_s": 1e6}},
    **{name: {"factory": f"{HERE / 'ray_models.py'}:{name}"} for name in ("where", "painter", "critic")},
}
SERVED = {name: ServedModel(name=name, source=source) for name, source in MODELS.items()}
HEADLESS_S = 8  # so long do nodes and drivers go on without a head


class Engine:
    """An engine, and what it reports."""

    def __init__(self, address: str | None, **options: Any) -> None:
        self.engine = RayWorkers(address, **options)
        self._reports: Queue[Report] = Queue()
        self.engine.start(SERVED, self._reports.put)

    def next(self, kind: type[R], true: Callable[[R], bool] = lambda _: True) -> R:
        while True:
            report = self._reports.get(timeout=PATIENCE_S)
            if isinstance(report, kind) and true(report):
                return report

    def ready(self, count: int) -> set[int]:
        return {self.next(WorkerReady).worker for _ in range(count)}

    def load(self, worker: int, model: str) -> None:
        self.engine.load(worker, model, (worker,))
        self.next(Loaded, lambda report: (report.worker, report.model) == (worker, model))

    def call(self, worker: int, model: str, **inputs: Any) -> dict[str, Any]:
        """Load it, and call it."""
        self.load(worker, model)
        self.engine.call(worker, ModelCall(id=model, model=model, inputs=inputs))
        return self.next(Answer).outputs

    def begin(self, worker: int) -> None:
        """A call without an end."""
        self.load(worker, "slow")
        self.engine.call(worker, ModelCall(id=f"slow {worker}", model="slow", inputs={}))

    def fetch(self, reference: Reference) -> Any:
        found: Queue[Any] = Queue()
        self.engine.fetch(reference, found.put)
        return found.get(timeout=PATIENCE_S)

    def pid(self, worker: int) -> int:
        return int(self.engine.status()[worker]["pid"])


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """The environment in which a private cluster of ours is joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEADLESS_S))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def head(quiet: None) -> Iterator[RayNodes]:
    """A cluster of a node without GPUs."""
    with ray_nodes(RAY_gcs_rpc_server_reconnect_timeout_s=str(HEADLESS_S)) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(head: RayNodes) -> RayNodes:
    """Beside the head, two nodes with two GPUs each."""
    head.add("left", "right", dovetail_gpu__a100=2)
    return head


@pytest.fixture
def engine(nodes: RayNodes) -> Iterator[Engine]:
    made = Engine(nodes.address, types=["a100", "l4"], silence_s=60.0, reference_bytes=1 << 16)
    try:
        made.ready(len(made.engine.places))
        yield made
    finally:
        made.engine.close()


def test_cluster_without_gpus(head: RayNodes) -> None:
    with pytest.raises(InputError, match="has a GPU, nor the resource dovetail_gpu"):
        RayWorkers(head.address)


def test_workers_on_all_nodes(engine: Engine) -> None:
    places = engine.engine.places
    assert [place.type for place in places] == ["a100"] * 4
    assert [place.host == places[0].host for place in places] == [True, True, False, False]
    told = [engine.call(worker, "where") for worker in range(4)]
    assert told[0]["node"] == told[1]["node"] != told[2]["node"] == told[3]["node"]
    assert [each["pid"] for each in told] == [engine.pid(worker) for worker in range(4)]
    engine.load(1, "words")
    engine.engine.call(1, ModelCall(id="stream", model="words", inputs={"prompt": "one two"}, stream=True))
    pieces = [engine.next(AnswerPiece).text for _ in range(5)]
    answer = engine.next(Answer)
    assert ("".join(pieces), answer.read, answer.written) == (answer.outputs["text"], 2, 5)
    engine.begin(3)
    engine.engine.cancel(3, "slow 3")
    assert engine.next(Answer).call == "slow 3"


def test_large_values_go_from_node_to_node(engine: Engine) -> None:
    small = engine.call(0, "painter", pixels=1000)
    assert small["image"].sum() == 2000
    large = engine.call(0, "painter", pixels=1_000_000)
    image = large["image"]
    assert isinstance(image, Reference)
    assert image.bytes > 1_000_000
    seen = engine.call(2, "critic", image=image)
    assert seen["score"] == 2_000_000
    assert seen["node"] != large["node"]
    assert engine.fetch(image).sum() == 2_000_000
    os.kill(engine.pid(0), signal.SIGKILL)  # what it has made outlives it, once there is a copy
    engine.next(WorkerReady)
    assert engine.call(1, "critic", image=image)["score"] == 2_000_000
    engine.engine.drop([image])
    until(lambda: isinstance(engine.fetch(image), BackEndError))  # the order is carried out beside others
    lost = engine.fetch(image)
    assert isinstance(lost, BackEndError)
    assert "nothing is kept" in str(lost)
    engine.engine.call(1, ModelCall(id="too late", model="critic", inputs={"image": image}))
    failed = engine.next(CallFailed)
    assert (failed.call, failed.blame) == ("too late", "call")
    assert "its input 'image' was lost" in failed.why


def test_a_worker_that_dies_comes_back_empty(engine: Engine) -> None:
    engine.begin(0)
    before = engine.pid(0)
    os.kill(before, signal.SIGKILL)
    assert engine.next(WorkerLost).worker == 0
    assert engine.next(WorkerReady).worker == 0
    assert engine.pid(0) != before
    engine.engine.call(0, ModelCall(id="anew", model="slow", inputs={}))
    assert "is not loaded here" in engine.next(CallFailed).why
    engine.engine.restart(2, "it was asked for")
    lost = engine.next(WorkerLost)
    assert (lost.worker, lost.why) == (2, "it was asked for")
    assert engine.next(WorkerReady).worker == 2


def test_a_worker_that_is_stopped_is_missed(nodes: RayNodes) -> None:
    made = Engine(nodes.address, types=["a100"], silence_s=3.0)
    try:
        made.ready(4)
        stopped = made.pid(3)
        os.kill(stopped, signal.SIGSTOP)
        lost = made.next(WorkerLost, lambda report: report.worker == 3)
        assert lost.why == "it was silent for 3 s"
        made.next(WorkerReady, lambda report: report.worker == 3)
        until(lambda: not Path("/proc", str(stopped)).exists())
    finally:
        made.engine.close()


def test_nodes_go_come_back_and_join(nodes: RayNodes, engine: Engine) -> None:
    made = engine.call(2, "painter", pixels=1_000_000)
    engine.begin(0)
    nodes.kill("left")
    nodes.kill("right")
    assert {engine.next(WorkerLost).worker for _ in range(4)} == {0, 1, 2, 3}
    until(lambda: {row["state"] for row in engine.engine.status()} == {"gone"})
    assert engine.fetch(made["image"]).sum() == 2_000_000  # its node is gone, and the copy is not
    nodes.add("left", dovetail_gpu__a100=2)
    back = engine.ready(2)
    assert back in ({0, 1}, {2, 3})
    nodes.add("new", dovetail_gpu__l4=1)
    joined = engine.next(WorkersJoined)
    assert [place.type for place in joined.places] == ["l4"]
    assert engine.next(WorkerReady).worker == 4
    assert engine.engine.places[4:] == joined.places
    assert engine.call(4, "where")["pid"] == engine.pid(4)
    nodes.add("right", dovetail_gpu__a100=2)
    assert engine.ready(2) | back == {0, 1, 2, 3}
    nodes.add("strange", dovetail_gpu__b200=1)
    until(lambda: engine.engine.refused)
    assert "'b200', and the configuration's gpu_types are a100, l4" in engine.engine.refused
    nodes.kill("strange")
    nodes.kill("new")


def test_a_head_that_is_gone_is_waited_for(nodes: RayNodes, engine: Engine) -> None:
    """The service outlives what Ray does to its drivers; what runs is not disturbed before that."""
    engine.begin(1)
    engine.load(0, "where")
    nodes.kill_head()
    until(lambda: "does not answer" in engine.engine.status()[0].get("trouble", ""))
    engine.engine.call(0, ModelCall(id="where", model="where", inputs={}))
    assert engine.next(Answer).outputs["pid"] == engine.pid(0)
    count = len(engine.engine.places)
    lost = [engine.next(WorkerLost) for _ in range(4)]
    assert sorted(report.worker for report in lost) == [0, 1, 2, 3]
    assert all("does not answer" in report.why for report in lost)
    nodes.restart()
    nodes.add("left", "right", dovetail_gpu__a100=2)
    assert engine.ready(4) == {0, 1, 2, 3}
    assert len(engine.engine.places) == count
    assert engine.call(2, "where")["pid"] == engine.pid(2)


def test_no_cluster_there(quiet: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InputError, match=f"--address 127.0.0.1:{port}: no Ray cluster can be reached there"):
        RayWorkers(f"127.0.0.1:{port}")


def test_private_ray_is_quiet_and_on_loopback(quiet: None, capfd: pytest.CaptureFixture[str]) -> None:
    made = Engine(None, gpus=["l4", "a100"], types=["a100", "l4"])
    try:
        made.ready(2)
        assert sorted(place.type for place in made.engine.places) == ["a100", "l4"]
        os.kill(made.pid(0), signal.SIGKILL)  # which Ray tells everybody
        made.next(WorkerReady)
        assert made.call(0, "words", prompt="one")["text"]
        children = _descendants(os.getpid())
        listening = _listening(children)
        assert len(listening) > 3
        assert {address for address in listening if address != "127.0.0.1"} == set()
    finally:
        made.engine.close()
    assert capfd.readouterr() == ("", "")


def _descendants(root: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(words[1])
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new} - found
    return found - {root}


def _listening(pids: set[int]) -> list[str]:
    """The addresses at which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path("/proc", str(pid), "fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                raw = bytes.fromhex(words[1].partition(":")[0])
                parts = [raw[i : i + 4][:: -1 if sys.byteorder == "little" else 1] for i in range(0, len(raw), 4)]
                found.append(socket.inet_ntop(family, b"".join(parts)).removeprefix("::ffff:"))
    return found


def test_gpus_of_unknown_type_are_named() -> None:
    node = RayNode("1", "box", "10.0.0.1", {"GPU": 1.0, "accelerator_type:H100": 1.0})
    with pytest.raises(InputError, match=r"Ray node box has GPUs of type 'H100', and the .* gpu_types are a100, l4"):
        gpus_of(node, ["a100", "l4"])
