"""A rank of a job as a process group under a shim, which outlives the agent and ends it with its lease."""

from __future__ import annotations

import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.core.service import shim

MARK = "DOVETAIL_RUN"  # in the environment of whatever a rank starts


class _ShimName(Struct):
    pid: int
    start: int
    boot: str


class RankExit(Struct, frozen=True):
    """How a process ended: by itself, by a signal, or it could not be started or followed, and why. `absent`: its
    command or folder is not there, so that it can be started there at no time."""

    code: int | None = None
    signal: int | None = None
    why: str = ""
    absent: bool = False

    @property
    def good(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        """
        >>> str(RankExit(code=3)), str(RankExit(signal=9))
        ('its process ended with exit code 3', 'its process was ended by SIGKILL')
        """
        if self.why:
            return self.why
        if self.signal is not None:
            return f"its process was ended by {signal.Signals(self.signal).name}"
        return f"its process ended with exit code {self.code}"


class RankProcess:
    """One process, and all that it starts. `handle` becomes readable when they have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handle = -1
        self._pid = 0
        self._child: subprocess.Popen[bytes] | None = None

    def start(
        self, words: Sequence[str], env: Mapping[str, str], cwd: str, log: Path, limits: tuple[float, float, int]
    ) -> None:
        """Start it, under these limits from the first moment on. Raises OSError if the system has no room for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.grant(*limits)
        order = {
            "command": list(words),
            "env": {**env, MARK: str(self.folder)},
            "cwd": cwd,
            "log": str(log),
            "lease": True,
        }
        (self.folder / "launch").write_bytes(marshal.dumps(order | {"cpus": (), "groups": ()}))
        null = subprocess.DEVNULL
        with (self.folder / "shim.log").open("ab") as told:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", shim.__file__, str(self.folder)],
                stdin=null,
                stdout=null,
                stderr=told,
                start_new_session=True,
                cwd="/",
            )
        self._pid = self._child.pid
        try:
            self.handle = os.pidfd_open(self._pid)
        except OSError:
            self._child.kill()
            self._child.wait()
            self._end_orphan()
            raise

    def find(self) -> bool:
        """Follow it again, if it still runs. One that was about to begin never will: its place is taken here."""
        try:
            if shim.claim(str(self.folder)):
                return False
            name = msgspec.json.decode((self.folder / "claim").read_bytes(), type=_ShimName)
            if name.boot != shim.boot_id():
                return False
            handle = os.pidfd_open(name.pid)
        except (OSError, msgspec.DecodeError):
            return False
        with suppress(OSError):
            if shim.start_time(name.pid) == name.start:  # asked after the handle was opened, so it is of this process
                self._pid, self.handle = name.pid, handle
                return True
        os.close(handle)
        return False

    def grant(self, end: float, kill: float, how: int = shim.TO_ALL) -> None:
        """Until when it may run, by the monotonic clock; at `end` it gets SIGTERM, or is stopped (`shim.STOPS`)."""
        file = os.open(self.folder / "lease", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, shim.LEASE.pack(end, kill, how), 0)
        finally:
            os.close(file)
        if self.handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, shim.POKE)

    def kill(self) -> None:
        """End its parent, which nobody can reach by its folder any more; what it started is ended then."""
        with suppress(OSError):  # it is gone, or was never there
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def ended(self) -> RankExit:
        """How it ended, once its handle is readable or it was not found."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
        if self._child is not None:
            self._child.wait()
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode((self.folder / "exit.json").read_bytes(), type=RankExit)
        self._end_orphan()
        told = ""
        with suppress(OSError):
            told = (self.folder / "shim.log").read_text(errors="replace").strip()
        return RankExit(why=f"its parent process ended: {told.splitlines()[-1] if told else 'it was killed'}")

    def _end_orphan(self) -> None:
        """Its shim was killed: end whatever it left. All are stopped first, until nobody new is found."""
        found: set[int] = set()
        while (new := self._left()) - found:
            _send(new, signal.SIGSTOP)
            found |= new
        _send(found, signal.SIGKILL)

    def _left(self) -> set[int]:
        """Who has its mark or is of the program's session, with all that descend from them."""
        session, found = self._session(), set()
        mark = f"{MARK}={self.folder}\0".encode()
        for pid in shim.parents():
            with suppress(OSError):
                if os.getsid(pid) == session or mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.add(pid)
        return found.union(shim.family(found))

    def _session(self) -> int | None:
        """That of its program, which began it. While there is anybody in it, no other process has its number."""
        try:
            name = msgspec.json.decode((self.folder / "program").read_bytes(), type=_ShimName)
        except (OSError, msgspec.DecodeError):
            return None
        with suppress(OSError):
            if shim.start_time(name.pid) != name.start:
                return None
        return name.pid if name.boot == shim.boot_id() else None

    def leave(self) -> None:
        """Follow it no more; it runs on."""
        if self.handle >= 0:
            os.close(self.handle)
        if self._child is not None:
            self._child.returncode = 0  # no warning that it does


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
