"""The program's side of a resize: call `agent.step()` after each step of a training loop.

    from dovetail.host import agent

    for batch in batches:
        train(batch)
        agent.step()

It looks whether the number of cores has changed (one `stat`), sets the threads of torch and of NumPy's libraries to it
in the thread that computes, and tells the daemon, which takes cores away only then. Outside of a run by Dovetail it
does nothing. It imports nothing that the program has not imported itself.

A program that is not to be changed is run by it: `python -m dovetail.host.agent -- train.py` (live/unchanged.py).
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

FOLDER = "DOVETAIL_CONTROL"  # names of variables in a program's environment
PROGRAM = "DOVETAIL_PROGRAM"
TARGET_FILE = "target.json"
SOCKET_FILE = "agent.sock"

NUMPY_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_PROGRESS_EVERY_S = 1.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0


def set_torch(cores: int) -> None:
    """Torch keeps a number of threads for each thread that computes: this must be called in that thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(cores)


def set_numpy(cores: int) -> None:
    """The libraries below NumPy, by threadpoolctl where it is installed. That takes a while to load, which is not done
    for a number that they began with."""
    began = {os.environ.get(name) for name in NUMPY_THREADS}
    if "numpy" not in sys.modules or ("threadpoolctl" not in sys.modules and began == {str(cores)}):
        return
    with suppress(ImportError):
        importlib.import_module("threadpoolctl").threadpool_limits(cores)


def set_numba(cores: int) -> None:
    """Numba's threads for parallel loops, of which there are never more than it began with."""
    numba = sys.modules.get("numba")
    if numba is not None:
        numba.set_num_threads(min(cores, numba.config.NUMBA_NUM_THREADS))


class Agent:
    """One program's line to the daemon. The module's functions use one for the whole process."""

    def __init__(self, folder: str = "", program: str = "", adapters: tuple[Callable[[int], None], ...] = ()) -> None:
        self._folder = folder
        self._program = program
        self.adapters = [set_torch, set_numpy, set_numba, *adapters]
        self.cores: int | None = None
        self.gen = 0
        self.steps = 0
        self._total: int | None = None
        self._seen: tuple[int, int] | None = None
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._told_at = time.monotonic()
        self._told_steps = 0
        self._mixed = False  # whether the cores changed since progress was last told

    def step(self, n: int = 1, total: int | None = None, metrics: Mapping[str, float] | None = None) -> int | None:
        """So many steps are done: take up a change of cores. Gives the number of cores; None outside of a run."""
        if not self._folder:
            return None
        self.steps += n
        self._total = total
        changed = self._look()
        self._mixed = self._mixed or changed
        now = time.monotonic()
        if self._socket is None and now >= self._retry_at:
            self._connect(now)  # its greeting says which target was taken up
        elif changed:
            self._send({"ack": self.gen, "threads": self.cores, "step": self.steps, "t": time.time()})
        if now - self._told_at >= _PROGRESS_EVERY_S:
            rate = (self.steps - self._told_steps) / (now - self._told_at)
            self._told_at, self._told_steps = now, self.steps
            progress = {"step": self.steps, "total": self._total, "rate": rate, "metrics": dict(metrics or {})}
            self._send({"progress": progress | {"cores": None if self._mixed else self.cores}})
            self._mixed = False
        return self.cores

    def is_news(self) -> bool:
        """Whether the target is another than was last looked at."""
        try:
            found = os.stat(os.path.join(self._folder, TARGET_FILE))
        except OSError:
            return False
        return (found.st_mtime_ns, found.st_ino) != self._seen

    def _look(self) -> bool:
        """Take up the target if it is a new one."""
        path = os.path.join(self._folder, TARGET_FILE)
        try:
            found = os.stat(path)
            seen = (found.st_mtime_ns, found.st_ino)
            if seen == self._seen:
                return False
            with open(path, "rb") as file:
                target = json.load(file)
        except OSError:
            return False
        self._seen = seen
        if target["gen"] <= self.gen:
            return False
        self.gen, self.cores = target["gen"], target["cores"]
        for adapt in self.adapters:
            adapt(target["cores"])
        return True

    def _connect(self, now: float) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1.0)
        try:
            connect(connection, self._folder)
        except OSError:
            connection.close()
            self._retry_at, self._retry_s = now + self._retry_s, min(2 * self._retry_s, _LAST_RETRY_S)
            return
        self._socket, self._retry_s = connection, _FIRST_RETRY_S
        hello = {"program": self._program, "pid": os.getpid(), "malleable": "live", "max_threads": os.cpu_count()}
        self._send({"hello": hello, "ack": self.gen, "threads": self.cores, "step": self.steps, "t": time.time()})

    def _send(self, message: dict[str, Any]) -> None:
        """A broken line is taken up again at a later step; the target file tells what was missed."""
        if self._socket is None:
            return
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def connect(connection: socket.socket, folder: str) -> None:
    """Connect to the socket in a folder, however long the folder's name is: an address holds some 100 bytes only."""
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
    finally:
        os.close(directory)


_agent: Agent | None = None


def current() -> Agent:
    """The agent of this process."""
    global _agent
    if _agent is None:
        _agent = Agent(os.environ.get(FOLDER, ""), os.environ.get(PROGRAM, ""))
    return _agent


def step(n: int = 1, total: int | None = None, metrics: Mapping[str, float] | None = None) -> int | None:
    """So many steps are done. Gives the number of cores to use from now on; None outside of a run by Dovetail.

    >>> Agent().step() is None
    True
    """
    return current().step(n, total, metrics)


def on_change(adapt: Callable[[int], None]) -> None:
    """Call this too with every new number of cores: for pools of workers, or libraries with threads of their own."""
    current().adapters.append(adapt)


def keras_callback() -> Any:
    """A Keras callback that counts a step for each batch."""
    callback: Any = importlib.import_module("keras").callbacks.Callback

    class Steps(callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            step(metrics={name: float(value) for name, value in (logs or {}).items()})

    return Steps()


if __name__ == "__main__":
    raise SystemExit(importlib.import_module("dovetail.host.live.unchanged").main(sys.argv[1:]))
