"""The live host with real programs: cores taken up and given up, never shared, and the commands a user types."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.rates import RateTable
from tests.host.live import Daemon, bound, busy_threads, until

EXAMPLES = Path(__file__).parents[2] / "examples" / "host"
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]

needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="there is one processor only")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "state", cpus=CPUS, options={"assign": "always_attend"}) as daemon:
        daemon.up()
        yield daemon


@needs_two
@pytest.mark.parametrize(("example", "package"), [("torch_steps.py", "torch"), ("numpy_steps.py", "threadpoolctl")])
def test_a_program_takes_up_a_change_of_its_cores(daemon: Daemon, example: str, package: str) -> None:
    pytest.importorskip(package)
    job = daemon.submit(sys.executable, str(EXAMPLES / example), "1000000", cores=2)[0]
    until(lambda: "ready" in daemon.log(job))
    for cores in (2, 1, 2):
        daemon.ask("resize", job, cores)

        def taken_up(cores: int = cores) -> bool:
            row = daemon.row(job)
            return row["actual"] == cores == row.get("threads") and bool(row["acknowledged"])

        until(taken_up)
        assert len(bound(daemon.processes(job))) == cores
        until(lambda cores=cores: busy_threads(daemon.processes(job)) == cores)  # type: ignore[misc]
    steps = daemon.row(job)["step"]
    until(lambda: daemon.row(job)["step"] > steps)


@needs_two
def test_a_program_that_knows_nothing_is_moved_by_the_kernel(daemon: Daemon) -> None:
    spin = "import threading\nfor _ in range(3): threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"
    job = daemon.submit(sys.executable, "-c", spin, cores=2)[0]
    until(lambda: len(bound(daemon.processes(job))) == 2)
    daemon.ask("resize", job, 1)
    until(lambda: len(bound(daemon.processes(job))) == 1)
    other = daemon.submit("true")[0]
    assert daemon.wait([other])[other]["state"] == "completed"


FLAT = """
import json, os, socket, time
from dovetail.host import agent
folder = os.environ[agent.FOLDER]

def dial():
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            agent.connect(line, folder)
            line.sendall(b'{"hello": {}}\\n')
            return line
        except OSError:
            line.close()
            time.sleep(0.05)

line = dial()
while True:
    target = json.load(open(os.path.join(folder, agent.TARGET_FILE)))
    says = {"ack": target["gen"], "threads": 1, "progress": {"step": 1, "rate": 50.0, "cores": target["cores"]}}
    try:
        line.sendall(json.dumps(says).encode() + b"\\n")
    except OSError:  # its daemon was killed, and another one comes
        line = dial()
    time.sleep(0.05)
"""


@needs_two
def test_a_program_that_gains_nothing_by_a_second_core_is_found_out(tmp_path: Path) -> None:
    """By its own word: as fast with two cores as with one, while another program runs. Then the second stays free."""
    options = {"assign": "efficient", "efficiency": 0.7}
    with Daemon(tmp_path / "state", cpus=CPUS, options=options) as daemon:
        daemon.up()
        job = daemon.submit(sys.executable, "-c", FLAT, cores=2)[0]

        def measured() -> set[str]:
            return {event["why"] for event in daemon.ask_once("past", job=job) if event["what"] == "measured"}

        until(lambda: measured() == {"50 per second on 2"})
        other = daemon.submit("sleep", "1000")[0]
        until(lambda: measured() == {"50 per second on 1", "50 per second on 2"})
        daemon.ask("cancel", other)
        daemon.wait([other])
        assert daemon.row(job)["desired"] == 1
        daemon.kill()
        daemon.up()
        until(lambda: daemon.row(job)["desired"])  # none until the new one has decided
        assert daemon.row(job)["desired"] == 1
        daemon.cancel_all()
        daemon.ask_once("rates", path=str(tmp_path / "rates.json"))
        table, name = RateTable.read(tmp_path / "rates.json"), os.path.basename(sys.executable)
        assert [table.per_s(name, "core", "steps/s", cores) for cores in (1, 2)] == [50.0, 50.0]
        assert table.rate(name, "core", 2) == pytest.approx(1.0)
        assert (table.switch_s("", name, "core") or 0.0) > 0
        daemon.ask_once("journal", path=str(tmp_path / "run.jsonl"))
        assert main(["check", str(tmp_path / "run.jsonl")]) == 0


@needs_two
@pytest.mark.parametrize("groups", [True, False])
def test_six_programs_never_share_a_processor(tmp_path: Path, groups: bool) -> None:
    """Sharing, turns and pauses all at once; watched from outside, through the kernel alone."""
    options = {"plan": "rr", "assign": "max_prop", "quantum_s": 0.4}
    over = threading.Event()
    shared: list[tuple[str, str]] = []
    looks = 0

    def watch() -> None:
        nonlocal looks
        while not over.is_set():
            has = {job: daemon.processes(job) for job in jobs}
            first = {job: bound(processes) for job, processes in has.items()}
            for a, b in itertools.combinations(jobs, 2):
                # Looked at again and again: a core that was handed on between two looks was not shared.
                if first[a] & first[b] and all(bound(has[a]) & bound(has[b]) for _ in range(5)):
                    shared.append((a, b))
            looks += 1

    with Daemon(tmp_path / "state", cpus=CPUS, options=options, groups=groups) as daemon:
        daemon.up()
        spin = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass"
        jobs = daemon.submit(sys.executable, "-c", spin, array=6, cores=2)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            rows = daemon.wait()
        finally:
            over.set()
            watcher.join()
    assert {row["state"] for row in rows.values()} == {"completed"}
    assert sum(row["pauses"] for row in rows.values()) > 0
    assert shared == []
    assert looks > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_stops_deciding_but_nothing_else(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with Daemon(disk / "state", options={"assign": "always_attend"}) as daemon:
            daemon.up()
            job = daemon.submit("sh", "-c", f"echo up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3")[0]
            until(lambda: daemon.log(job))
            filler = disk / "filler"
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True)
            (tmp_path / "go").touch()
            until(lambda: "nothing is decided until there is room" in daemon.ask_once("about")["trouble"])
            assert daemon.row(job)["state"] == "running"
            filler.unlink()
            row = daemon.wait()[job]
            assert (row["state"], row["exit_codes"]) == ("failed", [3])
            assert daemon.ask_once("about")["trouble"] == ""
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


class User:
    """Who types commands."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capfd = folder, capfd

    def types(self, *words: str, code: int = 0) -> str:
        command, *rest = words
        at = rest.index("--") if "--" in rest else len(rest)
        assert main(["host", command, *rest[:at], "--state", str(self._folder), *rest[at:]]) == code
        out, err = self._capfd.readouterr()
        return out if not code else out + err

    def asks(self, *words: str) -> Any:
        return json.loads(self.types(*words, "--format", "json"))


def test_the_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    user = User(tmp_path / "state", capfd)
    assert "dovetail host up" in user.types("list", code=2)
    assert "did you mean 'fcfs'" in user.types("up", "--plan", "fcf", code=2)
    (tmp_path / "state").write_text("")
    assert "cannot be the folder of the state" in user.types("up", code=2)
    (tmp_path / "state").unlink()
    with Daemon(tmp_path / "state"):
        assert "The daemon runs" in user.types("up", "--plan", "priority", "--assign", "always_attend", "--preemptive")
        first = user.types("submit", "--name", "hello", "--", "sh", "-c", "echo hello; sleep 0.3").strip()
        later = user.types("submit", "--after", first, "--env", "A_B=c-d", "--", "sh", "-c", "echo $A_B").strip()
        assert user.types("logs", "-f", first) == "hello\n"
        assert user.types("wait") == ""
        assert user.types("logs", later) == "c-d\n"
        bad = user.types("submit", "--", "false").strip()
        assert user.types("wait", bad, code=1) == f"{bad} false: failed: exit code 1\n"
        rows = user.asks("list", "--all")
        assert [row["state"] for row in rows] == ["completed", "completed", "failed"]
        assert "exit code 1" in user.types("explain", bad)
        assert [e["what"] for e in user.asks("explain", first)["past"]][:2] == ["arrived", "started"]
        began = tmp_path / "began"
        began.touch()
        sleeper = user.types("submit", "--", "sh", "-c", f"echo >> {began}; exec sleep 1000").strip()
        for words in (("pause", sleeper), ("resume", sleeper), ("priority", sleeper, "2"), ("resize", sleeper, "1")):
            user.types(*words)
        until(lambda: len(began.read_text()) == 1)
        user.types("requeue", sleeper)
        until(lambda: len(began.read_text()) == 2)
        user.types("cancel", sleeper)
        user.types("wait", sleeper, code=143)
        assert sleeper not in user.types("top")
        assert "there is no program 99" in user.types("pause", "99", code=2)
        assert "expected numbers of programs" in user.types("cancel", code=2)
        assert "Did you mean --cores?" in user.types("submit", "--corse", "2", "--", "true", code=2)
        assert "a daemon runs already" in user.types("up", code=2)
        array = user.types("submit", "--array", "2", "--", "true").splitlines()[0].partition(".")[0]
        assert f"{array} is an array: name one of {array}.0 to {array}.1" in user.types("explain", array, code=2)
        assert user.types("wait", array) == ""
        figures = user.asks("metrics", "--csv", str(tmp_path / "programs.csv"))
        assert figures["completed"] == 4
        assert 0 < figures["core_use"] <= 1
        assert (tmp_path / "programs.csv").read_text().count("\n") == 7
        requests = tmp_path / "requests_file.txt"
        requests.write_text("execution,0,tf,1,60\nexecution,1,tf,1,[0.2],3\nupdate,0,tf,2,0.1\n")
        assert "No closing quotation" in user.types("run", str(requests), "--command", "sh -c 'x", code=2)
        run = user.asks("run", str(requests), "--command", "sh -c 'echo $DOVETAIL_REQUEST; sleep 0.5'")
        assert run["completed"] == 2
        assert user.types("journal", str(tmp_path / "run.jsonl")).endswith("run.jsonl\n")
        assert main(["check", str(tmp_path / "run.jsonl")]) == 0
        assert main(["report", str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "page.html")]) == 0
        user.types("submit", "--", "sleep", "1000")
        assert "1 programs are left as they are" in user.types("down")
        user.types("up")
        states = [row["state"] for row in user.asks("list")]
        assert (states[-1], states.count("running")) == ("running", 1)
        assert "completed" in states  # what ended lately is listed too
        user.types("down", "--cancel")
