"""A real daemon for tests and benchmarks: started, killed and started again as its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from dovetail.core import cgroups
from dovetail.core.errors import DovetailError
from dovetail.host.live.client import Client
from dovetail.host.live.executors import proc
from dovetail.host.live.setup import RequestedSettings

PATIENCE_S = 120.0
CLOSED = frozenset({"completed", "failed", "cancelled"})


def until(true: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    limit = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


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
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().rpartition(b")")[2].split()
                found[int(path.parent.name)] = int(words[11]) + int(words[12])
    return found


class Daemon:
    """A daemon in a folder. `ask` waits for one that is being started, and asks again if it was killed meanwhile."""

    def __init__(self, folder: Path, **wish: Any) -> None:
        self.folder = folder
        self._wish = RequestedSettings(**wish)
        self._process: subprocess.Popen[bytes] | None = None

    def up(self, wait: bool = True) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        wish = msgspec.json.encode(self._wish).decode()
        words = [sys.executable, "-m", "dovetail.host.live.daemon", str(self.folder), wish]
        with (self.folder / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
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
        with Client(self.folder) as client:
            return client.ask(do, **words)

    def ask(self, what: str, work: str, value: float | None = None) -> None:
        self.ask_once("ask", job=work, what=what, value=value)

    def submit(self, *command: str, array: int | None = None, **spec: Any) -> list[str]:
        spec = {"command": command, "cwd": str(self.folder), "env": dict(os.environ)} | spec
        works: list[str] = self.ask_once("submit", spec=spec, array=array)
        return works

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.ask_once("list")}

    def row(self, work: str) -> dict[str, Any]:
        return self.rows()[work]

    def states(self) -> dict[str, str]:
        return {work: row["state"] for work, row in self.rows().items()}

    def wait(self, works: Iterable[str] | None = None, patience_s: float = PATIENCE_S) -> dict[str, dict[str, Any]]:
        """Until these have ended, or all."""
        wanted = None if works is None else set(works)

        def ended() -> bool:
            rows = self.rows()
            return all(rows[work]["state"] in CLOSED for work in (rows if wanted is None else wanted))

        until(ended, patience_s)
        return self.rows()

    def log(self, work: str) -> str:
        path = self.folder / "logs" / f"{work}.log"
        return path.read_text() if path.exists() else ""

    def cancel_all(self) -> None:
        for work, row in self.rows().items():
            if row["state"] not in CLOSED:
                try:
                    self.ask("cancel", work)
                except DovetailError:
                    continue
        self.wait()

    def processes(self, work: str) -> list[proc.Process]:
        """The living processes of a program, found without asking the daemon."""
        claims = sorted((self.folder / "runs").glob(f"{work}-*/claim"))
        return proc.family(msgspec.json.decode(claims[-1].read_bytes())["pid"]) if claims else []

    def clean_up(self) -> None:
        """Leave nothing running."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.up()
        self.cancel_all()
        self.down()
