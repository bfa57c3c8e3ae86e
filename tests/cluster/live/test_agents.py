"""Leases on real processes: preemption, early dispatch, ranks, pairs, and what becomes of them when something dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Client, Listener
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import pytest

from dovetail.cluster.live.agent_link import AgentErrand
from dovetail.cluster.live.checkpoints import JobFolder, KeptCheckpoint
from dovetail.cluster.live.executor import AgentExecutor, _AgentLine
from dovetail.cluster.live.launch import agent_folder, launch_here
from dovetail.cluster.live.nodes import ClusterNode, NodeAccelerator
from dovetail.cluster.live.wire import (
    AgentBeat,
    AgentConnection,
    LeaveNode,
    NodeLease,
    NodeLeases,
    NodeTrouble,
    ProcessEvent,
    TrainingCommand,
)
from tests.cluster.live.agents import PACED, SETTINGS, Cluster, cluster, due, planned, spares, started, stopped
from tests.processes import is_alive
from tests.waiting import PATIENCE_S, until


def checkpoint(folder: JobFolder) -> KeptCheckpoint:
    found = folder.current()
    assert found is not None
    return found


def test_a_preempted_job_goes_on_where_it_was(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(1)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 20)
        c.decide(planned(1, 0, ()), due("plan"))
        until(lambda: c.is_in("gone", 1, 1))
        assert not c.seen("exited", 1)
        saved = folder.saved
        assert saved > 20
        c.decide(stopped(1), started(1, 2, (1,)))
        until(lambda: c.steps(1) > saved)
        kept = checkpoint(folder)
        assert kept.epoch == 1
        assert json.loads((kept.path / "paced.json").read_text())["steps"] == saved
        assert [row["epoch"] for row in c.seen("progress", 1)][-1] == 2


@pytest.mark.parametrize(("gpus", "over"), [(False, "save_end 1.1"), (True, "exit 1.1")], ids=["emulated", "real"])
def test_a_process_is_up_before_its_turn_and_waits(gpus: bool, over: str, tmp_path: Path) -> None:
    with cluster(tmp_path, gpus=gpus) as c:
        c.job(1)
        c.job(2)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 5)
        c.decide(planned(1, 0, ()), planned(2, 1, (0,)), due("plan"))
        until(lambda: c.is_in("waiting", 2, 1))
        c.decide(stopped(1), started(2, 1, (0,)), due("round"))
        until(lambda: c.steps(2) > 5)
        events = c.events(1, 2)
        assert events.index("hello 2.1") < events.index(over) < events.index("go 2.1")


def test_who_would_follow_is_up_over_rounds_until_another_would(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        for job in (1, 2, 3):
            c.job(job)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 5)
        c.decide(spares({2: (0,)}))
        until(lambda: c.is_in("waiting", 2, 1))
        c.decide(due("round"))
        c.decide(spares({2: (0,), 3: (1,)}))
        until(lambda: c.is_in("waiting", 3, 1))
        assert c.is_in("waiting", 2, 1)
        c.decide(stopped(1), started(3, 1, (0,)), spares({2: (0,)}))  # where it was not expected to: it starts anew
        until(lambda: c.steps(3) > 5)
        c.decide(spares({}))
        until(lambda: not c.processes(2, 1))
        assert not c.seen("exited", 2)
        assert c.events(3).count("launch 3.1") == 2
        assert c.events(2).count("go 2.1") == 0


def test_who_was_killed_before_its_turn_begins_elsewhere_when_it_comes(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        for job in (1, 2):
            c.job(job)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 5)
        c.decide(spares({2: (0,)}))
        until(lambda: c.is_in("waiting", 2, 1))
        (pid,) = c.processes(2, 1)
        os.kill(pid, signal.SIGKILL)
        until(lambda: c.is_in("gone", 2, 1))
        c.begin(2, 1, 1)
        until(lambda: c.steps(2) > 5)
        assert not c.seen("exited", 2)


def test_a_plan_that_comes_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(2)
        c.job(1)
        c.begin(1, 1, 1)
        until(lambda: c.steps(1) > 5)  # who runs this script asks for its lease, and may be started ahead
        c.decide(planned(2, 1, (0,)), due("plan"))
        until(lambda: c.is_in("waiting", 2, 1))
        c.decide(stopped(1), due("round"))
        until(lambda: not c.processes(2, 1))
        c.begin(2, 1, 1)  # the same epoch, and another accelerator
        until(lambda: c.steps(2) > 5)
        assert not c.seen("exited", 2)
        assert folder.fence == 1


def test_an_agent_finds_again_what_a_killed_one_had_started(tmp_path: Path) -> None:
    with cluster(tmp_path, round_s=10.0) as c:  # another one is there long before the lease is over
        c.job(1)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 5)
        (pid,), agent = c.processes(1, 1), c.agent()
        os.kill(agent, signal.SIGKILL)
        until(lambda: not is_alive(agent))
        before = c.steps(1)
        until(lambda: c.steps(1) > before + 20)
        assert c.processes(1, 1) == [pid]
        assert not c.seen("exited", 1)
        assert c.agent() != agent


def test_what_a_plain_command_leaves_is_kept_though_its_agent_was_killed(tmp_path: Path) -> None:
    text = """
import os, pathlib, time
state = pathlib.Path(os.environ["DOVETAIL_CHECKPOINT_DIR"], "state")
state.write_text("half")
while not pathlib.Path("on").exists():
    time.sleep(0.01)
state.write_text("whole")
"""
    with cluster(tmp_path, round_s=10.0) as c:
        folder = c.job(1, (sys.executable, "-c", text))
        c.begin(1, 1, 0)
        until((folder.attempt(1) / "state").exists)
        agent = c.agent()
        os.kill(agent, signal.SIGKILL)
        until(lambda: not is_alive(agent))
        (folder.path / "on").touch()
        until(lambda: c.seen("completed", 1))
        assert (checkpoint(folder).path / "state").read_text() == "whole"
        assert c.seen("kept", 1)


def test_who_may_not_ask_for_its_lease_is_not_started_ahead_of_it(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(1, (sys.executable, "-c", "print('done')"))  # it knows nothing of leases, and nobody said so
        c.decide(planned(1, 1, (0,)), due("plan"))
        until(lambda: c.is_in("starting", 1, 1))
        assert "launch 1.1" not in c.events(1)
        c.decide(started(1, 1, (0,)), due("round"))
        until(lambda: c.seen("completed", 1))
        events = c.events(1)
        assert events.index("go 1.1") < events.index("launch 1.1")
        assert folder.log(1, 0).read_text() == "done\n"
        assert not c.seen("exited", 1)


def test_who_leaves_in_order_saves(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(1)
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) > 20)
        before = c.steps(1)
    assert folder.log(1, 0).read_text() == f"step {folder.saved}\n"
    assert folder.saved >= before


def test_an_agent_that_leaves_begins_nothing_any_more(tmp_path: Path) -> None:
    secret = str(tmp_path).encode()
    lease = NodeLease(1, 1, (0,), (0,), (-1,), "a", 1, TrainingCommand(PACED, str(tmp_path)), early=True)
    events: list[str] = []
    with Listener(("127.0.0.1", 0), authkey=secret) as listener:
        host, port = listener.address
        launch_here(AgentErrand("n", host, port, secret, agent_folder("n", secret)))
        agent = AgentConnection(listener.accept())
        with suppress(EOFError, OSError):  # when it has ended
            while True:
                message = agent.from_agent()
                if isinstance(message, ProcessEvent):
                    events.append(message.name)
                elif isinstance(message, AgentBeat):
                    if any(state.state == "waiting" for state in message.states):
                        agent.send(LeaveNode())
                    agent.send(NodeLeases(message.number, (lease,)))
        agent.close()
    assert events.count("launch") == 1


def test_who_dials_in_while_a_service_leaves_is_told_to_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cluster.live.executor._FIRST_WORD_S", 0.1)
    secret, commands = str(tmp_path).encode(), dict[int, TrainingCommand]()
    executor = AgentExecutor(
        SETTINGS, 1.0, commands.__getitem__, lambda rows: None, secret=secret, launch=lambda node, errand: None
    )

    def dial(name: str) -> AgentConnection:
        line = AgentConnection(Client((executor.host, executor.port), authkey=secret))
        line.send(AgentBeat(name, 1))
        return line

    for i, name in enumerate(("early", "late")):
        executor.add_node(ClusterNode(name, (NodeAccelerator("a"),)), range(i, i + 1))
    executor.restore({}, 0.0, 1.0)
    early = dial("early")
    assert isinstance(early.to_agent(), NodeLeases)
    closing = threading.Thread(target=executor.close, args=(True,))
    closing.start()
    assert early.to_agent() == LeaveNode()
    early.send(AgentBeat("early", 2))
    assert early.to_agent() == LeaveNode()
    late = dial("late")
    assert late.to_agent() == LeaveNode()
    early.close()
    late.close()
    closing.join()


def test_whoever_watches_may_have_a_lock_of_its_own(tmp_path: Path) -> None:
    asked: list[bool] = []

    def watch(message: object, now: float) -> None:
        other = threading.Thread(target=lambda: c.executor.lose_node("nobody"))
        other.start()
        other.join(PATIENCE_S)
        asked.append(other.is_alive())

    with cluster(tmp_path) as c:
        c.executor._watch = watch
        c.job(1)
        c.begin(1, 1, 0)
        until(lambda: asked)
        assert not any(asked)


def test_who_does_not_prove_who_it_is_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.cluster.live.executor._PROOF_S", 0.2)
    with cluster(tmp_path) as c, socket.create_connection(("127.0.0.1", c.port)) as stranger:
        while stranger.recv(4096):  # a challenge, and then the end
            pass


def test_an_agent_that_does_not_read_holds_up_nobody() -> None:
    near, far = Pipe()
    line = _AgentLine(near)
    big = NodeLeases(1, (), tuple((i, i) for i in range(1_000_000)))
    for _ in range(3):
        line.say(big)  # more than any buffer takes, and nobody reads
    line.close()
    far.close()


def test_a_killed_process_is_told_of_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(1)
        c.begin(1, 1, 0)
        until(lambda: folder.saved > 0)
        until(lambda: c.steps(1) > folder.saved)
        (pid,) = c.processes(1, 1)
        os.kill(pid, signal.SIGKILL)
        until(lambda: c.seen("exited", 1))
        assert c.seen("exited", 1) == [{"id": 1, "epoch": 1, "why": "its process was ended by SIGKILL"}]
        saved = folder.saved
        c.decide(stopped(1), started(1, 2, (0,)))
        until(lambda: c.seen("progress", 1)[-1]["epoch"] == 2)
        assert c.seen("progress", 1)[-1]["steps"] >= saved


def test_a_job_of_a_stopped_agent_goes_on_elsewhere_and_its_old_lease_is_fenced(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=("left", "right")) as c:
        folder = c.job(1)
        c.begin(1, 1, 0)
        until(lambda: folder.saved > 0)
        agent = c.agent("left")
        with folder._locked():  # who is stopped with the lock holds up its job until it goes on
            os.kill(agent, signal.SIGSTOP)
        until(lambda: any(rows.of == "failed" for rows in list(c.rows)))
        assert next(rows for rows in c.rows if rows.of == "failed").columns["device"] == [0, 1]
        c.decide(stopped(1), started(1, 2, (2,)))
        until(lambda: c.is_in("running", 1, 2))
        assert not c.processes(1, 1, "left")  # its shim ended it with its lease, though nobody told it to
        until(lambda: checkpoint(folder).epoch == 2)
        os.kill(agent, signal.SIGCONT)
        until(lambda: any(rows.of == "mended" for rows in list(c.rows)))
        until(lambda: not Path(c.home("left"), "runs", "1.1").exists())
        assert checkpoint(folder).epoch == 2
        c.job(2)
        c.begin(2, 1, 0)
        until(lambda: c.steps(2) > 5)


def test_what_a_plain_command_wrote_on_a_lost_node_is_what_it_finds_elsewhere(tmp_path: Path) -> None:
    text = """
import os, pathlib, time
state = pathlib.Path(os.environ["DOVETAIL_CHECKPOINT_DIR"], "state")
pathlib.Path(os.environ["DOVETAIL_EPOCH"]).write_text(state.read_text() if state.exists() else "nothing")
state.write_text("of a lost node")
time.sleep(1000)
"""
    with cluster(tmp_path, nodes=("left", "right")) as c:
        folder = c.job(1, (sys.executable, "-c", text), checkpoint="own")
        c.begin(1, 1, 0)
        until((folder.attempt(1) / "state").exists)
        os.kill(c.agent("left"), signal.SIGSTOP)
        until(lambda: any(rows.of == "failed" for rows in list(c.rows)))
        c.decide(stopped(1), started(1, 2, (2,)))
        found = folder.path / "2"
        until(lambda: found.exists() and found.read_text())
        assert found.read_text() == "of a lost node"
        assert not c.processes(1, 1, "left")


@pytest.mark.parametrize("devices", [(0, 1), (1, 2)], ids=["on one node", "on two"])
def test_all_ranks_stop_at_the_same_step(devices: tuple[int, int], tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=("left", "right")) as c:
        trace = tmp_path / "trace"
        folder = c.job(1, (sys.executable, "-m", "tests.cluster.live.lockstep_job", str(trace), "50"), cwd=os.getcwd())
        c.begin(1, 1, *devices)
        until(lambda: c.steps(1) > 5)
        c.decide(planned(1, 0, ()), due("plan"))
        until(lambda: c.is_in("gone", 1, 1) and not any(c.processes(1, 1, name) for name in c.names))  # on every node
        stops = [Path(f"{trace}.1.{rank}").read_text().splitlines()[-1] for rank in range(2)]
        assert stops == [f"stops at {folder.saved}"] * 2
        assert not c.seen("exited", 1)


def test_ranks_that_leave_a_node_before_rank_0_has_saved_elsewhere_have_not_failed(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=("left", "right")) as c:
        words = (*PACED[:3], "--rates", "a=50", "--steps", "20", "--save-s", "0.5")
        folder = c.job(1, words, total_steps=20)
        c.begin(1, 1, 1, 2)
        until(lambda: c.seen("completed", 1) or c.seen("exited", 1))
        assert not c.seen("exited", 1)
        assert folder.saved == 20


def test_two_jobs_share_an_accelerator(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        words = (sys.executable, "-c", "import os; print(os.environ.get('DOVETAIL_BESIDE'))")
        c.job(1, model="lm")
        folder = c.job(2, words, checkpoint="own")
        c.decide(started(1, 1, (0,), 2), started(2, 1, (0,), 1))
        until(lambda: c.seen("completed", 2))
        assert folder.log(1, 0).read_text() == "lm\n"
        c.decide(stopped(1), stopped(2), started(1, 1, (0,)))  # who was beside goes on alone, in the same lease
        before = c.steps(1)
        until(lambda: c.steps(1) > before + 20)
        assert c.states(1, 1) == ["starting", "running"]


def test_who_starts_agents_learns_why_none_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each reason, though it is tried again and again."""
    monkeypatch.setattr("dovetail.cluster.live.executor._LAUNCH_S", 0.01)
    told: SimpleQueue[tuple[str, str]] = SimpleQueue()
    reasons = iter(["no room", "no room", "no room", "no room"])

    def launch(node: ClusterNode, errand: AgentErrand) -> None:
        if why := next(reasons, ""):
            raise OSError(why)
        Path(errand.folder).mkdir(exist_ok=True)
        Path(errand.folder, "agent.log").write_text("Traceback\nNo module named 'numpy'\n\n")

    commands: dict[int, TrainingCommand] = {}
    executor = AgentExecutor(
        SETTINGS,
        1.0,
        commands.__getitem__,
        lambda rows: None,
        secret=str(tmp_path).encode(),
        launch=launch,
        trouble=lambda *words: told.put(words),
    )
    folder = agent_folder("n", str(tmp_path).encode())
    try:
        executor.add_node(ClusterNode("n", (NodeAccelerator("a"),)), range(1))
        executor.restore({}, 0.0, 1.0)
        assert [told.get(timeout=PATIENCE_S) for _ in range(2)] == [("n", "no room"), ("n", "No module named 'numpy'")]
    finally:
        executor.close()
        shutil.rmtree(folder, ignore_errors=True)


def troubles(c: Cluster) -> list[str]:
    return [each.why for each in list(c.said) if isinstance(each, NodeTrouble)]


def test_a_folder_that_is_full_takes_the_node_down_and_blames_no_job(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        until(lambda: c.executor._lines)
        full = Path(c.home(), "room")
        full.mkdir()  # nobody can write there
        c.job(1)
        c.begin(1, 1, 0)
        until(lambda: any(rows.of == "failed" for rows in list(c.rows)))
        until(lambda: troubles(c) == [f"the folder of its agent, {c.home()}: Is a directory"])
        c.decide(stopped(1))  # as the rounds would
        until(lambda: c.is_in("gone", 1, 1))
        up = len(c.rows)
        full.rmdir()
        until(lambda: any(rows.of == "mended" for rows in list(c.rows)[up:]))
        until(lambda: troubles(c)[1:] == [""])
        c.begin(1, 2, 0)
        until(lambda: c.steps(1) > 5)
        assert not c.seen("exited", 1)


@pytest.mark.parametrize("checkpoint", ["iterator", "pause"])
def test_a_folder_that_is_removed_is_made_again(checkpoint: Literal["iterator", "pause"], tmp_path: Path) -> None:
    """Once those are gone that were started from it: their leases cannot be extended any more."""
    with cluster(tmp_path) as c:
        plain = (sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)")
        job = c.job(1, PACED if checkpoint == "iterator" else plain, checkpoint=checkpoint)
        c.begin(1, 1, 0)
        until(lambda: c.is_in("running", 1, 1) and c.processes(1, 1))
        (pid,) = c.processes(1, 1)
        if checkpoint == "iterator":
            until(lambda: c.steps(1) > 5)
        shutil.move(c.home(), tmp_path / "gone")  # at once, while it is written to
        until(lambda: any(rows.of == "failed" for rows in list(c.rows)))
        assert troubles(c) == [f"the folder of its agent, {c.home()}, was removed"]
        up = len(c.rows)
        c.decide(stopped(1))
        until(lambda: any(rows.of == "mended" for rows in list(c.rows)[up:]))
        assert not is_alive(pid)
        c.job(2)
        c.begin(2, 1, 0)
        until(lambda: c.steps(2) > 5)
        assert not c.seen("exited", 1)
        assert not c.seen("exited", 2)
        assert checkpoint == "pause" or job.saved > 0
