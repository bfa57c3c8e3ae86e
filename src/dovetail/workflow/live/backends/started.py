"""A model server that we start: its command, its port and device, its log, and its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO
from urllib.parse import urlsplit

from dovetail.workflow.live.backends import supervise
from dovetail.workflow.live.backends.http_client import failure
from dovetail.workflow.live.protocol import BackEndError

READY_LOOK_S = 0.05
LOG_TAIL = 2000


class StartedServer:
    """One server process, and all that it starts. It ends with `stop`, and with this process in any case."""

    def __init__(self, command: Sequence[str], url: str, model: str, devices: Sequence[str], log: str) -> None:
        self.port = _free_port() if "{port}" in url else urlsplit(url).port or 80
        self.url = url.replace("{port}", str(self.port))
        given = {"{port}": str(self.port), "{model}": model, "{device}": "cuda:0" if _indices(devices) else "cpu"}
        self.command = [_filled(word, given) for word in command]
        self._environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(_indices(devices))}
        self._log: IO[bytes] = open(log, "a+b", 0) if log else tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._told = os.fstat(self._log.fileno()).st_size
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stop_s: float, ready_s: float, ready: Callable[[], bool]) -> None:
        """Start it, and wait until `ready` says so. SIGKILL comes `stop_s` after SIGTERM when it is to end."""
        if _listens(self.port):
            raise BackEndError(f"{self.url}: another server listens there already")
        self._process = subprocess.Popen(
            [sys.executable, supervise.__file__, str(stop_s), *self.command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        until = time.monotonic() + ready_s
        while not ready():
            if not self.runs:
                raise failure(f"{self.command[0]} ended before it was ready{self.last_words()}")
            if time.monotonic() > until:
                raise failure(f"{self.url} was not ready after {ready_s:g} s{self.last_words()}")
            time.sleep(READY_LOOK_S)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def last_words(self) -> str:
        log = self._log.fileno()
        start = max(self._told, os.fstat(log).st_size - LOG_TAIL)
        text = os.pread(log, LOG_TAIL, start).decode(errors="replace").strip()
        return f": {text}" if text else ", without a word"

    def stop(self) -> None:
        """End it, and all that it started; returns when they are gone."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self._log.close()


def _filled(word: str, given: dict[str, str]) -> str:
    for name, value in given.items():
        word = word.replace(name, value)
    return word


def _indices(devices: Sequence[str]) -> list[str]:
    """What CUDA calls these devices in a process that sees all that this one sees.

    >>> _indices(["cuda:0", "cuda:1"]), _indices(["cpu"])
    (['0', '1'], [])
    """
    seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    numbers = [int(device.partition(":")[2] or 0) for device in devices if device.startswith("cuda")]
    return [seen[number] if number < len(seen) else str(number) for number in numbers]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
