"""A real daemon, asked over its socket."""

from __future__ import annotations

import os
import queue
import random
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Arrived, Asked
from dovetail.core.journal import Reader
from dovetail.core.loop.engine import replay
from dovetail.core.service import shim
from dovetail.host import connect, daemon_command, up
from dovetail.host.live.book import ProgramBook
from dovetail.host.live.client import SOCKET, Client
from dovetail.host.live.daemon import _Server
from dovetail.host.live.service import Service
from dovetail.host.live.setup import RequestedSettings, set_up
from dovetail.host.live.specs import Spec
from dovetail.host.scheduler import scheduler_for
from tests.host.live import PATIENCE_S, Daemon, until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One that gives every program what it can, with whatever the machine has for binding and pausing."""
    with Daemon(tmp_path / "state", options={"assign": "always_attend"}) as daemon:
        daemon.up()
        yield daemon


def test_programs_run_and_leave_their_words_and_codes(daemon: Daemon) -> None:
    good, bad = (
        daemon.submit("sh", "-c", "pwd; echo $SEED; nproc", env={"SEED": "7", "PATH": os.environ["PATH"]}),
        (daemon.submit("sh", "-c", "exit 4", retries=2)),
    )
    rows = daemon.wait()
    assert rows[good[0]]["state"] == "completed"
    assert daemon.log(good[0]).split() == [str(daemon.folder), "7", "1"]
    assert rows[bad[0]]["state"] == "failed"
    assert rows[bad[0]]["exit_codes"] == [4, 4, 4]
    assert "exit code 4" in rows[bad[0]]["why"]


def test_the_environment_says_how_many_threads_to_use(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "echo $OMP_NUM_THREADS $OMP_WAIT_POLICY $DOVETAIL_PROGRAM")[0]
    mine = daemon.submit("sh", "-c", "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "9", "PATH": os.environ["PATH"]})
    daemon.wait()
    assert daemon.log(job).split() == ["1", "PASSIVE", job]
    assert daemon.log(mine[0]).split() == ["9"]


def test_a_program_that_another_submits_is_not_taken_for_that(daemon: Daemon) -> None:
    """It has its own number, control folder and cores, although it has the variables of who submits it."""
    cores = len(os.sched_getaffinity(0))
    submit = (sys.executable, "-m", "dovetail", "host", "submit", "--state", str(daemon.folder))
    said = "echo $DOVETAIL_PROGRAM $DOVETAIL_CONTROL [$DOVETAIL_ARRAY_INDEX] $OMP_NUM_THREADS $SEED"
    env = dict(os.environ) | {"SEED": "7"}
    wide = ("--cores", str(cores), "--least", str(cores))
    outer = daemon.submit(*submit, *wide, "--", "sh", "-c", said, array=1, env=env)
    assert daemon.wait(outer)[outer[0]]["state"] == "completed"
    inner = daemon.log(outer[0]).strip()
    daemon.wait([inner])
    assert daemon.log(inner).split() == [inner, f"{daemon.folder}/runs/{inner}-1/control", "[]", str(cores), "7"]


def test_arrays_and_dependencies(daemon: Daemon) -> None:
    array = daemon.submit("sh", "-c", "sleep 0.1; echo $DOVETAIL_ARRAY_INDEX of $DOVETAIL_ARRAY_SIZE", array=3)
    after = daemon.submit("sh", "-c", f"cat {daemon.folder}/logs/{array[2]}.log", after=[array[0].partition(".")[0]])
    bad = daemon.submit("false")
    lost = daemon.submit("true", after=bad)
    rows = daemon.wait()
    assert [daemon.log(job).strip() for job in array] == ["0 of 3", "1 of 3", "2 of 3"]
    assert daemon.log(after[0]) == "2 of 3\n"
    assert rows[lost[0]]["state"] == "failed"
    assert f"waits for {bad[0]}" in rows[lost[0]]["why"]
    assert rows[lost[0]]["attempts"] == 0


def test_down_says_whom_it_did_not_wait_for(daemon: Daemon) -> None:
    words = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    job = daemon.submit("sh", "-c", words, grace_s=1000)[0]
    until(lambda: daemon.log(job))
    said = f"not ended within 0.1 s of being cancelled: {job}; the daemon goes on"
    with connect(daemon.folder) as client, pytest.raises(DovetailError, match=said):
        client.down(cancel=True, within_s=0.1)
    assert daemon.row(job)["state"] == "stopping"


def test_a_time_limit_ends_a_program(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "1000", limit_s=0.2)[0]
    row = daemon.wait()[job]
    assert row["state"] == "failed"
    assert "limit of 0.2 s" in row["why"]


JUMPS = """
import os, time
real = time.time
time.time = lambda: real() + (86_400 if os.path.exists(os.environ["CLOCK_SET"]) else 0)
"""


def test_a_clock_that_is_set_forward_ends_nobody(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    found = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    jump = tmp_path / "clock"
    with Daemon(tmp_path / "state", options={"assign": "always_attend"}) as daemon:
        daemon.up(PYTHONPATH=found, CLOCK_SET=str(jump))
        limited = daemon.submit("sleep", "1000", limit_s=3600)[0]
        until(lambda: daemon.row(limited)["actual"])
        jump.touch()
        later = daemon.submit("true")[0]
        assert daemon.wait([later])[later]["state"] == "completed"
        row = daemon.row(limited)
        assert row["state"] == "running"
        assert 0 <= row["service_s"] < 3600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(InputError, match=r"belongs to user 12345; expected a folder of user 0's own; --state names"):
        up(tmp_path)
    os.chown(tmp_path, 0, -1)
    tmp_path.chmod(0o777)
    with pytest.raises(InputError, match=r"others can write there \(mode 777\)"):
        up(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_daemon_of_another_user_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who submits sends all variables along."""
    monkeypatch.chdir(tmp_path)  # whose own name may be too long for an address
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(SOCKET)
        os.seteuid(12345)
        try:
            other.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(InputError, match=r"its daemon is of user 12345; expected one of user 0's own"):
            connect(tmp_path)


def test_a_paused_program_waits_and_is_not_dead(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i; sleep 0.01; done")[0]
    until(lambda: daemon.log(job))
    daemon.ask("pause", job)
    until(lambda: daemon.row(job)["actual"] == 0)
    so_far = daemon.log(job)
    other = daemon.submit("true", cores=len(os.sched_getaffinity(0)))[0]
    daemon.wait([other])
    row = daemon.row(job)
    assert (row["state"], row["cpus"], row["attempts"]) == ("paused", [], 1)
    until(lambda: daemon.ask_once("about")["paused_memory_mib"] == daemon.row(job)["memory_mib"] > 0)
    assert daemon.log(job) == so_far
    daemon.ask("resume", job)
    until(lambda: daemon.log(job) != so_far)
    (daemon.folder / "go").touch()
    row = daemon.wait()[job]
    assert (row["state"], row["attempts"], row["pauses"]) == ("completed", 1, 1)
    counted = daemon.log(job).split()
    assert counted == [str(i) for i in range(1, len(counted) + 1)]


def test_cancel_and_requeue(daemon: Daemon) -> None:
    cores = len(os.sched_getaffinity(0))
    running = daemon.submit("sh", "-c", "echo begun; sleep 1000", cores=cores)[0]
    waiting = daemon.submit("true", after=[running])[0]
    paused = daemon.submit("sleep", "1000", after=[])[0]
    until(lambda: daemon.log(running))
    daemon.ask("pause", paused)
    daemon.ask("requeue", running)
    until(lambda: daemon.row(running)["attempts"] == 2 and daemon.log(running) == "begun\nbegun\n")
    for job in (waiting, paused, running):
        daemon.ask("cancel", job)
    rows = daemon.wait()
    assert {row["state"] for row in rows.values()} == {"cancelled"}
    with pytest.raises(InputError, match=f"program {running} is cancelled"):
        daemon.ask("pause", running)


def test_one_that_ignores_signals_is_ended_all_the_same(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done", grace_s=0.2)[0]
    until(lambda: daemon.log(job))
    daemon.ask("cancel", job)
    row = daemon.wait()[job]
    assert row["state"] == "cancelled"
    assert row["exit"] == "signal 9"


def test_declared_memory_is_kept_free_also_of_paused_ones(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state", options={"memory_mib": 100, "overtaking": "first-fit"}) as daemon:
        daemon.up()
        first = daemon.submit("sleep", "1000", memory_mib=80)[0]
        until(lambda: daemon.row(first)["state"] == "running")
        daemon.ask("pause", first)
        second = daemon.submit("true", memory_mib=80)[0]
        small = daemon.submit("true", memory_mib=10)[0]
        daemon.wait([small])
        row = daemon.row(second)
        assert row["state"] == "waiting"
        assert "MiB" in row["why"]
        daemon.ask("cancel", first)
        assert daemon.wait()[second]["state"] == "completed"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"do": "submit", "spec": {"command": ["true"], "core": 1}}, "core: unknown key 'core'; did you mean 'cores'?"),
        ({"do": "submit", "spec": {"command": ["true"], "cores": 99, "cwd": "/"}}, "cores: found 99, expected 1 to "),
        ({"do": "submit", "spec": {"command": [], "cwd": "/"}}, "command: found [], expected a program to run"),
        (
            {"do": "submit", "spec": {"command": ["true"], "cwd": "/no/such"}},
            "cwd: found '/no/such', expected a folder",
        ),
        ({"do": "submit", "spec": {"command": ["true"], "cwd": "/", "curve": "up"}}, "curve 'up': expected linear"),
        ({"do": "submit", "spec": {"command": ["true"], "cwd": "/", "after": ["9"]}}, "there is no program 9"),
        ({"do": "submit", "spec": {"command": ["true"], "cwd": "/"}, "array": 0}, "array: found 0, expected 1 to"),
        ({"do": "ask", "job": "9", "what": "pause"}, "there is no program 9"),
        ({"do": "ask", "job": "9", "what": "paus"}, "cannot paus a program; did you mean 'pause'?"),
        ({"do": "ask", "job": "9", "what": "resize"}, "resize: expected a number, found None"),
        ({"do": "ask", "job": "9", "what": "priority", "value": -1}, "priority: found -1, expected 0 (most urgent)"),
        ({"do": "submit", "spec": {"command": ["a\0b"], "cwd": "/"}}, "command: found ['a\\x00b'], expected no null"),
        ({"do": "submit", "spec": {"command": ["true"], "cwd": "/", "env": {"A=B": ""}}}, "env: found 'A=B', expected"),
        ({"do": "submit", "spec": {"command": ["true"], "cwd": "/", "network": True}}, "network: found True, expected"),
        (
            {"do": "submit", "spec": {"command": ["true"], "cwd": "/", "hook": "a\0b"}},
            "hook: found 'a\\x00b', expected",
        ),
        (
            {"do": "submit", "spec": {"command": ["true"], "cwd": "/", "name": "a\0b"}},
            "name: found 'a\\x00b', expected",
        ),
        ({"do": "dance"}, "Invalid value 'dance'"),
        ([1, 2], "expected"),
    ],
)
def test_bad_requests_are_refused_with_words(tmp_path: Path, request_: Any, message: str, shared: Daemon) -> None:
    import msgspec

    with socket.socket(socket.AF_UNIX) as line:
        directory = os.open(shared.folder, os.O_PATH)
        line.connect(f"/proc/self/fd/{directory}/{SOCKET}")
        os.close(directory)
        line.sendall(msgspec.json.encode(request_) + b"\n")
        reply = msgspec.json.decode(line.makefile("rb").readline())
    assert message in reply["error"]
    assert reply["code"] == 2
    assert shared.rows() == {}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("shared") / "state") as daemon:
        daemon.up()
        yield daemon


def test_the_socket_is_its_users_alone_and_one_daemon_has_the_folder(shared: Daemon) -> None:
    assert stat.S_IMODE((shared.folder / SOCKET).stat().st_mode) == 0o600
    second = Daemon(shared.folder)
    second.up(wait=False)
    assert second._process is not None
    assert second._process.wait(PATIENCE_S) == 2
    assert "another process has it open" in (shared.folder / "daemon.log").read_text()
    assert shared.rows() == {}


def test_a_limit_that_never_comes_is_none(daemon: Daemon) -> None:
    """Longer than the system can wait."""
    job = daemon.submit("true", limit_s=1e300)[0]
    assert daemon.wait()[job]["state"] == "completed"


def test_a_rigid_program_cannot_be_resized_once_it_runs(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "1000", malleable=False)[0]
    until(lambda: daemon.row(job)["state"] == "running")
    with pytest.raises(InputError, match="is rigid"):
        daemon.ask("resize", job, 1)


def test_who_submits_before_the_daemon_runs_is_heard_once(tmp_path: Path) -> None:
    """Requests are answered from the moment when the socket is there, which is sooner."""
    for kept in range(2):  # the second time something is there that was kept before
        setup, store = set_up(tmp_path, RequestedSettings(groups=False))
        with store:
            if kept:
                store.set("number", 8)
                ProgramBook(tmp_path, store).add([Spec(command=("true",), cwd="/")])
            service = Service(tmp_path, setup, store)
            jobs = service.submit(Spec(command=("true",), cwd="/", env=dict(os.environ)), array=2)
            running = threading.Thread(target=service.run)
            running.start()
            until(lambda service=service, jobs=jobs: service.wait(tuple(jobs))[0] == 2)  # type: ignore[misc]
            until(service.idle)
            service.close()
            running.join(PATIENCE_S)
            arrived = [event.job for _, _, events in store.steps() for event in events if isinstance(event, Arrived)]
    assert sorted(arrived) == ["1.0", "1.1", "10.0", "10.1", "9"]


def test_what_was_kept_before_is_heard_of_before_who_asks_for_something_now(tmp_path: Path) -> None:
    """A daemon that was killed has kept two programs, of which nothing is decided yet: another may wait for the one,
    and the other be cancelled, before the next daemon runs."""
    setup, store = set_up(tmp_path, RequestedSettings(groups=False))
    with store:
        ProgramBook(tmp_path, store).add([Spec(command=("true",), cwd="/")] * 2)
        service = Service(tmp_path, setup, store)
        assert service.submit(Spec(command=("true",), cwd="/", after=("1",))) == ["3"]
        service._inbox.put(Asked("2", "cancel"))
        running = threading.Thread(target=service.run, daemon=True)
        running.start()
        until(service.idle)
        states = {row.id: row.state for row in service.listing()}
        service.close()
        running.join(PATIENCE_S)
        events = [event for _, _, events in store.steps() for event in events]
    assert [event.job for event in events if isinstance(event, Arrived)] == ["1", "2", "3"]
    assert states == {"1": "completed", "2": "cancelled", "3": "completed"}


def test_the_limit_of_a_group_is_heard_after_those_who_came_before(tmp_path: Path) -> None:
    """Also if all of it is heard at once."""
    setup, store = set_up(tmp_path, RequestedSettings(groups=False))
    with store:
        service = Service(tmp_path, setup, store)
        (job,) = service.submit(Spec(command=("true",), cwd="/", group="g", parallel=1, delay_s=3600))
        limiting = threading.Thread(target=service.group, args=("g", 5))
        limiting.start()
        until(lambda: len(service._inbox._waiting) == 2)
        running = threading.Thread(target=service.run)
        running.start()
        limiting.join(PATIENCE_S)
        service.ask(job, "cancel")
        service.close()
        running.join(PATIENCE_S)
        (first, *_) = (events for _, _, events in store.steps())
    assert [type(event) for event in first[:2]] == [Arrived, Asked]


def test_what_is_told_before_the_daemon_runs_is_true(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state") as daemon:
        daemon.up()
        (good,), (bad,), (gone,) = (daemon.submit(word, name=word) for word in ("true", "false", "true"))
        before = daemon.wait()
        daemon.ask_once("clean", jobs=[gone])
        daemon.down()
        setup, store = set_up(daemon.folder, RequestedSettings())
        with store:
            service = Service(daemon.folder, setup, store)
            assert {row.id: (row.name, row.state) for row in service.listing()} == {
                job: (before[job]["name"], before[job]["state"]) for job in (good, bad)
            }
            assert service.wait() == (2, [])
            assert service.clean((good,)) == [good]
            (new,) = service.submit(Spec(command=("true",), cwd="/"))
            running = threading.Thread(target=service.run)
            running.start()
            assert service.wait((new,), PATIENCE_S) == (1, [])
            assert {row.id: row.state for row in service.listing()} == {bad: "failed", new: "completed"}
            service.close()
            running.join(PATIENCE_S)


def test_nothing_of_an_ended_attempt_is_left_in_the_folder(daemon: Daemon) -> None:
    jobs, runs = daemon.submit("true", array=3), daemon.folder / "runs"
    daemon.wait()
    spares = {name + shim.SPARE for name in shim.KEPT}
    left = {"control", "agent.sock", "target.json", *spares}  # which the next program gets
    until(lambda: not list(runs.glob(f"{jobs[0].partition('.')[0]}.*")))
    until(lambda: {path.name for path in runs.glob("*/**/*")} == left)
    daemon.kill()
    (daemon.folder / "runs" / f"{jobs[0]}-1").mkdir()  # as if it had been killed before it was removed
    daemon.up()
    until(lambda: not list((daemon.folder / "runs").iterdir()))


def test_a_daemon_whose_folder_is_gone_ends_and_leaves_its_successor_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state") as first, Daemon(tmp_path / "state") as second:
        first.up()
        first.folder.rename(tmp_path / "elsewhere")
        second.up()
        assert first._process is not None
        assert first._process.wait(PATIENCE_S) == 0
        assert "was removed or replaced" in (tmp_path / "elsewhere" / "daemon.log").read_text()
        assert second.rows() == {}


_GONE_AT_ONCE = """
import sys
from dovetail.host.live import daemon, service

def tidy(self):
    self.folder.rename(self.folder.with_name("elsewhere"))
    list((self.folder / "runs").iterdir())

service.Service._tidy = tidy
sys.exit(daemon.main(sys.argv[1:]))
"""


def test_a_daemon_whose_folder_goes_while_it_starts_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    words = [sys.executable, "-c", _GONE_AT_ONCE, str(tmp_path / "state"), "{}"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    assert found.stderr == f"{tmp_path}/state was removed or replaced; the daemon ends\n"


def test_steps_that_another_version_decided_are_told(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state") as daemon:
        daemon.up()
        job = daemon.submit("sleep", "1000")[0]
        until(lambda: daemon.row(job)["state"] == "running")
        daemon.down()
        with sqlite3.connect(daemon.folder / "state.db") as store:
            store.execute("update steps set events = replace(events, '1 of 1 asked', 'because')")
        store.close()
        daemon.up(wait=False)
        assert daemon._process is not None
        assert daemon._process.wait(PATIENCE_S) == 1
        assert "another version of Dovetail decided" in (daemon.folder / "daemon.log").read_text().splitlines()[-1]


def test_the_older_schedulers_decisions_are_for_simulation_only(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state", options={"profile": "legacy"}) as daemon:
        daemon.up(wait=False)
        assert daemon._process is not None
        assert daemon._process.wait(PATIENCE_S) == 2
        assert "profile:" in (tmp_path / "state" / "daemon.log").read_text()


def test_a_client_does_and_tells_it_all(daemon: Daemon, tmp_path: Path) -> None:
    with connect(daemon.folder) as client:
        words = "echo $MODE; while [ ! -e go ]; do sleep 0.02; done"
        (first,) = client.submit("sh", "-c", words, cwd=tmp_path, env={"MODE": "fast"})
        array = client.submit("true", array=2, after=[first], name="later")
        until(lambda: daemon.log(first))
        assert client.status(first).state == "running"
        assert [program.id for program in client.list()] == [first, *array]
        assert client.status(array[0]).why == f"waits for {first}"
        client.pause(first)
        until(lambda: client.status(first).actual == 0)
        client.resume(first)
        client.resize(first, 1)
        client.priority(array[0].partition(".")[0], 3)
        with pytest.raises(DovetailError, match=f"program {first} has not ended after 0 s"):
            client.wait(first, timeout=0)
        (tmp_path / "go").touch()
        ended: list[int] = []
        rows = client.wait(progress=ended.append)
        assert [(row.id, row.state) for row in rows] == [(job, "completed") for job in (first, *array)]
        assert [row.priority for row in rows] == [0, 3, 3]
        assert ended[-1] == 3
        assert b"".join(client.logs(first)) == b"fast\n"
        assert [event.what for event in client.past(first)][:2] == ["arrived", "started"]
        figures = client.metrics(tmp_path / "programs.csv")
        assert (figures["completed"], len(figures["per_program"])) == (3, 3)
        assert (tmp_path / "programs.csv").read_text().count("\n") == 4
        run = client.journal()
        assert (run.check().valid, run.replay().difference) == (True, None)
        assert [program.program for program in run.programs] == [first, *array]
        assert client.rates(tmp_path / "rates.json").switch_s("", "later", "core") is not None
        about = client.about()
        assert (about.programs, about.trouble) == ({"completed": 3}, "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.status(99), "there is no program 99"),
        (lambda client: client.wait(99), "there is no program 99"),
        (lambda client: client.cancel(), "cancel: expected numbers of programs or arrays"),
        (lambda client: client.submit("true", cores="two"), "cores: expected int, found str"),
        (lambda client: client.submit("true", 3), r"command\.1: expected str, found int"),
        (lambda client: client.submit("true", env={"A": 1}), "env.*: expected str, found int"),
        (lambda client: client.submit(), "command: found \\[\\], expected a program to run"),
        (lambda client: client.run([{"threads": 1}], speed=0), "speed 0: expected a positive number"),
        (lambda client: client.run([{"threads": 1}], command="sh 'x"), "command sh 'x: No closing quotation"),
        (
            lambda client: connect(7),  # type: ignore[arg-type]
            "folder: expected a path, found 7",
        ),
        (lambda client: client.submit("true", limit=float("nan")), "limit: found nan, expected a number"),
        (lambda client: client.submit("true", delay=1e300), r"delay: found 1e\+300, expected up to 1e\+10 seconds"),
        (lambda client: client.submit("true", delay="999999999d"), r"delay: found '999999999d', expected up to 1e\+10"),
        (lambda client: client.submit("true", retries=1 << 70), "retries: found 11805.*, expected a number up to 9007"),
        (lambda client: client.submit("a\udcff"), r"submit: found 'a\\udcff', expected text in UTF-8"),
        (lambda client: client.journal(7), "journal: expected a path, found 7"),
        (lambda client: client.down(within_s=float("nan")), "within_s nan: expected seconds, 0 or more"),
    ],
)
def test_what_a_client_is_asked_wrongly_is_told(shared: Daemon, call: Any, message: str) -> None:
    with connect(shared.folder) as client, pytest.raises(InputError, match=message):
        call(client)
    assert shared.rows() == {}


def test_a_daemon_is_started_and_stopped_from_python(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no host policy is called 'fcsf'"):
        up(tmp_path / "state", plan="fcsf")
    for cpus in ("all", "0-99999999999"):
        with pytest.raises(InputError, match=f"cpus {cpus}: expected processors, as 0-3,8"):
            up(tmp_path / "state", cpus=cpus)
    with pytest.raises(TypeError, match="'plans'"):
        up(tmp_path / "state", plans="fcfs")  # type: ignore[call-arg]
    with Daemon(tmp_path / "state"), up(tmp_path / "state", plan="rr", quantum=9, option={"min_cores": 1}) as client:
        assert client.about().options == {"plan": "rr", "quantum_s": 9.0} | {
            "memory_mib": client.about().options["memory_mib"]
        }
        client.submit("sleep", "1000")
        assert client.down(cancel=True) == []
        assert daemon_command(client.folder, plan="rr")[-2] == str(client.folder)


def test_other_settings_wait_until_all_has_ended(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state") as daemon, Daemon(tmp_path / "state", options={"plan": "rr"}) as other:
        daemon.up()
        job = daemon.submit("sleep", "1000")[0]
        assert daemon.down() == 0
        other.up(wait=False)
        assert other._process is not None
        assert other._process.wait(PATIENCE_S) == 2
        assert f"programs {job} are not ended" in (tmp_path / "state" / "daemon.log").read_text()
        daemon.up()
        daemon.cancel_all()
        daemon.down()
        other.up()
        assert other.rows() == {}
        assert [path.name for path in other.folder.glob("journal-*.jsonl")]
        assert other.submit("true")[0] != job


def test_a_live_journal_replays_to_the_same_instructions(tmp_path: Path) -> None:
    with Daemon(tmp_path / "state", options={"plan": "rr", "assign": "max_prop", "quantum_s": 0.2}) as daemon:
        daemon.up()
        words = ("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done")
        jobs = daemon.submit(*words, array=4, cores=len(os.sched_getaffinity(0)), retries=1)
        failing = daemon.submit("false", retries=1)[0]
        daemon.ask("pause", jobs[0])
        daemon.kill()
        daemon.up()
        daemon.ask("resume", jobs[0])
        daemon.ask("priority", jobs[1], 3)
        until(lambda: all(daemon.row(job)["service_s"] > 0 for job in jobs))  # everybody has had a turn
        (daemon.folder / "go").touch()
        rows = daemon.wait()
        assert rows[failing]["attempts"] == 2
        steps = daemon.ask_once("journal", path=str(tmp_path / "run.jsonl"))
    reader = Reader(tmp_path / "run.jsonl")
    compared = list(replay(scheduler_for(reader), reader))
    assert compared[-1][0] == steps
    assert all(decided == recorded for _, _, decided, recorded in compared)
    assert sum(len(recorded) for *_, recorded in compared) > 10
    assert main(["check", str(tmp_path / "run.jsonl")]) == 0


@pytest.mark.parametrize("groups", [True, False])
def test_a_daemon_killed_again_and_again_runs_every_program_once(tmp_path: Path, groups: bool) -> None:
    with Daemon(tmp_path / "state", groups=groups, options={"assign": "always_attend"}) as daemon:
        daemon.up()
        rng = random.Random(groups)
        done = daemon.folder / "done"
        words = f"echo $DOVETAIL_PROGRAM >> {done}; sleep 0.05"
        jobs = daemon.submit("sh", "-c", words, array=30)
        for _ in range(5):
            time.sleep(rng.uniform(0, 0.6))
            daemon.kill()
            daemon.up(wait=False)
        until(daemon._answers)
        rows = daemon.wait()
        assert sorted(done.read_text().split()) == sorted(jobs)
        assert {(row["state"], row["attempts"]) for row in rows.values()} == {("completed", 1)}


def test_a_daemon_answers_before_it_goes_down(tmp_path: Path) -> None:
    """Whoever asked for it must hear so, however soon the process is gone after that."""
    answered, in_time = threading.Event(), queue.SimpleQueue[bool]()

    class Ending(Service):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            in_time.put(answered.wait(PATIENCE_S))

    server = _Server(tmp_path, Ending())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client(tmp_path) as client:
        assert client.ask("down") is None
        answered.set()
        assert in_time.get(timeout=PATIENCE_S)
    server.shutdown()
    server.server_close()
