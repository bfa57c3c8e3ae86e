"""Processes that do not do what they should, and plain ones that know nothing of leases: contained, one and all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from dovetail.cluster.live.agent_env import SharedGpus, environment
from dovetail.cluster.live.wire import NodeLease, TrainingCommand
from dovetail.cluster.rounding import records
from tests.cluster.live.agents import PACED, Cluster, cluster, due, planned, started, stopped
from tests.processes import is_alive, parent_of, stat_of
from tests.waiting import until

HELLO = """
import json, os, signal, socket, subprocess, sys, time
from pathlib import Path
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["DOVETAIL_AGENT"])
answers = line.makefile()
def ask(what, **fields):
    line.sendall(json.dumps({"ask": what, **fields}).encode() + b"\\n")
    return json.loads(answers.readline())
who = {name: int(os.environ["DOVETAIL_" + name.upper()]) for name in ("job", "epoch", "rank")}
lease = ask("hello", pid=os.getpid(), **who)
mine = Path(os.environ["DOVETAIL_CHECKPOINT_DIR"])
"""


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", HELLO + text)


def why(c: Cluster, job: int = 1) -> str:
    until(lambda: c.seen("exited", job))
    return str(c.seen("exited", job)[0]["why"])


def test_who_ignores_its_lease_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 1000 & echo $! > child; exec sleep 1000"])
ask("progress", steps=9, seconds=1.0)
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        child = folder.path / "child"
        until(lambda: child.exists() and child.read_text().strip())
        until(lambda: c.steps(1) == 9)
        grandchild = int(child.read_text())
        assert is_alive(grandchild)
        c.decide(planned(1, 0, ()), due("plan"))
        assert why(c) == "it did not stop at the end of its lease, and was killed"
        assert not is_alive(grandchild)
        c.decide(stopped(1))
        c.job(2)
        c.begin(2, 1, 0)  # its accelerator is free
        until(lambda: c.steps(2) > 5)


def test_a_process_that_leaves_a_daemon_behind_is_gone_when_that_is(tmp_path: Path) -> None:
    text = """
os.fork() and os._exit(0)
os.setsid()
Path("daemon.part").write_text(str(os.getpid()))
Path("daemon.part").rename("daemon")  # it may be killed at any moment
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        assert why(c) == "it left before its lease ended"
        daemon = folder.path / "daemon"
        assert not daemon.exists() or not is_alive(int(daemon.read_text()))


def test_what_a_killed_parent_leaves_behind_is_ended(tmp_path: Path) -> None:
    text = """
subprocess.Popen(["setsid", "sh", "-c", "echo $$ > child; exec sleep 1000"])
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        child = folder.path / "child"
        until(lambda: child.exists() and child.read_text().strip())
        (pid,) = c.processes(1, 1)
        parent = parent_of(pid)
        assert parent is not None
        os.kill(parent, signal.SIGKILL)
        assert why(c) == "its parent process ended: it was killed"
        until(lambda: not is_alive(pid) and not is_alive(int(child.read_text())))


@pytest.mark.parametrize("dies_too", [False, True], ids=["its program lives", "its program dies, too"])
def test_what_a_killed_parent_leaves_behind_is_ended_without_an_environment_of_ours(
    dies_too: bool, tmp_path: Path
) -> None:
    text = """
helpers = [subprocess.Popen(["sleep", "1000"], env={}, start_new_session=apart) for apart in (False, True)]
Path("helpers.part").write_text(" ".join(str(helper.pid) for helper in helpers))
Path("helpers.part").rename("helpers")
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        helpers = folder.path / "helpers"
        until(helpers.exists)
        near, apart = map(int, helpers.read_text().split())
        (pid,) = c.processes(1, 1)
        until(lambda: not Path(f"/proc/{pid}/environ").read_bytes())
        parent = parent_of(pid)
        assert parent is not None
        if dies_too:
            os.kill(parent, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not is_alive(pid))
            os.kill(apart, signal.SIGKILL)  # nothing tells any more whose it is
        os.kill(parent, signal.SIGKILL)
        assert why(c) == "its parent process ended: it was killed"
        until(lambda: not any(map(is_alive, (pid, near, apart))))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), "its process ended with exit code 3"),
        ((sys.executable, "-c", "1 / 0"), "its process ended with exit code 1: ZeroDivisionError: division by zero"),
        (("/no/such/program",), "cannot run /no/such/program: No such file or directory"),
    ],
    ids=["exits at once", "raises", "cannot be run"],
)
def test_a_command_that_fails_at_once_is_told_of(words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        c.job(1, words)
        c.begin(1, 1, 0)
        assert why(c) == expected
        assert c.seen("exited", 1)[0].get("final", False) == expected.startswith("cannot run")
        c.decide(stopped(1), started(1, 2, (0,)))
        until(lambda: len(c.seen("exited", 1)) == 2)
        assert c.seen("exited", 1)[1]["epoch"] == 2


def test_a_folder_that_grows_too_large_ends_its_job(tmp_path: Path) -> None:
    text = """
with open(mine / "much", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
        time.sleep(0.02)
"""
    with cluster(tmp_path) as c:
        c.job(1, script(text), most_mib=8.0)
        c.job(2, most_mib=8.0)
        c.decide(started(1, 1, (0,)), started(2, 1, (1,)))
        assert "more than the 8 MiB of job_mib" in why(c)
        before = c.steps(2)
        until(lambda: c.steps(2) > before + 20)


def test_who_asks_and_never_listens_holds_up_nobody(tmp_path: Path) -> None:
    text = """
try:
    while True:
        line.sendall(b'{"ask":"progress","steps":1,"seconds":0.1}\\n' * 100)
except OSError:
    (mine.parents[1] / "cut").touch()
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["DOVETAIL_AGENT"])
line.sendall(b'nonsense\\n{"ask":"renew","steps":1,"seconds":1}\\n')
answers = line.makefile()
Path("told").write_text(answers.readline() + answers.readline())
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.job(2)
        c.decide(started(1, 1, (0,)), started(2, 1, (1,)))
        told = folder.path / "told"
        until(lambda: told.exists() and told.read_text().count("\n") == 2)
        assert (folder.path / "cut").exists()
        first, second = told.read_text().splitlines()
        assert "not understood" in first
        assert "expected hello first" in second
        before = c.steps(2)
        until(lambda: c.steps(2) > before + 20)
        assert not c.seen("exited", 2)


def test_nothing_that_a_process_says_ends_its_agent(tmp_path: Path) -> None:
    text = """
told = [ask("progress", steps=10**30, seconds=1.0), ask("commit", steps=-1)]
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["DOVETAIL_AGENT"])
answers = line.makefile()
told += [ask("hello", pid=1, **who | {"rank": 9}), ask("progress", steps=1, seconds=1.0)]
Path("told.part").write_text(json.dumps(told))
Path("told.part").rename("told")
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.job(2)
        c.decide(started(1, 1, (0,)), started(2, 1, (1,)))
        until(lambda: c.steps(2) > 5)
        agent = c.agent()
        until(lambda: (folder.path / "told").exists())
        told = json.loads((folder.path / "told").read_text())
        assert [each.get("ok") for each in told] == [False] * 4
        assert "rank 9 of job 1 does not run here" in told[2]["why"]
        before = c.steps(2)
        until(lambda: c.steps(2) > before + 20)
        assert c.agent() == agent


def test_at_the_end_of_a_lease_the_program_alone_is_told(tmp_path: Path) -> None:
    """Its data loaders must live until it has saved."""
    text = """
def stop(*_):
    time.sleep(0.2)
    (mine / "model").write_text(str(helper.poll()))
    ask("commit", steps=10, last=True)
    helper.kill()
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
helper = subprocess.Popen(["sleep", "1000"])
ask("progress", steps=9, seconds=1.0)
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        until(lambda: c.steps(1) == 9)
        c.decide(planned(1, 0, ()), due("plan"))
        until(lambda: c.is_in("gone", 1, 1))
        current = folder.current()
        assert current is not None
        assert (current.path / "model").read_text() == "None"
        assert not c.seen("exited", 1)


def test_who_hangs_is_ended_however_often_its_lease_is_renewed(tmp_path: Path) -> None:
    with cluster(tmp_path, round_s=0.5, lease_s=60.0) as c:
        c.job(1, script("time.sleep(1000)"))
        c.begin(1, 1, 0)
        assert why(c) == "it has not said a word for 5 rounds"


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("exec sleep 1000", "it has not said a word for 5 rounds"),
        ("exit 0", "it has not asked for its lease"),
    ],
    ids=["hangs", "leaves"],
)
def test_who_has_counted_steps_and_does_not_ask_for_its_next_lease_has_failed(
    then: str, expected: str, tmp_path: Path
) -> None:
    with cluster(tmp_path, lease_s=60.0) as c:
        again = f'[ "$DOVETAIL_EPOCH" = 1 ] && exec "$@"; {then}'
        folder = c.job(1, ("sh", "-c", again, "sh", *PACED))
        c.begin(1, 1, 0)
        until(lambda: folder.saved > 0)
        c.decide(stopped(1))
        until(lambda: c.is_in("gone", 1, 1))
        c.begin(1, 2, 0)
        until(lambda: c.seen("completed", 1) or c.seen("exited", 1))
        assert not c.seen("completed", 1)
        assert why(c) == expected
        assert not c.seen("kept", 1)


def test_half_a_checkpoint_is_never_the_next_ones_beginning(tmp_path: Path) -> None:
    text = """
if lease.get("done"):
    print((mine / "model").read_text(), flush=True)
(mine / "model").write_text("whole")
assert ask("commit", steps=10) == {}
(mine / "model").write_text("ha")
os.kill(os.getpid(), signal.SIGKILL)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        assert why(c) == "its process was ended by SIGKILL"
        assert (folder.attempt(1) / "model").read_text() == "ha"
        c.decide(stopped(1), started(1, 2, (0,)))
        until(lambda: len(c.seen("exited", 1)) == 2)
        assert folder.log(2, 0).read_text() == "whole\n"
        assert c.seen("progress", 1)[-1]["saved"] == 10


def test_an_older_lease_cannot_commit(tmp_path: Path) -> None:
    text = """
(mine / "model").write_text("old")
while not (mine.parents[1] / "try").exists():
    time.sleep(0.01)
(mine.parents[1] / "tried").write_text(json.dumps(ask("commit", steps=10, last=True)))
time.sleep(1000)
"""
    with cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        c.begin(1, 1, 0)
        until(lambda: (folder.attempt(1) / "model").exists())
        folder.raise_fence(2)
        (folder.path / "try").touch()
        until(lambda: (folder.path / "tried").exists() and (folder.path / "tried").read_text())
        assert "the lease of epoch 1 is over: epoch 2 has begun" in (folder.path / "tried").read_text()
        assert folder.current() is None


PLAIN = """
import os, signal, sys, time
from pathlib import Path
mine = Path(os.environ["DOVETAIL_CHECKPOINT_DIR"], "steps")
done = int(mine.read_text()) if mine.exists() else 0
def stop(*_):
    mine.with_suffix(".part").write_text(str(done))
    mine.with_suffix(".part").replace(mine)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while not Path("enough").exists():
    done += 1
    Path("done.part").write_text(str(done))
    Path("done.part").replace("done")  # a reader sees all of it or what was there before
    time.sleep(0.01)
"""


def done_by(c: Cluster, job: int = 1) -> int:
    path = c.folder / "jobs" / str(job) / "done"
    return int(path.read_text()) if path.exists() else 0


def test_a_plain_command_is_stopped_by_a_signal_and_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        folder = c.job(1, (sys.executable, "-c", PLAIN), checkpoint="own")
        c.begin(1, 1, 0)
        until(lambda: done_by(c) > 5)
        c.decide(planned(1, 0, ()), due("plan"))
        c.decide(stopped(1))
        until(lambda: c.is_in("gone", 1, 1))
        current = folder.current()
        assert current is not None
        kept = int((current.path / "steps").read_text())
        assert kept > 5
        (folder.path / "done").unlink()
        c.begin(1, 2, 1)
        until(lambda: done_by(c))
        assert done_by(c) > kept
        (folder.path / "enough").touch()
        until(lambda: c.seen("completed", 1))
        assert not c.seen("exited", 1)


FORGETFUL = """
import sys, time
from pathlib import Path
while True:
    print("works", flush=True)
    if len(sys.argv) > 1:
        Path("model").write_text("saved")
    time.sleep(0.1)
"""


@pytest.mark.parametrize("saves", [False, True])
def test_a_command_that_had_its_turn_and_saved_nothing_has_failed(tmp_path: Path, saves: bool) -> None:
    """Where it saves is its own business."""
    with cluster(tmp_path) as c:
        runs = tmp_path / "runs"
        runs.mkdir()
        words = (sys.executable, "-c", FORGETFUL, *(["saves"] if saves else []))
        folder = c.job(1, words, checkpoint="own", cwd=str(runs))
        c.begin(1, 1, 0)
        log = folder.log(1, 0)
        until(lambda: log.exists() and log.read_text().count("works") > 21)  # more than a round
        c.decide(planned(1, 0, ()), due("plan"))
        until(lambda: c.is_in("gone", 1, 1))
        if saves:
            until(lambda: c.seen("kept", 1))
            assert not c.seen("exited", 1)
        else:
            assert why(c) == "its turn was over and it had saved nothing, so it begins anew"
            assert not c.seen("kept", 1)


@pytest.mark.parametrize("checkpoint", ["own", "iterator"])
@pytest.mark.parametrize("saves", [False, True])
def test_who_fails_has_saved_what_is_in_its_checkpoint_folder_alone(
    tmp_path: Path, checkpoint: Literal["own", "iterator"], saves: bool
) -> None:
    """In a folder that it shares with others, something is always new."""
    place = "os.environ['DOVETAIL_CHECKPOINT_DIR'] + '/model'" if saves else "'log'"
    with cluster(tmp_path) as c:
        (runs := tmp_path / "runs").mkdir()
        words = (sys.executable, "-c", f"import os; open({place}, 'w').write('x'); raise SystemExit(3)")
        c.job(1, words, checkpoint=checkpoint, cwd=str(runs))
        c.begin(1, 1, 0)
        assert why(c) == "its process ended with exit code 3"
        assert bool(c.seen("kept", 1)) == saves, "which is told before"


def test_a_turn_that_was_cut_short_is_no_failure(tmp_path: Path) -> None:
    with cluster(tmp_path, round_s=60.0, lease_s=2.0) as c:
        folder = c.job(1, (sys.executable, "-c", FORGETFUL), checkpoint="own", cwd=str(tmp_path / "jobs"))
        c.begin(1, 1, 0)
        log = folder.log(1, 0)
        until(lambda: log.exists() and log.read_text().count("works") > 2)
        c.decide(stopped(1))  # in the middle of a round
        until(lambda: c.is_in("gone", 1, 1))
    assert not c.seen("exited", 1)


def test_a_paused_command_stays_in_memory_and_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path) as c:
        c.job(1, (sys.executable, "-c", PLAIN), checkpoint="pause")
        c.job(2)
        c.begin(1, 1, 0)
        until(lambda: done_by(c) > 5)
        (pid,) = c.processes(1, 1)
        c.decide(planned(1, 0, ()), due("plan"))
        until(lambda: c.is_in("paused", 1, 1))
        c.decide(stopped(1), started(2, 1, (0,)))  # its accelerator is another's now
        until(lambda: c.steps(2) > 5)
        assert stat_of(pid)[0] == "T"
        c.decide(planned(2, 0, ()), due("plan"))
        until(lambda: c.is_in("gone", 2, 1))
        before = done_by(c)
        c.decide(stopped(2), started(1, 2, (0,)))
        until(lambda: done_by(c) > before + 5)
        assert is_alive(pid)
        # Elsewhere it cannot go on: it is ended, and starts from its checkpoint.
        c.decide(planned(1, 3, (1,)), due("plan"))
        until(lambda: c.is_in("paused", 1, 2))
        c.decide(stopped(1), started(1, 3, (1,)))
        until(lambda: c.is_in("running", 1, 3))
        assert not is_alive(pid)
        at = done_by(c)
        until(lambda: done_by(c) > at)
        assert not c.seen("exited", 1)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        until(lambda: not subprocess.run(["umount", folder], capture_output=True).returncode)


def test_a_full_disk_fails_its_job_and_nobody_else(tmp_path: Path) -> None:
    text = """
try:
    with open(mine / "much", "wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
except OSError:
    pass
answer = ask("commit", steps=10)
os._exit(7 if "No space left" in answer.get("why", "") else 8)
"""
    with small_disk(tmp_path / "small") as small, cluster(tmp_path) as c:
        folder = c.job(1, script(text))
        (tmp_path / "jobs").mkdir(exist_ok=True)
        folder.path.symlink_to(small)
        c.job(2)
        c.decide(started(1, 1, (0,)), started(2, 1, (1,)))
        assert why(c) == "its process ended with exit code 7"
        assert folder.current() is None
        c.decide(stopped(1), started(1, 2, (0,)))
        until(lambda: len(c.seen("exited", 1)) == 2)
        before = c.steps(2)
        until(lambda: c.steps(2) > before + 20)
        c.decide(stopped(1))


def test_gpus_are_named_and_shared_by_the_service_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\necho "$@" $(test -n "$1" || cat) "$CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shared = SharedGpus(tmp_path)
    command = TrainingCommand(("train",), "/x")
    alone = NodeLease(7, 2, (2, 3), (0, 1), (4, 6), "a100", 4, command, "10.0.0.7", 4000)
    pair = NodeLease(7, 2, (0,), (0,), (4,), "a100", 1, command, beside="lm")
    emulated = NodeLease(7, 2, (0,), (0,), (-1,), "a100", 1, command, beside="lm")
    assert shared.pipes(alone) is None
    assert shared.pipes(emulated) is None
    pipes = shared.pipes(pair)
    assert pipes == shared.pipes(pair) == tmp_path / "mps"
    env = environment(alone, 3, Path("/c"), Path("/s"), {"PYTHONPATH": "/p", "DOVETAIL_BESIDE": "x"}, None)
    assert (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"], env["RANK"], env["WORLD_SIZE"]) == ("4,6", "1", "3", "4")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["DOVETAIL_DEVICE"]) == ("10.0.0.7", "4000", "a100")
    assert env["PYTHONPATH"].endswith("gavel_shim:/p")
    assert "DOVETAIL_BESIDE" not in env
    assert environment(pair, 0, Path("/c"), Path("/s"), {}, pipes)["CUDA_MPS_PIPE_DIRECTORY"] == str(pipes)
    assert "CUDA_VISIBLE_DEVICES" not in environment(emulated, 0, Path("/c"), Path("/s"), {}, None)
    shared.close()
    assert (tmp_path / "calls").read_text() == f"-d {pipes}\nquit {pipes}\n"


@pytest.mark.parametrize("before", [False, True], ids=["paused already", "paused then"])
def test_a_drained_node_keeps_no_paused_process(tmp_path: Path, before: bool) -> None:
    with cluster(tmp_path) as c:
        c.job(1, (sys.executable, "-c", PLAIN), checkpoint="pause")
        c.begin(1, 1, 0)
        until(lambda: done_by(c) > 5)
        (pid,) = c.processes(1, 1)
        drained = records.drained([0, 1])
        if before:
            c.decide(drained)
        c.decide(planned(1, 0, ()), due("plan"))
        c.decide(stopped(1))
        if not before:
            until(lambda: c.is_in("paused", 1, 1))
            c.decide(drained)
        until(lambda: c.is_in("gone", 1, 1))
        assert not is_alive(pid)
        assert not c.seen("exited", 1)
