"""A real daemon for tests and benchmarks: started, killed and started again as its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core import cgroups
from dovetail.core.errors import DovetailError
from dovetail.core.service import shim
from dovetail.host.live.client import Client
from dovetail.host.live.executors import Usage, proc
from dovetail.host.live.executors.docker import OWNER
from dovetail.host.live.setup import RequestedSettings
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

CLOSED = frozenset({"completed", "failed", "cancelled"})


def bound(processes: Iterable[proc.Process]) -> frozenset[int]:
    """The processors that they may run on now; none of one that is stopped, or frozen by a control group."""
    now = [found for p in processes if (found := proc.read(p.pid)) is not None]
    return proc.bound_to(p for p in now if p.state not in "Tt" and not _frozen(p.pid))


def _frozen(pid: int) -> bool:
    try:
        groups = cgroups.groups_of(pid)
        return groups.frozen()
    except (OSError, KeyError):
        return False


def busy_threads(processes: Iterable[proc.Process], window_s: float = 0.5) -> int:
    """Threads that do a fair share of what all of them do within a while."""
    pids = [p.pid for p in processes]
    before = _ticks(pids)
    time.sleep(window_s)
    used = {thread: now - before.get(thread, 0) for thread, now in _ticks(pids).items()}
    return sum(each >= max(sum(used.values()) / 5, 1) for each in used.values())


def _ticks(pids: list[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        for thread in proc.threads(pid):
            with contextlib.suppress(OSError):  # it ends just now
                words = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()
                found[thread] = int(words[11]) + int(words[12])
    return found


def stands_still(usage: Callable[[], Usage | None]) -> bool:
    """Whether a program uses no processor while we use a tenth of a second of one."""
    before, end = usage(), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    return before is not None and usage() == before


def end_all(runs: Path, groups: str) -> None:
    """End everything that was started in a folder of runs, and remove the control groups of that name."""
    parents = (cgroups.find_parents(groups) if groups else None) or {}
    until(lambda: not _ended_now(runs, parents))
    cgroups.remove_empty(parents, ())
    cgroups.remove_parents(parents)


def _ended_now(runs: Path, parents: dict[str, Path]) -> list[int]:
    """Whom it still takes to be killed; they have been, and thawed, so that they die of it."""
    left: set[int] = set()
    for path in (*runs.glob("*/claim"), *runs.glob("*/program")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            named = msgspec.json.decode(path.read_bytes())
            if named["boot"] == shim.boot_id() and proc.is_same(named["pid"], named["start"]):
                left |= {named["pid"], *(p.pid for p in proc.family(named["pid"]))}
    inside = {group.name for folder in parents.values() for group in folder.glob("*/")}
    members = [cgroups.Groups(parents, name) for name in inside]
    for group in members:
        with contextlib.suppress(OSError):
            left.update(group.processes())
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for group in members:
        with contextlib.suppress(OSError):
            group.freeze(False)
    return sorted(left)


def remove_containers(address: str, owner: str) -> None:
    import docker

    client = docker.DockerClient(address)

    def all_gone() -> bool:
        left = client.containers.list(all=True, filters={"label": f"{OWNER}={owner}"}, sparse=True)
        for container in left:
            with contextlib.suppress(docker.errors.APIError):  # it is being removed already
                container.remove(force=True)
        return not left

    try:
        until(all_gone)
    finally:
        client.close()


class Daemon:
    """A daemon in a folder; as a context it leaves nothing behind."""

    def __init__(self, folder: Path, **wish: Any) -> None:
        self.folder = folder
        self._wish = RequestedSettings(**wish)
        self._process: subprocess.Popen[bytes] | None = None

    def up(self, wait: bool = True, **env: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        wish = msgspec.json.encode(self._wish).decode()
        words = [sys.executable, "-m", "dovetail.host.live.daemon", str(self.folder), wish]
        with (self.folder / "daemon.log").open("ab") as log:
            environment = os.environ | env
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=environment)
        if wait:
            until(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "daemon.log").read_text()
        try:
            self.ask_once("about")
        except DovetailError:
            return False
        return True

    def kill(self) -> None:
        """Without notice, as by the kernel."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def down(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def ask_once(self, do: str, **words: Any) -> Any:
        try:
            with Client(self.folder) as client:
                return client.ask(do, **words)
        except DovetailError as error:
            if self._process is not None and (code := self._process.poll()) is not None:
                said = (self.folder / "daemon.log").read_text() or "no words"
                error.add_note(f"the daemon ended with {code}: {said}")
            raise

    def ask(self, what: str, job: str, value: float | None = None) -> None:
        self.ask_once("ask", job=job, what=what, value=value)

    def submit(self, *command: str, array: int | None = None, **spec: Any) -> list[str]:
        spec = {"command": command, "cwd": str(self.folder), "env": dict(os.environ)} | spec
        jobs: list[str] = self.ask_once("submit", spec=spec, array=array)
        return jobs

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.ask_once("list")}

    def row(self, job: str) -> dict[str, Any]:
        return self.rows()[job]

    def states(self) -> dict[str, str]:
        return {job: row["state"] for job, row in self.rows().items()}

    def wait(self, jobs: Iterable[str] | None = None, patience_s: float = PATIENCE_S) -> dict[str, dict[str, Any]]:
        """Until these have ended, or all."""
        wanted = None if jobs is None else set(jobs)

        def ended() -> bool:
            rows = self.rows()
            return all(rows[job]["state"] in CLOSED for job in (rows if wanted is None else wanted))

        until(ended, patience_s)
        return self.rows()

    def log(self, job: str) -> str:
        path = self.folder / "logs" / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def cancel_all(self) -> None:
        for job, row in self.rows().items():
            if row["state"] not in CLOSED:
                try:
                    self.ask("cancel", job)
                except DovetailError:
                    continue
        self.wait()

    def processes(self, job: str) -> list[proc.Process]:
        """The living processes of a program, found without asking the daemon."""
        claims = sorted((self.folder / "runs").glob(f"{job}-*/claim"))
        try:
            return proc.family(msgspec.json.decode(claims[-1].read_bytes())["pid"]) if claims else []
        except FileNotFoundError:  # it ended between the look at the folder and the look at the file
            return []

    def clean_up(self) -> None:
        """Leave nothing behind, however the test ended: no daemon, no program, no control group, no container."""
        if self._process is None:
            with contextlib.suppress(DovetailError):  # one that somebody else started here
                os.kill(self.ask_once("about")["pid"], signal.SIGKILL)
        elif self._process.poll() is None:
            self.kill()
        instance = self._instance()
        end_all(self.folder / "runs", f"dovetail-{instance}" if instance else "")
        if self._wish.docker:
            remove_containers(self._wish.docker, instance)

    def _instance(self) -> str:
        """What its groups and containers are called by; known once it has been up."""
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self.folder}/state.db?mode=ro", uri=True)) as store:
                found = store.execute("select value from about where name = 'setup'").fetchone()
        except sqlite3.Error:
            return ""
        return msgspec.json.decode(found[0])["instance"] if found else ""

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()
