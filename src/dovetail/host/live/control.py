"""The daemon's side of a resize: a folder for each program, with the target it is to reach and a socket for its agent.

The target file is the truth: it is replaced as a whole, and its number `gen` only grows, so whoever was restarted reads
it and knows. The socket tells at once what the file says, and brings back when the program has done it.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.host.agent import SOCKET_FILE, TARGET_FILE

_LONGEST_LINE = 1 << 16
_LONGEST_WAIT_S = 30.0


class CoreTarget(Struct, frozen=True, omit_defaults=True):
    """What a program should use from now on; a shrinking one has until the deadline (seconds since 1970)."""

    gen: int
    cores: int
    cpus: tuple[int, ...]
    inter: int = 1
    intra: int = 0
    deadline: float | None = None


class Progress(Struct, frozen=True):
    """How far a program is; `rate` is in steps per second since it last said so, all on `cores` if that is known."""

    step: int = 0
    total: int | None = None
    rate: float | None = None
    metrics: dict[str, float] = {}
    cores: int | None = None


class AgentHello(Struct, frozen=True):
    program: str = ""
    pid: int = 0
    malleable: str = "live"
    max_threads: int | None = None


class AgentMessage(Struct, frozen=True):
    """A line of an agent."""

    hello: AgentHello | None = None
    ack: int | None = None
    threads: int | None = None
    step: int | None = None
    t: float | None = None
    progress: Progress | None = None


class AgentLine(Struct):
    """What is known of one program's agent; `answered_s` is how long it last took to reach a target."""

    folder: Path
    listener: socket.socket
    gen: int = 0
    hello: AgentHello | None = None
    told_at: float = 0.0
    acknowledged: int = 0
    answered_s: float | None = None
    threads: int | None = None
    progress: Progress = Progress()
    connection: socket.socket | None = None
    pending: bytes = b""


_decode = msgspec.json.Decoder(AgentMessage).decode


class Control:
    """The control folders of all programs of a daemon; one thread listens to their agents."""

    def __init__(self) -> None:
        self._lines: dict[str, AgentLine] = {}
        self._heard = threading.Condition()
        self._selector = selectors.EpollSelector()
        self._wake, wake = socket.socketpair()
        self._selector.register(wake, selectors.EVENT_READ, None)
        self._listener = threading.Thread(target=self._listen, args=(wake,), name="agents", daemon=True)
        self._listener.start()

    def open(self, run: str, folder: Path) -> None:
        """Listen for the agent of a program; what its folder says already stays true."""
        with self._heard:
            if run in self._lines:
                return
            folder.mkdir(parents=True, exist_ok=True)
            line = AgentLine(folder, _bind(folder))
            with suppress(FileNotFoundError, msgspec.DecodeError):
                line.gen = msgspec.json.decode((folder / TARGET_FILE).read_bytes(), type=CoreTarget).gen
            self._lines[run] = line
            self._selector.register(line.listener, selectors.EVENT_READ, run)  # which epoll sees at once

    def tell(self, run: str, cpus: Sequence[int], within_s: float | None = None) -> int:
        """Set a new target; gives its number. A program that has just ended has none any more."""
        with self._heard:
            line = self._lines.get(run)
            if line is None:
                return 0
            line.gen += 1
            deadline = None if within_s is None else time.time() + within_s
            target = CoreTarget(line.gen, len(cpus), tuple(cpus), intra=len(cpus), deadline=deadline)
            part = line.folder / f"{TARGET_FILE}.part"
            part.write_bytes(msgspec.json.encode(target))  # of no use to anybody after the machine's end
            part.rename(line.folder / TARGET_FILE)
            line.told_at = time.monotonic()
            if line.connection is not None:
                with suppress(OSError):
                    line.connection.send(b'{"look":%d}\n' % line.gen)
            return line.gen

    def wait(self, run: str, gen: int, limit_s: float) -> bool:
        """Wait until the agent says that it has reached a target; False without an agent, or at the limit."""
        with self._heard:
            line = self._lines.get(run)
            if line is None or line.hello is None:
                return False
            rate = line.progress.rate or 0.0
            limit_s = min(max(limit_s, 2 / rate), _LONGEST_WAIT_S) if rate else limit_s
            return self._heard.wait_for(lambda: line.acknowledged >= gen or line.connection is None, limit_s) and (
                line.acknowledged >= gen
            )

    def line(self, run: str) -> AgentLine | None:
        return self._lines.get(run)

    def close(self, run: str) -> None:
        with self._heard:
            line = self._lines.pop(run, None)
            if line is None:
                return
            self._drop(line)
            self._selector.unregister(line.listener)
            line.listener.close()
            (line.folder / SOCKET_FILE).unlink(missing_ok=True)

    def close_all(self) -> None:
        """Stop listening; the folders stay, for the next daemon."""
        self._wake.send(b"x")
        self._listener.join()
        for line in self._lines.values():
            self._drop(line)
            line.listener.close()
        self._lines.clear()
        self._selector.close()
        self._wake.close()

    # --- the listening thread -----------------------------------------------------------------------

    def _listen(self, wake: socket.socket) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if wake.recv(4096).endswith(b"x"):
                        wake.close()
                        return
                    continue
                with self._heard:
                    line = self._lines.get(key.data)
                    if line is None:
                        continue
                    if key.fileobj is line.listener:
                        self._accept(key.data, line)
                    elif key.fileobj is line.connection:
                        self._read(line)
                    self._heard.notify_all()

    def _accept(self, run: str, line: AgentLine) -> None:
        """The latest connection counts: a program that was restarted within its attempt has a new agent."""
        self._drop(line)
        with suppress(OSError):
            line.connection, _ = line.listener.accept()
            line.connection.setblocking(False)
            line.pending = b""
            self._selector.register(line.connection, selectors.EVENT_READ, run)

    def _read(self, line: AgentLine) -> None:
        assert line.connection is not None
        try:
            data = line.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *whole, line.pending = (line.pending + data).split(b"\n")
        try:
            for text in whole:
                self._take(line, _decode(text))
        except msgspec.DecodeError:
            data = b""
        if not data or len(line.pending) > _LONGEST_LINE:
            self._drop(line)

    def _take(self, line: AgentLine, message: AgentMessage) -> None:
        line.hello = message.hello or line.hello
        line.progress = message.progress or line.progress
        if message.ack is not None:
            if message.hello is None and line.acknowledged < message.ack == line.gen:
                line.answered_s = time.monotonic() - line.told_at
            line.acknowledged = max(line.acknowledged, message.ack)
            line.threads = message.threads

    def _drop(self, line: AgentLine) -> None:
        if line.connection is not None:
            self._selector.unregister(line.connection)
            line.connection.close()
            line.connection = None


def _bind(folder: Path) -> socket.socket:
    """Listen in a folder, however long its name is: an address holds some 100 bytes only."""
    (folder / SOCKET_FILE).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
    finally:
        os.close(directory)
    (folder / SOCKET_FILE).chmod(0o600)
    listener.listen(4)
    listener.setblocking(False)
    return listener
