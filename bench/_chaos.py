"""What benches that kill things share: a service that comes back, the processes of a run, its journals in the end."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bench import show
from dovetail import journals
from dovetail.core.errors import DovetailError
from tests.waiting import until

MARK = "DOVETAIL_CHAOS"  # in the environment of all that a run starts


class _Client(Protocol):
    def about(self) -> Any: ...


Client = TypeVar("Client", bound=_Client)


class KilledService(Generic[Client]):
    """`dovetail` with these words, started again when it is killed."""

    def __init__(self, folder: Path, words: Sequence[str], client: Callable[[], Client]) -> None:
        self.folder, self.client, self._words = folder, client, words
        self.starts = 0
        self._up()
        self.wait()

    def _up(self) -> None:
        self.starts += 1
        with open(self.folder / "service.log", "ab") as log:
            command = [sys.executable, "-m", "dovetail", *self._words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {MARK: str(self.folder)})

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Until it answers."""
        until(self._answers)

    def revive(self) -> None:
        """Start it again if it has ended by itself."""
        if self._process.poll() is not None:
            self._up()

    def _answers(self) -> bool:
        self.revive()
        try:
            return bool(self.client().about())
        except DovetailError:
            return False

    def kill(self) -> bool:
        """It is on its way back when this returns."""
        self._process.kill()
        self._process.wait()
        self._up()
        return True

    def end(self) -> int:
        """In order; gives its exit code."""
        self._process.terminate()
        return self._process.wait()


def started(folder: Path, word: str = "") -> list[int]:
    """Processes of a run whose command has this word."""
    mark = f"{MARK}={folder}\0"
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if mark in environ_of(pid) and word in command_of(pid)]


def command_of(pid: int) -> str:
    return _told_of(pid, "cmdline").replace("\0", " ").strip()


def environ_of(pid: int) -> str:
    return _told_of(pid, "environ")


def _told_of(pid: int, what: str) -> str:
    """Nothing if it has ended, or is somebody else's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace")
    return ""


def send(pid: int, number: int = signal.SIGKILL) -> bool:
    """Whether there was somebody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def left_running(folder: Path, *words: str) -> list[str]:
    """What has not ended a minute after all else, of what has one of these words, or of all."""
    end_s = time.monotonic() + 60.0
    while (left := _with(folder, words or ("",))) and time.monotonic() < end_s:
        time.sleep(0.1)
    return left


def _with(folder: Path, words: Sequence[str]) -> list[str]:
    return [command_of(pid) for pid in started(folder) if any(word in command_of(pid) for word in words)]


def valid_journals(paths: Sequence[Path]) -> int:
    """How many are valid as they were written; of the others it is told why."""
    valid = 0
    for path in paths:
        report = journals.check_journal(path)
        valid += report.valid
        if not report.valid:
            print(f"{path}: {report}", file=sys.stderr)
    return valid


def options(text: str | None, every_s: float) -> argparse.ArgumentParser:
    """What all of them can be asked for."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=every_s, help="seconds from one kill to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep journals and logs there")
    return parser


@contextmanager
def new_folder(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given or Path(temporary) / "chaos").resolve()
        folder.mkdir(parents=True)
        yield folder


def tell(found: dict[str, Any]) -> None:
    """Print it, and leave with what it is worth."""
    show(found)
    raise SystemExit(0 if found["good"] and found["exit_code"] == 0 and not found["left_running"] else 1)
